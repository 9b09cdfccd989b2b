"""Runs in which all values are on devices: each rank has a fake one, and a feeder, whose turns come whenever they come.

The oracle is that of the other runs. Sums appear when the device has written them, so they are looked at at the end.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.host.io.fake_device import FakeDevice, Operand

from inagg_host.codec.bell import Bell
from inagg_host.codec.staging import Staging
from inagg_host.core import Operation
from inagg_host.io.feeder import Feeder
from inagg_host.io.flow import Coded

from .memory import CANARY, PAD_BYTES, Memory
from .runs import BLOCKS, check_bounds, make_run
from .simulation import Outcome, Rank, Simulation
from .world import Tensor

SLOTS = 7
"""A batch has all blocks of a world, up to 14 and a little more, which are in runs of three: see `Device.slots`."""
STEP_S = 0.0002
"""What takes time on a device takes up to so long."""


class DeviceMemory(Memory):
    """Memory that the device alone writes, after the engine is done."""

    def wrote(self, block: int) -> None:
        """Not yet."""

    def finish(self) -> None:
        """The engine has all results."""
        assert not self.finished
        self.finished = True

    def check(self) -> None:
        """The device has written all, and nothing beside."""
        whole, guard = self._out.tobytes(), bytes([CANARY]) * PAD_BYTES
        assert whole[:PAD_BYTES] == guard == whole[-PAD_BYTES:], "written beside the memory"
        assert self.out.tobytes() == self._sums, "not the sums"
        assert self.values[self._kept].tobytes() == self._given, "the values were changed"


class StagedSimulation(Simulation):
    """As `Simulation`, on fake devices."""

    of_memory = DeviceMemory

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.bells = [Bell() for _ in self.ranks]
        self.devices = [
            FakeDevice(random.Random(self.rng.random()), bell.ring, ties=self.rng.choice((0.0, 0.2)), slot_count=SLOTS)
            for bell in self.bells
        ]
        self.feeders = [Feeder(device) for device in self.devices]
        self.arrived = [0 for _ in self.ranks]
        self.invalid = 0
        self._working = [False for _ in self.ranks]

    def run(self) -> Outcome:
        """As `Simulation.run`; then the devices are at rest, too."""
        try:
            outcome = super().run()
        finally:
            for bell in self.bells:
                bell.close()
        assert self.arrived == [len(self.world.tensors)] * len(self.ranks)
        assert all(feeder.idle for feeder in self.feeders)
        assert all(len(feeder.slots) == len(feeder.device.slots) for feeder in self.feeders)
        assert all(len(feeder.shelves) == feeder.device.shelves for feeder in self.feeders)
        assert self.invalid == 0
        return outcome

    def _begin(self, rank: Rank, tensor: Tensor, memory: Memory) -> Operation:
        number, engine, lanes = rank.number, rank.engine, self.world.lanes
        computed_s = self.now + self.rng.random() * self.rng.choice((0.0, 0.001))
        operand = Operand(memory.values, memory.out, tensor.pieces, computed=lambda: self.now >= computed_s)
        staging = Staging(tensor.value_blocks(lanes), self.bells[number], lambda: self._soon(5e-5, self._pump, rank))

        def arrived(error: Exception | None) -> None:
            assert error is None
            self.arrived[number] += 1

        def counted(invalid: int) -> None:
            self.invalid += invalid

        self.feeders[number].submit(Coded(staging, operand, lanes, tensor.float_type, arrived, counted))
        self.bells[number].ring()
        nowhere = np.broadcast_to(np.zeros(1, tensor.float_type.dtype), tensor.elements)
        out = nowhere[: tensor.elements // tensor.pieces]
        return engine.submit(
            nowhere, out, tensor.float_type, self.now, tensor.divisor, codec=staging, scatter=tensor.scatters
        )

    def _pump(self, rank: Rank) -> None:
        super()._pump(rank)
        self._hear(rank.number)

    def _to_rank(self, rank: Rank, *arguments: Any) -> None:
        super()._to_rank(rank, *arguments)
        self._hear(rank.number)

    def _hear(self, number: int) -> None:
        """If the bell has rung, the feeder takes its turns soon."""
        try:
            os.eventfd_read(self.bells[number].descriptor)
        except BlockingIOError:
            return
        self._soon(STEP_S, self._feed, number)

    def _feed(self, number: int) -> None:
        while self.feeders[number].turn():
            pass
        if not self._working[number]:
            self._working[number] = True
            self._soon(STEP_S, self._work, number)
        self._hear(number)

    def _work(self, number: int) -> None:
        device = self.devices[number]
        device.advance()
        self._hear(number)
        self._working[number] = device.busy
        if device.busy:
            self._soon(STEP_S, self._work, number)


def check_staged_run(seed: int, blocks: int = BLOCKS, trace: Callable[[str], None] | None = None) -> StagedSimulation:
    """Run ``seed`` of `runs` on devices, and check all that must hold of it."""
    plain = make_run(seed, blocks)
    run = StagedSimulation(plain.world, plain.up.weather, seed, plain.pace, plain.restarts, trace)
    check_bounds(run, run.run())
    return run
