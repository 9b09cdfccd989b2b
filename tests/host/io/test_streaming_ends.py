"""What ends the compiled loop before all is summed: other work, errors, the end of the transport."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest

from inagg_host.core import RanksDisagree, Refused
from inagg_link.base import Batch
from inagg_link.signals import Deferred
from inagg_link.udp import UdpLink
from inagg_wire.errors import Reason
from inagg_wire.formats import job_format
from inagg_wire.scale import FloatType

from .rig import LANES, PATIENCE_S, Array, Rank, World, as_it_is, either_loop, needs_port, portless, values

pytestmark = needs_port

LARGE = 150 * LANES + 7


def until_it_waits(world: World, rank: int) -> None:
    """Until the switch has something of ``rank``, who then waits for the others."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not world.switches[0].aggregator.counters().jobs[7].contributions[rank]:
        assert time.monotonic() < give_up_at
        time.sleep(0.001)


def has_done(rank: Rank, operations: int) -> bool:
    return len(rank.done) >= operations


def on_a_thread(call: Any) -> None:
    """Call it; it must return within reasonable time."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it does not return"


# --- other work ---


def test_what_is_posted_while_the_loop_waits_is_done_at_once(stack: ExitStack, runs: list[int], patient: None) -> None:
    world, done = World(stack), threading.Event()
    world.ranks[0].submit(values(0, LARGE))
    until_it_waits(world, 0)
    assert runs
    world.ranks[0].transport.post(done.set)
    assert done.wait(PATIENCE_S)


def test_what_is_posted_all_the_time_keeps_no_sum_from_coming(stack: ExitStack, runs: list[int]) -> None:
    world, served = World(stack), []
    tensors = [values(rank, 40 * LARGE) for rank in range(2)]
    for rank, tensor in zip(world.ranks, tensors, strict=True):
        rank.submit(tensor)
    posted = 0
    while not all(rank.done for rank in world.ranks):
        for rank in world.ranks:
            rank.transport.post(lambda: served.append(1))
            posted += 1
        time.sleep(0.0005)
    world.wait(1)
    for rank in world.ranks:
        rank.transport.close()
    assert len(served) == posted
    assert tensors[0].tobytes() == tensors[1].tobytes()
    assert runs


def test_tensors_that_are_submitted_while_others_stream_are_summed_after_them(stack: ExitStack) -> None:
    world = World(stack)
    tensors = [[values(rank, 1 + 997 * number) for number in range(30)] for rank in range(2)]
    for number in range(30):
        for rank, mine in zip(world.ranks, tensors, strict=True):
            rank.submit(mine[number])
        time.sleep(0.0003 * (number % 4))
    world.wait(30)
    for rank in world.ranks:
        assert [operation.request.values.size for operation in rank.done] == [1 + 997 * number for number in range(30)]
    assert [a.tobytes() for a in tensors[0]] == [b.tobytes() for b in tensors[1]]


@either_loop
def test_datagrams_of_strangers_change_nothing(stack: ExitStack, wrap: Any) -> None:
    world, stranger, stop = World(stack, wrap=wrap), stack.enter_context(UdpLink()), threading.Event()
    noise = np.zeros(10 * 88, np.uint8)

    def send() -> None:
        while not stop.is_set():
            for rank in world.ranks:
                stranger.send(Batch(noise, 88, rank.link.address))
            time.sleep(0.0002)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        arrays = [[values(rank, 20 * LARGE)] for rank in range(2)]
        sums = world.sum(arrays, [FloatType.FLOAT32])
    finally:
        stop.set()
        thread.join()
    assert sums == World(stack, wrap=portless).sum(arrays, [FloatType.FLOAT32])
    for rank in world.ranks:
        rank.transport.close()
        assert rank.counters.foreign > 0


def test_datagrams_of_the_switch_that_are_no_results_change_nothing(stack: ExitStack, runs: list[int]) -> None:
    """Of several sizes, which the loop takes from the same buffer as results."""
    world = World(stack)
    tensors = [values(rank, 20 * LARGE) for rank in range(2)]
    for rank, tensor in zip(world.ranks, tensors, strict=True):
        rank.submit(tensor)
    # The socket of the switch is its thread's; but to send one datagram is one system call.
    working, address = world.switches[0].link._sendto, world.ranks[0].link.address
    while not all(rank.done for rank in world.ranks):
        for size in (1, 24, 87, 88, 200):
            working(b"\0" * min(size, 88), address)
    world.wait(1)
    assert tensors[0].tobytes() == tensors[1].tobytes()
    world.ranks[0].transport.close()
    assert world.ranks[0].counters.foreign > 0
    assert runs


def test_a_caller_may_do_the_work_and_then_needs_no_other_thread(stack: ExitStack, runs: list[int]) -> None:
    world, tensors = World(stack), [[values(rank, LARGE) for _ in range(3)] for rank in range(2)]

    def drive(rank: Rank, mine: list[Array]) -> None:
        for number, tensor in enumerate(mine, 1):
            if rank.transport.take(partial(rank._submit, tensor, tensor, FloatType.FLOAT32, 1, None)):
                rank.transport.drive(partial(has_done, rank, number), Deferred())
            rank.wait(number)

    threads = [threading.Thread(target=drive, args=both) for both in zip(world.ranks, tensors, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [len(rank.done) for rank in world.ranks] == [3, 3]
    expected = World(stack, wrap=portless).sum(
        [[values(rank, LARGE) for _ in range(3)] for rank in range(2)], [FloatType.FLOAT32] * 3
    )
    assert [tensor.tobytes() for tensor in tensors[0]] == expected
    assert runs


# --- errors ---


@either_loop
@pytest.mark.parametrize("after", [0, 2])
def test_ranks_that_disagree_are_told_so(stack: ExitStack, wrap: Any, after: int) -> None:
    """About the first tensor, or in the middle of many."""
    world = World(stack, wrap=wrap)
    for number, rank in enumerate(world.ranks):
        for _ in range(after):
            rank.submit(values(number, LARGE))
        rank.submit(values(number, LARGE + number))
    for rank in world.ranks:
        error = rank.failure()
        assert isinstance(error, RanksDisagree)
        assert "another rank reduces something else" in str(error)
        assert len(rank.done) <= after


@either_loop
def test_scales_against_values_are_a_disagreement(stack: ExitStack, wrap: Any) -> None:
    """Blocks too small for a signature: what differs then is what the switch says."""
    world = World(stack, wrap=wrap, lanes=8)
    world.ranks[0].submit(values(0, 8 * 100))
    world.ranks[1].submit_max(np.zeros(8000, np.uint8), np.zeros(8000, np.uint8))
    give_up_at = time.monotonic() + PATIENCE_S
    while not any(rank.wrong for rank in world.ranks):  # whoever is later: the slot is the other's
        assert time.monotonic() < give_up_at
        time.sleep(0.001)
    assert isinstance(next(rank for rank in world.ranks if rank.wrong).failure(), RanksDisagree)


@either_loop
@pytest.mark.parametrize(
    ("bound", "reason"),
    [
        pytest.param({"token": 5}, Reason.WRONG_TOKEN, id="token"),
        pytest.param({"format": job_format("dith8")}, Reason.WRONG_FORMAT, id="format"),  # of values, in the loop
        pytest.param({"format": job_format("nat4")}, Reason.WRONG_LANES, id="lanes"),
    ],
)
def test_what_the_switch_refuses_is_an_error(
    stack: ExitStack, wrap: Any, bound: dict[str, Any], reason: Reason
) -> None:
    world = World(stack, 1, wrap=wrap, **bound)
    try:
        world.ranks[0].submit(values(0, LARGE))
        error = world.ranks[0].failure()
    finally:
        world.ranks[0].transport.close()
    assert isinstance(error, Refused)
    assert error.reason is reason


@pytest.mark.parametrize("block", [0, 20])
def test_values_that_outgrow_their_scale_meanwhile_are_an_error(stack: ExitStack, patient: None, block: int) -> None:
    """Where they are read again, as for nat4."""
    errors = []
    for wrap in (as_it_is, portless):
        world, mine = World(stack, wrap=wrap, fmt="nat4"), values(0, LARGE)
        world.ranks[0].submit(mine)
        until_it_waits(world, 0)  # the scales of its first blocks are on their way
        mine[block * LANES + 3] = 1e30
        world.ranks[1].submit(values(1, LARGE))
        error = world.ranks[0].failure()
        errors.append((type(error), str(error)))
    assert errors[0] == errors[1]
    assert f"values of block {block} exceed the scale" in errors[0][1]


# --- the end ---


def test_closing_ends_a_loop_that_waits(stack: ExitStack, runs: list[int], patient: None) -> None:
    world = World(stack)
    world.ranks[0].submit(values(0, LARGE))
    until_it_waits(world, 0)
    on_a_thread(world.ranks[0].transport.close)
    assert runs
    assert not world.ranks[0].done


def test_closing_ends_a_loop_that_streams(stack: ExitStack, runs: list[int]) -> None:
    world = World(stack)
    for number, rank in enumerate(world.ranks):
        for _ in range(20):
            rank.submit(values(number, 100 * LARGE))
    for rank in world.ranks:
        rank.wait(1)
    for rank in world.ranks:
        on_a_thread(rank.transport.close)
    assert runs
    assert min(len(rank.done) for rank in world.ranks) < 20


def test_closing_ends_the_loop_of_a_caller(stack: ExitStack, runs: list[int], patient: None) -> None:
    world, mine = World(stack), values(0, LARGE)
    rank = world.ranks[0]

    def drive() -> None:
        if rank.transport.take(lambda: rank._submit(mine, mine, FloatType.FLOAT32, 1, None)):
            rank.transport.drive(lambda: bool(rank.done), Deferred())

    thread = threading.Thread(target=drive, daemon=True)
    thread.start()
    until_it_waits(world, 0)
    on_a_thread(rank.transport.close)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert runs
