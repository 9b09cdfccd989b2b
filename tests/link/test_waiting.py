"""Waiting over real sockets, and staying awake."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.link.loopback import PATIENCE_S, numbered
from tests.link.loops import needs_port, port_of

from inagg_link import waiting
from inagg_link.base import Batch
from inagg_link.port import LOAD, PAUSE, PROCESSORS
from inagg_link.processors import LOAD as LOAD_FILE
from inagg_link.udp import UdpLink

pytestmark = needs_port


# --- waiting ---


def test_waiting_ends_when_something_comes(sender: UdpLink, receiver: UdpLink, bell: int) -> None:
    sender.send(Batch(numbered(1, 10), 10, receiver.address))
    assert waiting.wait(port_of(receiver), bell, -1) == 1


def test_waiting_ends_when_the_other_descriptor_is_readable(receiver: UdpLink, bell: int) -> None:
    os.eventfd_write(bell, 1)
    assert waiting.wait(port_of(receiver), bell, -1) == 2


def test_waiting_tells_of_both(sender: UdpLink, receiver: UdpLink, bell: int) -> None:
    sender.send(Batch(numbered(1, 10), 10, receiver.address))
    os.eventfd_write(bell, 1)
    assert waiting.wait(port_of(receiver), bell, 0) == 3


def test_waiting_ends_when_its_time_is_over(receiver: UdpLink, bell: int) -> None:
    start_s = time.monotonic()
    assert waiting.wait(port_of(receiver), bell, 20_000_000) == 0
    assert time.monotonic() - start_s >= 0.02


def test_no_time_to_wait_is_no_waiting(receiver: UdpLink, bell: int) -> None:
    assert waiting.wait(port_of(receiver), bell, 0) == 0


def test_whoever_waits_lets_other_threads_work(receiver: UdpLink, bell: int) -> None:
    """It has given back Python's lock."""
    waiting.wait(port_of(receiver), bell, 0)  # compiled
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(waiting.wait(port_of(receiver), bell, -1)))
    thread.start()
    os.eventfd_write(bell, 1)
    thread.join(PATIENCE_S)
    assert found == [2]


# --- staying awake ---


@pytest.fixture
def load(receiver: UdpLink, tmp_path: Path) -> Iterator[Path]:
    """What says how many threads run, of a machine of four processors, for ``receiver``."""
    path = tmp_path / "loadavg"
    path.write_text("0.50 11.25 100.00 3/900 31415\n")
    words, opened = port_of(receiver).words, os.open(path, os.O_RDONLY)
    words[LOAD], words[PROCESSORS] = opened, 4
    yield path
    os.close(opened)


def test_how_many_threads_run_is_what_the_kernel_says(receiver: UdpLink, load: Path) -> None:
    assert waiting.running(port_of(receiver).words) == 3
    load.write_text("0.50 11.25 100.00 1234/90000 31415\n")
    assert waiting.running(port_of(receiver).words) == 1234


def test_a_process_is_among_the_threads_that_run(receiver: UdpLink) -> None:
    if Path(LOAD_FILE).read_text().split()[3].startswith("0/"):
        pytest.skip("this kernel does not count threads")
    assert waiting.running(port_of(receiver).words) >= 1


@pytest.mark.parametrize("says", ["", "0.00 0.00 0.00 0/0 0\n", "0.50 11.25 100.00 4/900 31415\n"])
def test_none_stays_awake_where_as_many_threads_run_as_there_are_processors_or_nobody_knows(
    receiver: UdpLink, load: Path, says: str
) -> None:
    assert waiting.may_stay_awake(port_of(receiver), 1.0)
    load.write_text(says)
    assert not waiting.may_stay_awake(port_of(receiver), 2.0)


def test_none_stays_awake_where_processors_are_not_its_own(receiver: UdpLink, load: Path) -> None:
    port_of(receiver).words[PROCESSORS] = 0
    assert not waiting.may_stay_awake(port_of(receiver), 1.0)


def test_how_many_threads_run_is_looked_up_now_and_then(receiver: UdpLink, load: Path) -> None:
    port, every_s = port_of(receiver), waiting.LOAD_EVERY_NS * 1e-9
    assert waiting.may_stay_awake(port, 1.0)
    load.write_text("0.50 11.25 100.00 4/900 31415\n")
    assert waiting.may_stay_awake(port, 1.0 + 0.9 * every_s)
    assert not waiting.may_stay_awake(port, 1.0 + 1.1 * every_s)


def test_pauses_get_longer_while_no_processor_is_to_spare_and_shorter_while_one_is(
    receiver: UdpLink, load: Path
) -> None:
    port, now, looked = port_of(receiver), 1.0, []
    load.write_text("0.50 11.25 100.00 4/900 31415\n")
    for _ in range(12):
        assert not waiting.may_stay_awake(port, now)
        looked.append(round(1e-6 * port.words[PAUSE]))
        now += 1.01e-9 * port.words[PAUSE]
    assert looked == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]  # ms
    load.write_text("0.50 11.25 100.00 3/900 31415\n")
    for _ in range(1000):
        assert waiting.may_stay_awake(port, now)
        now += 1.01e-9 * waiting.LOAD_EVERY_NS
    assert port.words[PAUSE] < waiting.PAUSE_LEAST_NS


def test_the_clock_is_pythons(receiver: UdpLink) -> None:
    waiting.clock(port_of(receiver))
    before_s = time.monotonic()
    now_s = waiting.clock(port_of(receiver))
    assert before_s <= now_s <= time.monotonic()
