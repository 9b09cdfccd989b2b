"""Runs in which all values are on devices: each rank has a fake one, which does what it has to do whenever it likes. Of
some operations values are copied to the host, and sums back; the others are encoded where they are.

Nobody wakes an engine when its device has written something: it looks again by its `deadline`. The oracle is that of
the other runs. Sums appear when the device has written them, so they are looked at at the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tests.host.io.fake_device import FakeDevice, Operand, Watched, garbage

from inagg_host.codec import Job
from inagg_host.codec.ordered import load_word, store_word
from inagg_host.codec.staging import Arriving
from inagg_host.core import Operation
from inagg_host.core.operation import Request

from .memory import CANARY, PAD_BYTES, Memory
from .runs import BLOCKS, check_bounds, make_run
from .simulation import Outcome, Rank, Simulation
from .world import Tensor

STEP_S = 0.0002
"""What takes time on a device takes up to so long."""
COPIED = 0.3
"""The share of operations whose values are copied."""


class DeviceMemory(Memory):
    """Memory that the device alone writes, after the engine is done."""

    bring: Callable[[], None] | None = None
    """Copies the sums to it when the engine is done, if that is how they come."""

    def wrote(self, block: int) -> None:
        """Not yet."""

    def finish(self) -> None:
        """The engine has all results."""
        assert not self.finished
        self.finished = True
        if self.bring is not None:
            self.bring()

    def check(self) -> None:
        """The device has written all, and nothing beside."""
        whole, guard = self._out.tobytes(), bytes([CANARY]) * PAD_BYTES
        assert whole[:PAD_BYTES] == guard == whole[-PAD_BYTES:], "written beside the memory"
        assert self.out.tobytes() == self._sums, "not the sums"
        assert self.values[self._kept].tobytes() == self._given, "the values were changed"


def _nobody_wakes() -> None:
    raise AssertionError("a device has failed")


def _nobody_waits() -> None:
    raise AssertionError("an operation was released")


@dataclass(frozen=True, eq=False)
class _Copy:
    """An operation whose values are copied: from the rank's memory to the host's, and the sums back."""

    memory: Memory
    there: npt.NDArray[Any]
    landing: npt.NDArray[Any]
    words: npt.NDArray[np.int64]

    @classmethod
    def make(cls, memory: Memory, rng: random.Random) -> Self:
        """In the host's memory sums come to where values were, or beside, as `inagg_host.torch.cuda` has it."""

        def room(like: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return garbage(like.nbytes).view(like.dtype)

        there = room(memory.values)
        landing = there if memory.out.size == there.size and rng.random() < 0.5 else room(memory.out)
        return cls(memory, there, landing, np.zeros(2, np.int64))

    def arrive(self) -> None:
        """The values are there."""
        self.there[:] = self.memory.values
        store_word(self.words.ctypes.data, 1)

    def bring(self) -> None:
        """The sums are there: copy them back."""
        assert load_word(self.words.ctypes.data + 8) == 1
        self.memory.out[:] = self.landing


class StagedSimulation(Simulation):
    """As `Simulation`, on fake devices."""

    of_memory = DeviceMemory

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.devices = [
            FakeDevice(random.Random(self.rng.random()), ties=self.rng.choice((0.0, 0.2))) for _ in self.ranks
        ]
        self._working = [False for _ in self.ranks]
        self._choose = random.Random(self.rng.random())
        self.copies: list[_Copy] = []

    def run(self) -> Outcome:
        """As `Simulation.run`; then the devices are at rest, too: they have all that they wait for."""
        outcome = super().run()
        assert sum(len(device.boards) for device in self.devices) + len(self.copies) == len(self.devices) * len(
            self.world.tensors
        )
        for device in self.devices:
            assert not device.busy
            for board in device.boards:
                assert board.measured.tolist() == [board.magnitudes.size]
                for words in (board.agreed, board.coded, board.complete):
                    assert (words == 1).all()
        return outcome

    def _begin(self, rank: Rank, tensor: Tensor, memory: Memory) -> Operation:
        assert isinstance(memory, DeviceMemory)
        number, engine, world, device = rank.number, rank.engine, self.world, self.devices[rank.number]
        computed_s = self.now + self.rng.random() * self.rng.choice((0.0, 0.001))
        request = partial(Request, float_type=tensor.float_type, divisor=tensor.divisor, scatters=tensor.scatters)
        if self._choose.random() < COPIED:
            copy = _Copy.make(memory, self._choose)
            self.copies.append(copy)
            memory.bring = copy.bring
            self._at(computed_s, copy.arrive)
            arriving = Arriving(_nobody_wakes, copy.words, copy.landing, _nobody_waits)
            return engine.submit(request(copy.there, copy.landing, codec=arriving), self.now)
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
        return engine.submit(request(nowhere, out, codec=staging), self.now)

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
