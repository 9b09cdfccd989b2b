"""Who waits in a device's driver for sums that will not come, and keeps the interpreter's lock, is let go."""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from inagg_host.codec.ordered import load_word, store_word
from inagg_host.codec.staging import Codec
from inagg_host.config import TIME_MAX_S
from inagg_host.io import watchdog
from inagg_host.io.watchdog import Watchdog

from .rig import LANES, World, needs_port, no_threads
from .test_interpreter import Sums, comes

pytestmark = needs_port

LIMIT_S, PATIENCE_S = 0.2, 0.1
YEAR_NS = 365 * 24 * 3600 * 10**9


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    watchdog.warm_up()
    comes(np.ones(1, np.int64).ctypes.data)


@pytest.fixture
def looking() -> Iterator[Watchdog]:
    looking = Watchdog(LIMIT_S, PATIENCE_S)
    yield looking
    looking.close()


@pytest.fixture
def sums(stack: ExitStack) -> Sums:
    """The other rank never comes."""
    sums = Sums(World(stack).ranks[0], LANES)
    sums.submit()
    return sums


def test_what_has_waited_too_long_is_given_up_though_nobody_can_run_python(looking: Watchdog, sums: Sums) -> None:
    looking.add(sums.arriving)
    assert comes(sums.arriving.summed), "who waits keeps the lock until then"
    assert np.isnan(sums.values).all()
    assert "kept Python's lock" in str(sums.arriving.error)


def test_what_has_not_arrived_yet_is_given_up_when_it_has(looking: Watchdog, sums: Sums) -> None:
    store_word(sums.arriving.arrived, 0)
    looking.add(sums.arriving)
    late = Sums(sums.rank, LANES)
    looking.add(late.arriving)
    assert comes(late.arriving.summed)
    assert load_word(sums.arriving.summed) == 0
    store_word(sums.arriving.arrived, 1)
    assert comes(sums.arriving.summed)


@pytest.fixture
def pulseless(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watchdog]:
    """One that does not find out when Python ran last, but is told: in a year. What it watches is due at once."""
    monkeypatch.setattr(Watchdog, "_pulse", lambda watchdog: None)
    watchdog = Watchdog(0.0, PATIENCE_S)
    watchdog._record["alive_ns"] = time.monotonic_ns() + YEAR_NS
    yield watchdog
    watchdog.close()


def wait_for_looks(watchdog: Watchdog) -> None:
    """Until the watchdog has looked at what is there now: it sleeps before and after, which the system counts."""
    (thread,) = (thread for thread in watchdog._threads if thread.name == "inagg-watchdog")
    status = Path(f"/proc/self/task/{thread.native_id}/status")

    def sleeps() -> int:
        found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)$", status.read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])

    before, give_up_s = sleeps(), time.monotonic() + 60.0
    while sleeps() < before + 3:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)


def test_nothing_is_given_up_while_python_can_run(pulseless: Watchdog, sums: Sums) -> None:
    pulseless.add(sums.arriving)
    wait_for_looks(pulseless)
    assert load_word(sums.arriving.summed) == 0
    pulseless._record["alive_ns"] = 0
    wait_for_looks(pulseless)
    assert load_word(sums.arriving.summed) == 1


def test_what_has_waited_for_less_than_its_limit_is_not_given_up(pulseless: Watchdog, sums: Sums) -> None:
    pulseless.add(sums.arriving)
    sums.arriving.record["due_ns"] = time.monotonic_ns() + YEAR_NS
    pulseless._record["alive_ns"] = 0
    wait_for_looks(pulseless)
    assert load_word(sums.arriving.summed) == 0
    sums.arriving.record["due_ns"] = 0
    wait_for_looks(pulseless)
    assert load_word(sums.arriving.summed) == 1


def test_python_says_again_and_again_that_it_can_run(looking: Watchdog) -> None:
    for _ in range(3):
        before, give_up_s = int(looking._record["alive_ns"][0]), time.monotonic() + 60.0
        while looking._record["alive_ns"][0] == before:
            assert time.monotonic() < give_up_s
            time.sleep(0.001)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_was_removed_is_not_given_up(looking: Watchdog, sums: Sums, place: int) -> None:
    """Wherever it stands among others."""
    watched = [Sums(sums.rank, LANES) for _ in range(3)]
    for one in watched:
        looking.add(one.arriving)
    removed = watched.pop(place)
    looking.remove(removed.arriving)
    for one in watched:
        assert comes(one.arriving.summed)
    assert load_word(removed.arriving.summed) == 0


def test_the_longest_time_limit_is_taken(sums: Sums) -> None:
    patient = Watchdog(TIME_MAX_S, PATIENCE_S)
    patient.add(sums.arriving)
    patient.close()
    patient.close()


def test_what_is_watched_is_kept_until_it_is_removed() -> None:
    patient, codec = Watchdog(TIME_MAX_S), Codec(lambda: None)
    watched = weakref.ref(codec)
    patient.add(codec)
    del codec
    kept = watched()
    assert kept is not None
    patient.remove(kept)
    del kept
    assert watched() is None
    patient.close()


def test_nothing_is_left_of_one_that_got_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before, start = count(), threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        (no_threads if thread.name == "inagg-watchdog" else start)(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        Watchdog(LIMIT_S, PATIENCE_S)
    assert count() == before
