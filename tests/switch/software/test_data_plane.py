"""A data plane on a link that lends no port to a compiled loop, such as one that delays: it waits, sends and counts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.switch.aggregation.world import make_binding, simple_contribution

from inagg_link.addresses import Address
from inagg_link.around import LinkAround
from inagg_link.base import Batch, Counters
from inagg_link.port import Port
from inagg_switch.software.data_plane import DataPlane

from .looping import LANES, Rig

PATIENCE_S = 10.0


class Portless(LinkAround):
    """Lends no port. ``due`` says what `next_due_s` is; ``refuses``: how many peers of each send get nothing."""

    due: Callable[[], float | None] = staticmethod(lambda: None)
    refuses = 0
    asked = 0
    more: list[Batch] = []  # noqa: RUF012  # never changed: what has always come
    dropped: int | None = 0

    @property
    def counters(self) -> Counters:
        counters = self.link.counters
        counters.kernel_drops = self.dropped
        return counters

    @property
    def next_due_s(self) -> float | None:
        return self.due()

    def port(self) -> Port | None:
        return None

    def receive(self, timeout_s: float) -> list[Batch]:
        self.asked += 1
        return self.link.receive(timeout_s) or self.more

    def send(self, batch: Batch) -> int:
        return self.link.send(batch)

    def send_many(self, data: npt.NDArray[np.uint8], size: int, peers: Sequence[Address]) -> int:
        return self.link.send_many(data, size, peers[: len(peers) - self.refuses])


class Bell:
    """Commands: each `ring` is one."""

    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)

    def fileno(self) -> int:
        return self._bell

    def ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    def poll(self, timeout: float = 0.0) -> bool:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self._bell)


@pytest.fixture
def links() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def portless(links: ExitStack) -> tuple[Rig, Portless]:
    """A job of three ranks, of blocks of one datagram each."""
    rig = Rig(links, Portless)
    rig.bind(make_binding(1, "nat8", 3, lanes=LANES, slots=64, children=rig.addresses(0, 1, 2)))
    assert isinstance(rig.link, Portless)
    return rig, rig.link


def contribute(rig: Rig, blocks: int, ranks: Sequence[int] = (0, 1, 2)) -> None:
    binding = make_binding(1, "nat8", 3, lanes=LANES, slots=64, children=rig.addresses(0, 1, 2))
    for rank in ranks:
        rig.send([simple_contribution(binding, rank, block) for block in range(blocks)], rig.workers[rank].address)


@contextmanager
def running(plane: DataPlane, bell: Bell) -> Iterator[list[Any]]:
    """Run it on a thread; the commands that it has executed. The end of this is one that ends it."""
    executed: list[Any] = []
    over = threading.Event()

    def execute() -> bool:
        executed.append(None)
        return not over.is_set()

    serving = threading.Thread(target=plane.run, args=(bell, execute), daemon=True)
    serving.start()
    try:
        yield executed
    finally:
        over.set()
        bell.ring()
        serving.join(PATIENCE_S)
        bell.close()
        assert not serving.is_alive()


def until(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "it did not come about in time"
        time.sleep(0.002)


def test_a_step_says_whether_anything_has_come(portless: tuple[Rig, Portless]) -> None:
    rig, link = portless
    plane = DataPlane(link, rig.aggregator)
    assert not plane.step(0.0)
    contribute(rig, 1, [0])
    assert plane.step(0.0)
    assert not plane.step(0.0)


def test_what_could_not_be_sent_is_counted_and_was_not_sent(portless: tuple[Rig, Portless]) -> None:
    """In datagrams, for each that lacks them."""
    rig, link = portless
    plane, link.refuses = DataPlane(link, rig.aggregator), 2
    contribute(rig, 5)
    while plane.step(0.0):
        pass
    counters = plane.counters()
    assert (counters.datagrams_in, counters.datagrams_out, counters.send_refused) == (15, 5, 10)
    assert [len(rig.heard(rank)) for rank in range(3)] == [5, 0, 0]


@pytest.mark.parametrize(("dropped", "told"), [(7, 7), (None, 0)])
def test_what_the_kernel_dropped_and_the_time_of_the_processor_are_told(
    portless: tuple[Rig, Portless], dropped: int | None, told: int
) -> None:
    rig, link = portless
    link.dropped = dropped
    before_s = time.process_time()
    counters = DataPlane(link, rig.aggregator).counters()
    assert counters.kernel_drops == told
    assert before_s <= counters.cpu_s <= time.process_time()


def test_it_serves_what_comes_and_what_is_ordered_as_soon_as_either_does(portless: tuple[Rig, Portless]) -> None:
    rig, link = portless
    plane, bell = DataPlane(link, rig.aggregator), Bell()
    with running(plane, bell) as executed:

        def reached(turn: int) -> None:
            until(lambda: rig.aggregator.counters().jobs[1].results == 4 * turn)
            bell.ring()
            until(lambda: len(executed) == turn)

        for turn in range(1, 4):
            contribute(rig, 4 * turn)  # four new blocks, and those of before once more
            reached(turn)


def test_while_nothing_comes_it_waits(portless: tuple[Rig, Portless]) -> None:
    rig, link = portless
    with running(DataPlane(link, rig.aggregator), Bell()):
        until(lambda: link.asked)
        time.sleep(0.1)
        asked = link.asked
        time.sleep(0.2)
        assert link.asked - asked <= 1


def test_what_a_link_holds_back_is_asked_for_when_it_is_due_and_not_before(portless: tuple[Rig, Portless]) -> None:
    rig, link = portless
    due_s = time.monotonic() + 0.4
    link.due = lambda: due_s if time.monotonic() < due_s + 0.2 else None
    with running(DataPlane(link, rig.aggregator), Bell()):
        until(lambda: time.monotonic() > due_s - 0.1)
        assert link.asked <= 2
        until(lambda: link.asked > 3)
    assert time.monotonic() > due_s


def test_what_was_due_a_moment_ago_is_asked_for_at_once(portless: tuple[Rig, Portless]) -> None:
    rig, link = portless
    long_ago_s = time.monotonic() - 1.0
    link.due = lambda: long_ago_s if link.asked < 100 else None
    with running(DataPlane(link, rig.aggregator), Bell()):
        until(lambda: link.asked >= 100)


def test_commands_are_executed_while_datagrams_keep_coming(portless: tuple[Rig, Portless]) -> None:
    rig, link = portless
    link.more, bell = [Batch(np.zeros(1000, np.uint8), 1000, rig.stranger.address)], Bell()
    with running(DataPlane(link, rig.aggregator), bell) as executed:
        bell.ring()
        until(lambda: executed)
        link.more = []
