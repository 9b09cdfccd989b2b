"""The transport's thread, sockets and all, with values on a fake device that does things late or not at all."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from inagg_host.codec import Job, staged
from inagg_host.codec.ordered import load_word, store_word
from inagg_host.core.operation import Request
from inagg_link.base import Link
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_wire.formats import job_format
from inagg_wire.scale import FloatType

from .fake_device import FakeDevice, Operand, Watched, compile_for
from .rig import LANES, PATIENCE_S, Rank, World, Wrap, as_it_is, either_loop, portless, values

ELEMENTS = 400 * LANES - 5
FORMATS = ("nat8", "nat4", "tern", "dith8", "fix32")
TYPES = (FloatType.FLOAT32, FloatType.FLOAT64, FloatType.BFLOAT16)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    """On a new machine that takes longer than a test waits."""
    staged.compile_kernels()
    for fmt in FORMATS:
        for float_type in TYPES:
            compile_for(Job(job_format(fmt), 2, 0, LANES, 0, float_type))


class Staged:
    """A rank's device, and what has been given to both. The device works on a thread of its own."""

    def __init__(self, rank: Rank, seed: int, stack: ExitStack, ties: float = 0.0) -> None:
        self.rank, self.device = rank, FakeDevice(random.Random(seed), ties)
        self.wrong: list[BaseException] = []
        self._end = False
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()
        stack.callback(self.close)

    def _work(self) -> None:
        try:
            while not self._end:
                if not self.device.advance():
                    time.sleep(1e-4)
        except BaseException as error:
            self.wrong.append(error)

    def job(self, float_type: FloatType = FloatType.FLOAT32) -> Job:
        e = self.rank.engine.epoch
        return Job(e.format, e.workers, e.rank, e.lanes, e.seed, float_type)

    def launch(
        self, array: Any, float_type: FloatType = FloatType.FLOAT32, divisor: int = 1, chunk: int | None = None
    ) -> Watched:
        """Give it to the device; ``chunk``: of another engine."""
        job = self.job(float_type)
        chunk = self.rank.engine.chunk if chunk is None else chunk
        board = self.device.board(job, job.blocks(array.size), chunk)
        staging = Watched(board, chunk, self.rank.transport.wake)
        self.device.launch(Operand(array, array), job, board, staging, chunk, divisor)
        return staging

    def post(
        self, staging: Watched, elements: int, float_type: FloatType = FloatType.FLOAT32, divisor: int = 1
    ) -> None:
        """Give it to the engine."""
        nowhere = np.broadcast_to(np.zeros(1, float_type.dtype), elements)

        def submit() -> None:
            self.rank.engine.submit(Request(nowhere, nowhere, float_type, divisor, codec=staging), 0.0)

        self.rank.transport.submit(submit, awaited=True)

    def submit(self, array: Any, float_type: FloatType = FloatType.FLOAT32, divisor: int = 1) -> Watched:
        """Sum in place."""
        staging = self.launch(array, float_type, divisor)
        self.post(staging, array.size, float_type, divisor)
        return staging

    def settle(self) -> None:
        """Wait until the device has done all that it was given."""
        wait_for(lambda: bool(self.wrong) or not self.device.busy)
        assert self.wrong == []

    def close(self) -> None:
        self._end = True
        self._worker.join(PATIENCE_S)
        assert self.wrong == []


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it takes long"
        time.sleep(1e-3)


def devices(world: World, stack: ExitStack, ties: float = 0.0) -> list[Staged]:
    return [Staged(rank, number, stack, ties) for number, rank in enumerate(world.ranks)]


def lossy(rank: int, link: Link) -> Link:
    return FaultLink(link, Faults(drop=0.05), seed=rank)


# --- sums ---


