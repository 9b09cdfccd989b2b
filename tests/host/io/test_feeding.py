"""The transport's thread, sockets and all, with values on a fake device that does things late or not at all."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from inagg_host.codec import Job, staged, staging
from inagg_host.codec.bell import Bell
from inagg_host.codec.staging import Arriving, Staging
from inagg_host.io.feeder import Feeder, FeederThread
from inagg_host.io.flow import Coded, Copied
from inagg_link import FaultLink, Faults, Link
from inagg_wire.formats import job_format
from inagg_wire.scale import FloatType

from .fake_device import FakeDevice, FakeMark, Operand, compile_for
from .rig import LANES, PATIENCE_S, Rank, World, portless, values

ELEMENTS = 400 * LANES - 5
SLOTS = 10
"""A slot for a run whose results come, and for all that a batch of each of two shards may have: 128 blocks."""


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "RUN_BLOCKS_MOST", 16)
    staged.compile_kernels()
    compile_for(Job(job_format("nat8"), 2, 0, LANES, 0, FloatType.FLOAT32))


class Fed:
    """A rank's device and its feeder. The device works, on a thread of its own, while it may."""

    def __init__(self, rank: Rank, seed: int, stack: ExitStack) -> None:
        self.rank, self.bell = rank, Bell()
        self.device = FakeDevice(random.Random(seed), self.bell.ring, ties=0.02, slot_count=SLOTS)
        self.thread = FeederThread(Feeder(self.device), self.bell)
        self.may, self._end = threading.Event(), False
        self.may.set()
        self.errors: list[Exception | None] = []
        self.arrived = threading.Semaphore(0)
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()
        stack.callback(self.close)

    def _work(self) -> None:
        while not self._end:
            self.may.wait()
            if not self.device.advance():
                time.sleep(1e-4)

    def submit(self, array: Any, float_type: FloatType = FloatType.FLOAT32, divisor: int = 1) -> Coded:
        blocks = -(-array.size // LANES)
        staging = Staging(blocks, self.bell, self.rank.transport.wake)
        flow = Coded(staging, Operand(array, array), LANES, float_type, self._arrive, lambda invalid: None)
        nowhere = np.broadcast_to(np.zeros(1, array.dtype), array.size)

        def submit() -> None:
            self.rank.engine.submit(nowhere, nowhere, float_type, 0.0, divisor, codec=staging)

        self.rank.transport.post(submit)
        self.thread.submit(flow)
        return flow

    def _arrive(self, error: Exception | None) -> None:
        self.errors.append(error)
        self.arrived.release()

    def wait(self) -> None:
        """For the sums of one more operation."""
        assert self.arrived.acquire(timeout=PATIENCE_S), "no sums"

    def close(self) -> None:
        self.may.set()
        self.thread.close()
        self._end = True
        self._worker.join(PATIENCE_S)


def settled(fed: Fed) -> None:
    """The device has done what it was given."""
    deadline_s = time.monotonic() + PATIENCE_S
    while fed.device.busy:
        assert time.monotonic() < deadline_s
        time.sleep(1e-3)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def lossy(rank: int, link: Link) -> Link:
    return FaultLink(link, Faults(drop=0.05), seed=rank)


@pytest.mark.parametrize("wrap", [None, portless, lossy], ids=["compiled", "python", "lossy"])
@pytest.mark.parametrize("fmt", ["nat8", "dith8"])
def test_sums_have_the_bits_of_those_of_the_cpu(stack: ExitStack, fmt: str, wrap: Any) -> None:
    types = [FloatType.FLOAT32, FloatType.FLOAT64]
    for float_type in types:
        compile_for(Job(job_format(fmt), 2, 0, LANES, 0, float_type))
    arrays = [[values(rank, ELEMENTS + i, t) for i, t in enumerate(types)] for rank in range(2)]
    options = {} if wrap is None else {"wrap": wrap}
    with ExitStack() as first:
        expected = World(first, fmt=fmt, shards=2).sum(arrays, types, divisor=2)
    world = World(stack, fmt=fmt, shards=2, **options)
    feds = [Fed(rank, number, stack) for number, rank in enumerate(world.ranks)]
    for i, float_type in enumerate(types):
        for fed, of_rank in zip(feds, arrays, strict=True):
            fed.submit(of_rank[i], float_type, divisor=2)
    for fed, of_rank in zip(feds, arrays, strict=True):
        for _ in types:
            fed.wait()
        settled(fed)
        assert [array.tobytes() for array in of_rank] == expected
    assert all(error is None for fed in feds for error in fed.errors)


def test_no_thread_but_the_feeders_asks_the_device_for_anything(stack: ExitStack) -> None:
    world = World(stack)
    feds = [Fed(rank, number, stack) for number, rank in enumerate(world.ranks)]
    for number, fed in enumerate(feds):
        fed.submit(values(number, ELEMENTS))
    for fed in feds:
        fed.wait()
        settled(fed)
        assert fed.device.asked_by == {"inagg-feeder"}


@pytest.mark.parametrize("wrap", [None, portless], ids=["compiled", "python"])
def test_the_thread_of_the_socket_works_on_while_the_device_stands_still(stack: ExitStack, wrap: Any) -> None:
    """It finishes what was submitted before, answers posts, and goes on when the device does."""
    world = World(stack, **({} if wrap is None else {"wrap": wrap}))
    feds = [Fed(rank, number, stack) for number, rank in enumerate(world.ranks)]
    for fed in feds:
        fed.may.clear()
    mine = [[values(rank, ELEMENTS)] for rank in range(2)]
    plain = [array[0].copy() for array in mine]
    for rank, array in zip(world.ranks, plain, strict=True):
        rank.submit(array)
    for fed, of_rank in zip(feds, mine, strict=True):
        fed.submit(of_rank[0])
    world.wait(1)
    assert plain[0].tobytes() == plain[1].tobytes()
    for rank in world.ranks:
        answered = threading.Event()
        rank.transport.post(answered.set)
        assert answered.wait(PATIENCE_S), "the thread of the socket waits"
    assert all(len(rank.done) == 1 for rank in world.ranks)
    for fed in feds:
        fed.may.set()
    for fed in feds:
        fed.wait()
        settled(fed)
    assert mine[0][0].tobytes() == mine[1][0].tobytes()


def test_a_device_that_fails_ends_the_job_with_what_it_said(stack: ExitStack) -> None:
    world = World(stack)
    feds = [Fed(rank, number, stack) for number, rank in enumerate(world.ranks)]
    feds[0].device.broken = RuntimeError("out of order")
    flow = feds[0].submit(values(0, ELEMENTS))
    feds[0].wait()
    assert [str(error) for error in feds[0].errors] == ["out of order"]
    failure = world.ranks[0].failure()
    assert "the codec of a tensor failed: out of order" in str(failure)
    feds[0].thread.abandon(flow, failure)


def test_what_is_abandoned_ends_with_the_reason_and_gives_its_memory_back(stack: ExitStack) -> None:
    world = World(stack)
    fed = Fed(world.ranks[0], 0, stack)  # the other rank never comes
    flow = fed.submit(values(0, ELEMENTS))
    deadline_s = time.monotonic() + PATIENCE_S
    while not fed.device.streams["look"] and time.monotonic() < deadline_s and not flow.staging.record["scaled"][0]:
        time.sleep(1e-3)
    world.ranks[0].transport.close()
    fed.thread.abandon(flow, RuntimeError("over"))
    fed.wait()
    assert [str(error) for error in fed.errors] == ["over"]
    settled(fed)


def test_a_copy_is_encoded_by_the_cpu_when_it_is_there(stack: ExitStack) -> None:
    world = World(stack)
    arrays = [values(rank, ELEMENTS) for rank in range(2)]
    with ExitStack() as first:
        expected = World(first).sum([[a] for a in arrays], [FloatType.FLOAT32])
    feds = [Fed(rank, number, stack) for number, rank in enumerate(world.ranks)]
    there = [np.full_like(array, 77.0) for array in arrays]
    marks = []
    for fed, rank, landing in zip(feds, world.ranks, there, strict=True):
        arriving, mark = Arriving(rank.transport.wake, lambda: None), FakeMark(fed.device)
        marks.append(mark)

        def submit(rank: Rank = rank, landing: Any = landing, arriving: Arriving = arriving) -> None:
            rank.engine.submit(landing, landing, FloatType.FLOAT32, 0.0, codec=arriving)

        rank.transport.post(submit)
        fed.thread.submit(Copied(arriving, mark, fed._arrive))
    time.sleep(0.05)
    for fed, mark, landing, array in zip(feds, marks, there, arrays, strict=True):
        landing[:] = array
        mark.came = True
        fed.bell.ring()
    world.wait(1)
    assert [landing.tobytes() for landing in there] == [expected[0]] * 2
