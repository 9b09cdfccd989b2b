"""The echo: real processes that measure, keep their window, survive loss and are gone afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_link.udp import UdpLink
from inagg_testbed.bench.children import Child, ChildSilent, crew, receive_all
from inagg_testbed.bench.echo import Echo, Load, measure_echo, plan
from inagg_testbed.bench.load import ConstantFeed, Workers, drive

SIZE, BATCH, WINDOW = 1000, 10, 4
FULL = Load(1472, 1472, 44, 32)


pytestmark = pytest.mark.usefixtures("no_process_is_left")


def test_it_is_measured_in_the_shape_of_an_aggregation() -> None:
    found = measure_echo(1, Load(748, 1472, 44, 32), 0.2, shards=2, warm_up_s=0.05)
    assert found.load[:3] == (748, 1472, 44)
    assert found.datagrams_in > 1000
    # one batch to each worker for one from each: as many out as in, but for what is in flight
    assert found.datagrams_out == pytest.approx(found.datagrams_in, abs=2 * 2 * found.load.window * 44)
    assert 0.2 <= found.seconds < 5.0
    assert found.elements_per_s(1448) == pytest.approx(found.datagrams_in / found.seconds * 1448)


def test_it_is_measured_from_the_first_datagrams_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of a busy machine may begin long after the echo process has."""
    start = Workers.start

    def late(*arguments: Any) -> None:
        time.sleep(1.0)
        start(*arguments)

    monkeypatch.setattr(Workers, "start", late)
    assert measure_echo(1, FULL, 0.5, warm_up_s=0.05).datagrams_in > 0


def test_a_process_that_fails_is_reported() -> None:
    with pytest.raises(RuntimeError, match=r"echo failed(?s:.)*Cannot assign requested address"):
        measure_echo(1, FULL, 0.1, host="192.0.2.1")


def test_a_load_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="rmem_max"):
        plan(416 << 10, 64, Load(8972, 8972, 7, 32))


def fail() -> ConstantFeed:
    raise ValueError("no such feed")


def test_a_worker_that_fails_is_reported() -> None:
    with UdpLink() as target, Workers(1, target.address, size=SIZE, window=WINDOW, limit_s=5.0) as workers:
        workers.start([fail])
        with pytest.raises(RuntimeError, match=r"worker 0 failed(?s:.)*no such feed"):
            workers.stop()


def test_workers_that_hear_nothing_send_their_window_again() -> None:
    with UdpLink() as target, Workers(2, target.address, size=SIZE, window=WINDOW, limit_s=5.0) as workers:
        workers.start([partial(ConstantFeed, SIZE, BATCH, WINDOW)] * 2)
        time.sleep(0.3)
        reports = workers.stop()
    for report in reports:
        assert report.retries >= 1
        assert report.datagrams_out == (1 + report.retries) * WINDOW * BATCH
        assert report.datagrams_in == 0


def say_nothing(connection: object) -> None:
    time.sleep(60.0)


def test_a_silent_child_is_given_up_and_ended_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inagg_testbed.bench.children.STOP_LIMIT_S", 0.1)
    child = Child("sleeper", say_nothing)
    with pytest.raises(TimeoutError, match="sleeper"):
        child.receive(0.1)
    child.close()


def say(connection: Connection, word: str) -> None:
    connection.send((None, word))
    connection.recv()


def break_down(connection: Connection) -> None:
    raise ValueError("no luck")


def heard(limit_s: float, *children: tuple[Any, ...]) -> list[str]:
    """What children of these names and tasks say."""
    with crew() as crew_:
        crew_ += [Child(*child) for child in children]
        return receive_all(crew_, limit_s)


def test_all_children_are_heard_in_their_order() -> None:
    assert heard(60.0, ("first", say, "one"), ("second", say, "two")) == ["one", "two"]


def test_a_child_that_fails_is_heard_while_another_is_silent() -> None:
    with pytest.raises(RuntimeError, match=r"second failed(?s:.)*no luck"):
        heard(60.0, ("first", say_nothing), ("second", break_down))


def test_who_was_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inagg_testbed.bench.children.STOP_LIMIT_S", 0.1)  # which it would need
    with crew() as crew_:
        crew_ += [Child("first", say, "one"), Child("second", say_nothing)]
        assert wait([crew_[0].fileno()], 60.0)
        with pytest.raises(ChildSilent, match=r"^second said nothing within 0.1 s: hurry$"):
            receive_all(crew_, 0.1, ": hurry")


@contextmanager
def echoing(link: UdpLink, worker: UdpLink | FaultLink) -> Iterator[None]:
    """An echo for one worker, on a thread of its own."""
    stop = threading.Event()
    echo = Echo(link, [worker.address], size=SIZE, answer_size=SIZE, batch_datagrams=BATCH, window=WINDOW)
    thread = threading.Thread(target=echo.run, args=(stop.is_set,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def run_for(seconds: float, link: UdpLink | FaultLink, target: UdpLink) -> int:
    end_s = time.monotonic() + seconds
    feed = ConstantFeed(SIZE, BATCH, WINDOW)
    stopped = lambda: time.monotonic() > end_s  # noqa: E731
    return drive(link, target.address, feed, size=SIZE, window=WINDOW, stopped=stopped)


def test_without_loss_the_window_is_never_passed() -> None:
    with UdpLink() as target, UdpLink(connect=target.address) as link, echoing(target, link):
        retries = run_for(0.1, link, target)
        if retries == 0:  # none on a machine that is not overloaded
            assert 0 <= link.counters.datagrams_out - link.counters.datagrams_in <= WINDOW * BATCH
        assert link.counters.datagrams_in > 10 * WINDOW * BATCH


def test_loss_stops_nothing_for_good() -> None:
    with UdpLink() as target, UdpLink() as plain:
        link = FaultLink(plain, Faults(drop=0.2), seed=1)
        with echoing(target, link):
            retries = run_for(0.5, link, target)
        assert retries >= 1
        assert plain.counters.datagrams_in > 3 * WINDOW * BATCH


def test_an_echo_ignores_strangers_and_other_sizes() -> None:
    with UdpLink() as target, UdpLink() as worker, UdpLink() as stranger, echoing(target, worker):
        feed = ConstantFeed(SIZE, BATCH, WINDOW)
        for link, size in ((stranger, SIZE), (worker, SIZE // 2)):
            link._transmit(feed.next_batch(), size, target.address)
        assert worker.receive(0.1) == []
        assert stranger.receive(0.0) == []


@pytest.mark.parametrize(
    ("granted", "workers", "batch", "window", "expected"),
    [
        (64 << 20, 4, 44, 32, (44, 32)),  # as asked for
        (8 << 20, 4, 44, 32, (44, 20)),  # a smaller window
        (416 << 10, 2, 44, 32, (44, 2)),
        (416 << 10, 8, 44, 32, (11, 2)),  # then smaller batches
        (416 << 10, 32, 44, 32, (2, 2)),
    ],
)
def test_the_load_fits_the_receive_buffer(
    granted: int, workers: int, batch: int, window: int, expected: tuple[int, int]
) -> None:
    assert plan(granted, workers, Load(1472, 736, batch, window)) == (1472, 736, *expected)
    fits = workers * expected[0] * expected[1] * 1472 * 1.6
    assert fits <= granted


def test_the_results_of_a_worker_fit_its_own_receive_buffer() -> None:
    *_, batch, window = plan(416 << 10, 1, Load(736, 1472, 44, 32))
    assert batch * window * 1472 * 1.6 <= 416 << 10
