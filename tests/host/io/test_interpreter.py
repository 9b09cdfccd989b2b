"""While a device waits for sums, they come though another thread keeps the interpreter's lock, as one may that waits in
the driver for room in the device's queues.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numba import njit

from inagg_host.codec.ordered import load, store_word
from inagg_host.codec.staging import Arriving
from inagg_host.core import Operation
from inagg_host.core.operation import Request
from inagg_host.core.state import OPERATIONS
from inagg_host.io import serve
from inagg_link.native import FAILED
from inagg_link.port import BLOCKED, ERRNO
from inagg_link.signals import Deferred
from inagg_wire.scale import FloatType

from .rig import LANES, PATIENCE_S, Rank, World, needs_port, portless, values

pytestmark = needs_port

SPINS_MOST = 1 << 34
"""Some seconds."""


def _comes(word: int) -> bool:
    spins = 0
    while load(word) == 0 and spins < SPINS_MOST:
        spins += 1
    return bool(load(word) != 0)


comes: Any = njit(_comes)
"""Whether a word comes. Not ``nogil``: who calls it keeps the lock until then."""


class Sums:
    """Of one rank, which a device waits for."""

    def __init__(self, rank: Rank, elements: int) -> None:
        self.rank, self.values = rank, values(1, elements)
        self.words = np.zeros(2, np.int64)
        self.alone: bool | None = None
        """Whether they come without Python, when they are submitted."""
        self.arriving = Arriving(rank.transport.wake, self.words, self.values, lambda: None)
        store_word(self.arriving.arrived, 1)

    def submit(self) -> None:
        def begin() -> None:
            self.rank.engine.submit(Request(self.values, self.values, FloatType.FLOAT32, codec=self.arriving), 0.0)

        self.rank.transport.submit(begin, awaited=True)
        self.alone = self.rank.transport.runs_without_python()


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    comes(np.ones(1, np.int64).ctypes.data)


@pytest.mark.parametrize(("count", "elements"), [(3, 1 << 20), (OPERATIONS + 6, 1 << 12)])
def test_sums_come_though_nobody_can_run_python(stack: ExitStack, count: int, elements: int) -> None:
    world = World(stack, window=1024, lanes=1024)
    of_rank = [[Sums(rank, elements) for _ in range(count)] for rank in world.ranks]
    for both in zip(*of_rank, strict=True):
        for one in both:
            one.submit()
    for sums in of_rank:
        assert all(one.alone for one in sums)
        assert comes(sums[-1].arriving.summed)
    world.wait(count)
    assert all(a.values.tobytes() == b.values.tobytes() for a, b in zip(*of_rank, strict=True))


def test_what_is_finished_is_told_while_a_device_waits_for_more(stack: ExitStack) -> None:
    world = World(stack)
    for rank in world.ranks:
        Sums(rank, LANES).submit()
    Sums(world.ranks[0], LANES).submit()  # the other rank never comes
    world.wait(1)
    assert not world.ranks[0].engine.idle


def test_who_waits_for_sums_in_memory_leaves_the_socket_to_the_thread_when_a_device_waits(stack: ExitStack) -> None:
    world, plain = World(stack), [values(rank, LANES) for rank in range(2)]
    rank, driven = world.ranks[0], threading.Event()

    def drive() -> None:
        while not rank.transport.take(partial(rank._submit, plain[0], plain[0], FloatType.FLOAT32, 1, None)):
            raise AssertionError("its own thread is at work")
        driven.set()
        rank.transport.drive(lambda: bool(rank.done), Deferred())

    guest = threading.Thread(target=drive, daemon=True)
    guest.start()
    assert driven.wait(PATIENCE_S)
    sums = [Sums(of_rank, LANES) for of_rank in world.ranks]
    sums[0].submit()
    guest.join(PATIENCE_S)
    assert not guest.is_alive()
    assert rank.done == []
    world.ranks[1].submit(plain[1])
    sums[1].submit()
    assert comes(sums[0].arriving.summed)
    world.wait(2)


def test_the_thread_waits_for_a_devices_next_operation_in_compiled_code(stack: ExitStack) -> None:
    world = World(stack)
    for count in (1, 2, 3):
        for rank in world.ranks:
            Sums(rank, LANES).submit()
        world.wait(count)
        for rank in world.ranks:
            assert rank.engine.idle
            assert rank.transport._loop.serves == rank.engine.submitted == count
        if count == 1:
            first = world.ranks[0].transport._loop
            run = stack.enter_context(patch.object(first, "run", wraps=first.run))
    run.assert_not_called()


def test_operations_for_which_there_was_no_room_are_not_forgotten_when_all_others_are_finished(
    stack: ExitStack,
) -> None:
    world = World(stack)
    transport = world.ranks[0].transport
    hand_out = transport._hand_out

    def late(take: Callable[[], list[Operation]]) -> None:
        time.sleep(0.3)  # until compiled code has nothing more to do, and sleeps
        hand_out(take)

    stack.enter_context(patch.object(transport, "_hand_out", late))
    first, second = ([Sums(rank, LANES) for _ in range(OPERATIONS + 6)] for rank in world.ranks)

    def submit() -> None:
        for sums in first:
            sums.submit()

    submitting = threading.Thread(target=submit, daemon=True)
    submitting.start()
    while world.ranks[0].engine.submitted <= OPERATIONS:
        time.sleep(0.001)
    for sums in second:
        sums.submit()
    world.wait(OPERATIONS + 6)
    submitting.join(PATIENCE_S)
    assert not submitting.is_alive()


def test_counters_are_brought_up_to_date_while_the_thread_stays_in_compiled_code(stack: ExitStack) -> None:
    world, start_s = World(stack), time.monotonic()
    for rank in world.ranks:
        Sums(rank, 1 << 16).submit()
    world.wait(1)
    rank, found = world.ranks[0], list[float]()
    for _ in range(2):
        with rank.transport.lock:
            rank.transport.update_counters()
        c = rank.counters
        found.append(c.encode_s + c.network_s + c.decode_s + c.idle_s)
    rank.transport.close()
    c = rank.counters
    found.append(c.encode_s + c.network_s + c.decode_s + c.idle_s)
    assert 0 < found[0] == found[1] == found[2] < time.monotonic() - start_s


@pytest.mark.parametrize("stays", [False, True])
def test_what_the_kernel_has_no_room_for_counts_as_lost_where_python_is_not_to_be_visited(stays: bool) -> None:
    """Without compiling: what would call the kernel says here that there is no room."""
    tried: list[int] = []

    def send(port: Any, _memory: Any, count: int, *_: Any) -> int:
        tried.append(count)
        port.words[ERRNO] = errno.ENOBUFS
        return FAILED

    compiled: Any = serve  # all of it
    names = {name: getattr(thing, "py_func", thing) for name, thing in vars(compiled).items()}
    names |= {"send": send, "stays": lambda _: stays}
    send_pieces = FunctionType(compiled.send_pieces.py_func.__code__, names)
    port = SimpleNamespace(words=np.zeros(64, np.int64))
    pieces = [
        SimpleNamespace(start=0, count=3, size=100, shard=0),
        SimpleNamespace(start=300, count=2, size=100, shard=0),
    ]
    st = SimpleNamespace(pieces=pieces, memory=np.zeros(500, np.uint8))
    record = np.zeros(1, serve.LOOP).view(np.recarray)
    record.pieces = 2
    assert send_pieces(port, st, np.zeros(1, np.int64), record) == stays
    assert tried == ([300, 200] if stays else [300])
    assert (port.words[BLOCKED], record[0].piece) == ((5, 2) if stays else (0, 0))


def test_a_post_is_answered_while_a_device_waits(stack: ExitStack) -> None:
    rank, answered = World(stack).ranks[0], threading.Event()
    Sums(rank, LANES).submit()
    rank.transport.post(answered.set)
    assert answered.wait(PATIENCE_S)


@pytest.mark.parametrize("trouble", ["paused", "closed"])
def test_who_submits_does_not_wait_for_a_network_in_trouble(stack: ExitStack, trouble: str) -> None:
    rank, done = World(stack).ranks[0], threading.Event()
    if trouble == "closed":
        rank.transport.close()
    else:
        rank.transport.post(rank.transport.pause)
        rank.transport.post(done.set)
        assert done.wait(PATIENCE_S)
    Sums(rank, LANES).submit()


def test_who_submits_does_not_wait_where_nothing_is_lent_to_compiled_loops(stack: ExitStack) -> None:
    world = World(stack, wrap=portless)
    first, second = (Sums(rank, LANES) for rank in world.ranks)
    first.submit()
    assert not first.alone
    second.submit()  # and may have its sums at once, since the first has sent all
    assert not second.alone or world.ranks[1].engine.idle
    world.wait(1)