@pytest.mark.parametrize("wrap", [as_it_is, portless, lossy], ids=["compiled", "python", "lossy"])
@pytest.mark.parametrize("fmt", FORMATS)
def test_sums_have_the_bits_of_those_of_the_cpu(stack: ExitStack, fmt: str, wrap: Wrap) -> None:
    arrays = [[values(rank, ELEMENTS + i, t) for i, t in enumerate(TYPES)] for rank in range(2)]
    with ExitStack() as first:
        expected = World(first, fmt=fmt, shards=2).sum(arrays, TYPES, divisor=2)
    world = World(stack, fmt=fmt, shards=2, wrap=wrap)
    assert world.ranks[0].engine.chunk * 2 < ELEMENTS // LANES, "of several chunks"
    both = devices(world, stack, ties=0.02)
    for i, float_type in enumerate(TYPES):
        for one, of_rank in zip(both, arrays, strict=True):
            one.submit(of_rank[i], float_type, divisor=2)
    world.wait(len(TYPES))
    for one, of_rank in zip(both, arrays, strict=True):
        one.settle()
        assert one.device.tied
        assert [array.tobytes() for array in of_rank] == expected


def test_only_who_submits_asks_the_device_for_anything(stack: ExitStack) -> None:
    world = World(stack)
    both = devices(world, stack)
    for number, one in enumerate(both):
        one.submit(values(number, ELEMENTS))
    world.wait(1)
    for one in both:
        one.settle()
        assert one.device.asked_by == {threading.current_thread().name}


# --- a device that stands still ---


@either_loop
@pytest.mark.parametrize("stream", ["measure", "down"])
def test_the_thread_of_the_socket_works_on_while_the_device_stands_still(
    stack: ExitStack, stream: str, wrap: Wrap
) -> None:
    """It finishes what was submitted before, answers posts, and goes on when the device does."""
    world = World(stack, wrap=wrap)
    both = devices(world, stack)
    for one in both:
        one.device.held = {stream}
    mine, plain = ([values(rank, ELEMENTS) for rank in range(2)] for _ in range(2))
    for rank, array in zip(world.ranks, plain, strict=True):
        rank.submit(array)
    for one, array in zip(both, mine, strict=True):
        one.submit(array)
    world.wait(1)
    assert plain[0].tobytes() == plain[1].tobytes()
    for rank in world.ranks:
        answered = threading.Event()
        rank.transport.post(answered.set)
        assert answered.wait(PATIENCE_S), "the thread of the socket waits"
    assert all(len(rank.done) == 1 for rank in world.ranks)
    for one in both:
        one.device.held = set()
    world.wait(2)
    for one in both:
        one.settle()
    assert mine[0].tobytes() == mine[1].tobytes()


def test_results_wait_for_a_device_that_is_late(stack: ExitStack) -> None:
    """The engine is done, and so is what comes after it."""
    world = World(stack)
    both = devices(world, stack)
    mine = [[values(rank, ELEMENTS + i) for i in range(2)] for rank in range(2)]
    with ExitStack() as first:
        expected = World(first).sum(mine, [FloatType.FLOAT32] * 2)
    for one, of_rank in zip(both, mine, strict=True):
        one.device.held = {"up"}
        for array in of_rank:
            one.submit(array)
    world.wait(2)
    for one, of_rank in zip(both, mine, strict=True):
        one.device.held = set()
        one.settle()
        assert [array.tobytes() for array in of_rank] == expected


# --- what goes wrong ---


@either_loop
def test_a_device_that_fails_ends_the_job_with_what_it_said(stack: ExitStack, wrap: Wrap) -> None:
    world = World(stack, wrap=wrap)
    one = Staged(world.ranks[0], 0, stack)
    one.device.held = {"measure"}
    staging = one.submit(values(0, ELEMENTS))
    staging.fail(RuntimeError("out of order"))
    assert str(world.ranks[0].failure()) == "the device of a tensor failed: out of order"
    world.ranks[0].transport.close()
    staging.release()
    one.device.held = set()
    one.settle()


def test_a_device_that_fails_before_it_has_encoded_ends_the_job_too(stack: ExitStack) -> None:
    world = World(stack)
    both = devices(world, stack)
    both[0].device.held = {"down"}
    stagings = [one.submit(values(number, ELEMENTS)) for number, one in enumerate(both)]
    wait_for(lambda: load_word(stagings[0].board.agreed.ctypes.data) == 1)
    stagings[0].fail(RuntimeError("out of order"))
    assert str(world.ranks[0].failure()) == "the device of a tensor failed: out of order"
    both[0].device.held = set()
    for one, staging in zip(both, stagings, strict=True):
        one.rank.transport.close()
        staging.release()
        one.settle()


