"""Operations whose values are on devices, over a bad network: the bits are those of the CPU, whatever comes when."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from tests.host.io.fake_device import FakeDevice, Operand, Watched, compile_for
from tests.host.sim.staged import StagedSimulation, check_staged_run

from inagg_host.codec import Job
from inagg_host.core import Engine, Epoch, Outgoing, ShardLease
from inagg_host.core.operation import Request
from inagg_host.core.recovery import RTO_FIRST_S
from inagg_host.core.send import POLL_LEAST_S, POLL_MOST_S, POLL_PART
from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.binding import Binding
from inagg_wire.formats import job_format
from inagg_wire.scale import FloatType
from inagg_wire.slots import Lease

RUNS, BATCH = 320, 40
BLOCKS = 80
"""More than in other runs: so that operations have several chunks."""


@pytest.mark.parametrize("first", range(0, RUNS, BATCH))
def test_runs_on_fake_devices_are_exact(first: int) -> None:
    for seed in range(first, first + BATCH):
        check_staged_run(seed, BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(RUNS, 4000, 160))
def test_more_runs_on_fake_devices_are_exact(first: int) -> None:
    for seed in range(first, first + 160):
        check_staged_run(seed, BLOCKS)


def _chunks(run: StagedSimulation) -> int:
    """The most of an operation."""
    blocks = max(tensor.value_blocks(run.world.lanes) for tensor in run.world.tensors)
    return -(-blocks // run.ranks[0].engine.chunk)


def test_the_runs_contain_what_can_go_wrong_with_devices() -> None:
    runs = [check_staged_run(seed, BLOCKS) for seed in range(0, RUNS, 20)]  # a world each
    assert any(device.tied for run in runs for device in run.devices)
    assert any(tensor.in_place for run in runs for tensor in run.world.tensors)
    assert any(copy.memory.out.size < copy.there.size for run in runs for copy in run.copies)  # of reduce-scatters
    several = [run for run in runs if _chunks(run) > 1]
    assert any(_chunks(run) > 3 for run in several)
    assert any(tensor.scatters for run in several for tensor in run.world.tensors)
    assert any(run.world.format.refined for run in several)
    assert any(run.world.shards > 1 for run in several)


# --- how soon an engine looks again for what is on its way from a device ---

RANK = ("127.0.0.1", 1)


@dataclass
class Alone:
    """A job of one rank, with an operation that waits for its device."""

    engine: Engine
    device: FakeDevice
    switch: Aggregator

    def advance(self) -> None:
        """The device does what it can."""
        while self.device.advance():
            pass

    def answer(self, sent: Outgoing, now: float) -> None:
        """What the switch says to it comes back."""
        for send in self.switch.receive(sent.data.copy(), sent.size, RANK, now):
            self.engine.on_batch(0, send.data, send.size, now)


@pytest.fixture
def alone() -> Alone:
    """As it is when the operation has been submitted."""
    fmt, lease = job_format("nat8"), Lease(0, 16)
    engine = Engine(Epoch(1, 1, 1, fmt, 1, 0, 64, 0, (ShardLease(("127.0.0.1", 2), lease),)))
    switch = Aggregator(lease.slots, 64, 1)
    switch.bind(Binding(1, 1, fmt, 64, lease, 0, (RANK,)))
    job = Job(fmt, 1, 0, 64, 0, FloatType.FLOAT32)
    compile_for(job)
    values, device = np.ones(128, np.float32), FakeDevice(random.Random(0))
    board = device.board(job, 2, engine.chunk)
    staging = Watched(board, engine.chunk, lambda: None)
    device.launch(Operand(values, values), job, board, staging, engine.chunk)
    engine.submit(Request(values, values, FloatType.FLOAT32, codec=staging), 0.0)
    return Alone(engine, device, switch)


def test_an_engine_looks_for_values_again_at_once_and_then_less_and_less_often(alone: Alone) -> None:
    for waited_s, after_s in ((0.0, POLL_LEAST_S), (0.002, 0.002 / POLL_PART), (1.0, POLL_MOST_S)):
        now = 5.0 + waited_s
        assert alone.engine.next_batch(now) == []
        assert alone.engine.deadline == pytest.approx(now + after_s, rel=0, abs=1e-9)


def test_an_engine_does_not_look_again_when_all_that_it_waits_for_has_come(alone: Alone) -> None:
    assert alone.engine.next_batch(5.0) == []
    alone.advance()
    assert len(alone.engine.next_batch(6.0)) == 1
    assert alone.engine.next_batch(6.0) == []
    assert alone.engine.deadline == pytest.approx(6.0 + RTO_FIRST_S)


def test_a_wait_for_codes_begins_anew(alone: Alone) -> None:
    alone.device.held = {"down"}
    assert alone.engine.next_batch(5.0) == []
    assert alone.engine.next_batch(6.0) == []
    alone.advance()
    (scales,) = alone.engine.next_batch(7.0)
    alone.answer(scales, 7.0)
    assert alone.engine.next_batch(8.0) == []
    assert alone.engine.deadline == pytest.approx(8.0 + POLL_LEAST_S, rel=0, abs=1e-9)


def test_an_engine_that_waits_for_others_alone_does_not_look(alone: Alone) -> None:
    alone.advance()
    (scales,) = alone.engine.next_batch(7.0)
    alone.answer(scales, 7.0)
    alone.advance()
    (values,) = alone.engine.next_batch(7.0)
    assert alone.engine.next_batch(7.0) == []
    assert alone.engine.deadline is not None
    assert alone.engine.deadline > 7.0 + POLL_MOST_S
    alone.answer(values, 7.0)
    assert alone.engine.next_batch(7.0) == []
    assert alone.engine.deadline is None
