"""Signals whose handlers raise while the main thread does the transport's work: it is for who waits; the sums come."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytest
from tests.link.signalling import Interrupted, handler_as_before, set_handler

from inagg_link.base import Batch, Link
from inagg_link.signals import Deferred
from inagg_wire.scale import FloatType

from .rig import LANES, PATIENCE_S, Portless, Rank, World, as_it_is, portless, values

LARGE = 150 * LANES + 7
pytestmark = pytest.mark.usefixtures(handler_as_before.__name__)


class Signalling(Portless):
    """A link on which a signal comes in the midst of a call to receive, once."""

    def __init__(self, link: Link, after: int) -> None:
        super().__init__(link)
        self._left = after

    def receive(self, timeout_s: float) -> list[Batch]:
        if threading.current_thread() is threading.main_thread():
            self._left -= 1
            if self._left == 0:
                signal.raise_signal(signal.SIGALRM)
        return super().receive(timeout_s)


class Broken(Portless):
    """A link that fails the main thread."""

    def receive(self, timeout_s: float) -> list[Batch]:
        if threading.current_thread() is threading.main_thread():
            raise TimeoutError("the link")
        return super().receive(timeout_s)


def take_turn(rank: Rank, call: Callable[[], None]) -> None:
    while not rank.transport.take(call):  # its own thread is at work
        time.sleep(0.001)


def begin_and_drive(rank: Rank, tensor: Any) -> None:
    """The whole of an all-reduce, on this thread."""
    with Deferred() as signals:
        take_turn(rank, lambda: rank._submit(tensor, tensor, FloatType.FLOAT32, 1, None))
        rank.transport.drive(lambda: bool(rank.done or rank.wrong), signals)
        assert signals.wake is None  # the transport may be closed from now on


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("kind", [TimeoutError, RuntimeError, Interrupted])
def test_what_a_handler_raises_reaches_the_caller_and_the_sums_come_all_the_same(
    stack: ExitStack, kind: type[BaseException], after: int
) -> None:
    def handler(_number: int, _frame: FrameType | None) -> None:
        raise kind("of the handler")

    set_handler(handler)
    world = World(stack, wrap=lambda rank, link: Signalling(link, after) if rank == 0 else link)
    tensors = [values(rank, LARGE) for rank in range(2)]
    world.ranks[1].submit(tensors[1])
    with pytest.raises(kind, match="of the handler"):
        begin_and_drive(world.ranks[0], tensors[0])
    world.wait(1)
    expected = World(stack, wrap=portless).sum([[values(rank, LARGE)] for rank in range(2)], [FloatType.FLOAT32])
    assert [tensor.tobytes() for tensor in tensors] == expected * 2


def test_the_same_error_of_the_link_is_a_failure(stack: ExitStack) -> None:
    world = World(stack, wrap=lambda rank, link: Broken(link) if rank == 0 else link)
    begin_and_drive(world.ranks[0], values(0, LARGE))
    assert str(world.ranks[0].failure()) == "the link"


def test_a_beginning_that_fails_leaves_the_turn_to_others(stack: ExitStack) -> None:
    rank = World(stack).ranks[0]

    def fail() -> None:
        if threading.current_thread() is threading.main_thread():
            raise Interrupted

    with pytest.raises(Interrupted):
        take_turn(rank, fail)
    served = threading.Event()
    rank.transport.post(served.set)
    assert served.wait(PATIENCE_S)


def test_a_signal_ends_the_waiting_of_the_caller(stack: ExitStack, patient: None) -> None:
    """In the compiled loop, and where it is not used; for a rank whose peer never comes."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    set_handler(handler)
    for wrap in (as_it_is, portless):
        rank = World(stack, wrap=wrap).ranks[0]
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        began_s = time.monotonic()
        with pytest.raises(Interrupted):
            begin_and_drive(rank, values(0, LARGE))
        assert time.monotonic() - began_s < PATIENCE_S / 2
        assert not rank.wrong
