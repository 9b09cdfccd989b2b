"""Runs in which all values are on devices: each rank has a fake one, which does what it has to do whenever it likes.

Nobody wakes an engine when its device has written something: it looks again by its `deadline`. The oracle is that of
the other runs. Sums appear when the device has written them, so they are looked at at the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.host.io.fake_device import FakeDevice, Operand, Watched

from inagg_host.codec import Job
from inagg_host.core import Operation

from .memory import CANARY, PAD_BYTES, Memory
from .runs import BLOCKS, check_bounds, make_run
from .simulation import Outcome, Rank, Simulation
from .world import Tensor

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


def _nobody_wakes() -> None:
    raise AssertionError("a device has failed")


class StagedSimulation(Simulation):
    """As `Simulation`, on fake devices."""

    of_memory = DeviceMemory

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.devices = [
            FakeDevice(random.Random(self.rng.random()), ties=self.rng.choice((0.0, 0.2))) for _ in self.ranks
        ]
        self._working = [False for _ in self.ranks]

    def run(self) -> Outcome:
        """As `Simulation.run`; then the devices are at rest, too: they have all that they wait for."""
        outcome = super().run()
        for device in self.devices:
            assert not device.busy
            assert len(device.boards) == len(self.world.tensors)
            for board, tensor in zip(device.boards, self.world.tensors, strict=True):
                blocks = tensor.value_blocks(self.world.lanes)
                assert board.looked.tolist() == [blocks]
                for words in (board.agreed, board.coded, board.complete):
                    assert (words == 1).all()
        return outcome

    def _begin(self, rank: Rank, tensor: Tensor, memory: Memory) -> Operation:
        number, engine, world, device = rank.number, rank.engine, self.world, self.devices[rank.number]
        computed_s = self.now + self.rng.random() * self.rng.choice((0.0, 0.001))
        operand = Operand(
            memory.values, memory.out, tensor.pieces, number if tensor.scatters else 0, lambda: self.now >= computed_s
        )
        job = Job(world.format, world.workers, number, world.lanes, world.seed, tensor.float_type)
        board = device.board(job, tensor.value_blocks(world.lanes), engine.chunk)
        staging = Watched(board, engine.chunk, _nobody_wakes)
        device.launch(operand, job, board, staging, engine.chunk, tensor.divisor)
        self._at(computed_s, self._goad, number)
        nowhere = np.broadcast_to(np.zeros(1, tensor.float_type.dtype), tensor.elements)
        out = nowhere[: tensor.elements // tensor.pieces]
        return engine.submit(
            nowhere, out, tensor.float_type, self.now, tensor.divisor, codec=staging, scatter=tensor.scatters
        )

    def _pump(self, rank: Rank) -> None:
        super()._pump(rank)
        self._goad(rank.number)

    def _goad(self, number: int) -> None:
        """What a device waits for may have come."""
        if self.devices[number].busy and not self._working[number]:
            self._working[number] = True
            self._soon(STEP_S, self._work, number)

    def _work(self, number: int) -> None:
        self._working[number] = False
        if self.devices[number].advance():
            self._goad(number)


def check_staged_run(seed: int, blocks: int = BLOCKS, trace: Callable[[str], None] | None = None) -> StagedSimulation:
    """Run ``seed`` of `runs` on devices, and check all that must hold of it."""
    plain = make_run(seed, blocks)
    run = StagedSimulation(plain.world, plain.up.weather, seed, plain.pace, plain.restarts, trace)
    check_bounds(run, run.run())
    return run