def test_a_device_whose_rank_waits_for_others_runs_out_when_it_is_released(stack: ExitStack) -> None:
    world = World(stack)
    one, array = Staged(world.ranks[0], 0, stack), values(0, ELEMENTS)  # the other rank never comes
    staging = one.submit(array)
    wait_for(lambda: load_word(staging.board.measured.ctypes.data) == staging.board.magnitudes.size)
    time.sleep(0.01)
    assert one.device.busy
    one.rank.transport.close()
    staging.release()
    one.settle()
    assert np.isnan(array).all()


def test_what_has_not_come_to_the_engine_can_be_released(stack: ExitStack) -> None:
    world = World(stack)
    one, array = Staged(world.ranks[0], 0, stack), values(0, ELEMENTS)
    one.launch(array).release()
    one.settle()
    assert np.isnan(array).all()


def test_what_is_released_in_the_middle_runs_out(stack: ExitStack) -> None:
    """And sums that had not come by then are NaN."""
    world = World(stack)
    both = devices(world, stack)
    mine = [values(number, ELEMENTS) for number in range(2)]
    stagings = [one.submit(array) for one, array in zip(both, mine, strict=True)]
    last = stagings[0].board.complete.size - 1
    wait_for(lambda: load_word(stagings[0].board.complete.ctypes.data) == 1 or bool(both[0].wrong))
    for one, staging, array in zip(both, stagings, mine, strict=True):
        one.rank.transport.close()
        missing = load_word(staging.board.complete[last:].ctypes.data) == 0
        staging.release()
        one.settle()
        assert not missing or np.isnan(array[last * one.rank.engine.chunk * LANES :]).all()


def test_values_that_change_after_the_device_has_looked_are_told(stack: ExitStack) -> None:
    world = World(stack)
    both, arrays = devices(world, stack), [values(rank, ELEMENTS) for rank in range(2)]
    both[0].device.held = {"down"}
    stagings = [one.submit(array) for one, array in zip(both, arrays, strict=True)]
    wait_for(lambda: load_word(stagings[0].board.agreed.ctypes.data) == 1)
    block = 5
    arrays[0][block * LANES : (block + 1) * LANES] *= 1024
    both[0].device.held = set()
    assert f"values of block {block} exceed the scale that was agreed on" in str(world.ranks[0].failure())
    for one, staging in zip(both, stagings, strict=True):
        one.rank.transport.close()
        staging.release()
        one.settle()


def test_a_tie_that_the_device_has_not_said_the_place_of_is_told(stack: ExitStack) -> None:
    world = World(stack)
    both, arrays = devices(world, stack, ties=1.0), [values(rank, ELEMENTS) for rank in range(2)]
    both[0].device.held = {"down"}
    stagings = [one.submit(array) for one, array in zip(both, arrays, strict=True)]
    board = stagings[0].board
    wait_for(lambda: load_word(board.agreed.ctypes.data) == 1)
    board.flags[:] = staged.TIE
    store_word(board.coded.ctypes.data, 1)
    assert "the device of a tensor failed: more than 64 lanes" in str(world.ranks[0].failure())
    both[0].device.held = set()
    for one, staging in zip(both, stagings, strict=True):
        one.rank.transport.close()
        staging.release()
        one.settle()


def test_a_device_that_was_told_of_other_chunks_is_refused(stack: ExitStack) -> None:
    world = World(stack)
    one = Staged(world.ranks[0], 0, stack)
    chunk = one.rank.engine.chunk
    staging = one.launch(values(0, ELEMENTS), chunk=chunk + 1)
    with pytest.raises(RuntimeError, match=f"a chunk has {chunk} blocks, the device was told of {chunk + 1}"):
        one.post(staging, ELEMENTS)
    assert one.rank.engine.idle
    staging.release()
    one.settle()
