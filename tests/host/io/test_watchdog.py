"""Who waits in a device's driver for sums that will not come, and keeps the interpreter's lock, is let go."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from inagg_host.codec.ordered import load_word, store_word
from inagg_host.config import TIME_MAX_S
from inagg_host.io import watchdog
from inagg_host.io.watchdog import Watchdog

from .rig import LANES, World, needs_port, no_threads
from .test_interpreter import Sums, comes

pytestmark = needs_port

LIMIT_S, PATIENCE_S = 0.2, 0.1


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


def test_nothing_is_given_up_while_python_can_run(looking: Watchdog, sums: Sums) -> None:
    looking.add(sums.arriving)
    time.sleep(LIMIT_S + 5 * PATIENCE_S)
    assert load_word(sums.arriving.summed) == 0


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
