"""A device that there is not: three streams, in each of which work is done in order, and between which in any. It works
only when it is told to, and what it copies is not there before. Its kernels are those of the CPU.

It notes which threads ask it for anything: one that never does cannot wait for it.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_host import codec as kernels
from inagg_host.codec import Job
from inagg_host.codec.staging import SLOT_BYTES
from inagg_host.io.device import SHELF_BLOCKS, TIE, Bytes, Integers, Slot
from inagg_wire.layout import HEADER_BYTES

Array = npt.NDArray[Any]
GARBAGE = 0xAA
STREAMS = ("look", "down", "up")


@dataclass(eq=False)
class Operand:
    """Values and sums of one operation in ``pieces``, of which this rank has ``own``. ``computed``: whether the values
    are there."""

    values: Array
    out: Array
    pieces: int = 1
    own: int = 0
    computed: Callable[[], bool] = lambda: True

    def block(self, lanes: int, number: int) -> slice:
        """Of the values."""
        size = self.values.size // self.pieces
        piece, at = divmod(number, -(-size // lanes))
        return slice(piece * size + at * lanes, piece * size + min((at + 1) * lanes, size))


def compile_for(job: Job) -> None:
    """What a device does for a job: so that no test waits for it."""
    values, none, zero = np.zeros(job.lanes, job.dtype), np.zeros(1, np.uint8), np.zeros(1, np.int64)
    kernels.encode(job, values, zero, zero, none, none, np.zeros((1, job.datagram_bytes), np.uint8), zero)
    kernels.decode(job, np.zeros((1, job.result_bytes), np.uint8), zero, values, zero, none, none)


@dataclass(eq=False)
class FakeMark:
    """Of all kinds."""

    device: FakeDevice
    came: bool = False
    result: Any = None

    def done(self) -> bool:
        self.device.asked()
        if self.device.broken is not None:
            raise self.device.broken
        return self.came

    def found(self) -> Array:
        found: Array = self._result()
        return found

    def flags(self) -> Bytes:
        flags: Bytes = self._result()
        return flags

    def invalid(self) -> int:
        return int(self._result())

    def _result(self) -> Any:
        assert self.came, "nobody has seen that it is there"
        return self.result


@dataclass(eq=False)
class FakeDevice:
    """See above. ``ring``: what the device does when a mark is reached; ``ties``: how many blocks it says have one."""

    rng: random.Random
    ring: Callable[[], None]
    ties: float = 0.0
    slot_count: int = 8
    shelves: int = 2
    broken: Exception | None = None
    """What goes wrong with all that is asked from now on."""
    streams: dict[str, deque[Callable[[], None]]] = field(default_factory=lambda: {name: deque() for name in STREAMS})
    asked_by: set[str] = field(default_factory=set)
    """Names of the threads that have asked it for something."""
    mended: int = 0

    def __post_init__(self) -> None:
        self.slots = [
            Slot(i, *(np.full(SLOT_BYTES, GARBAGE, np.uint8) for _ in range(2))) for i in range(self.slot_count)
        ]
        self._lock = threading.Lock()

    def asked(self) -> None:
        """Somebody asks for something."""
        self.asked_by.add(threading.current_thread().name)

    def begin_thread(self) -> None:
        self.asked()

    def end_thread(self) -> None:
        self.asked()

    # --- what it is asked for ---

    def look(self, operand: Operand, lanes: int, first: int, count: int, shelf: int) -> FakeMark:
        assert 0 <= shelf < self.shelves
        assert count <= SHELF_BLOCKS
        job_type = operand.values.dtype
        found = np.zeros(count, f"u{job_type.itemsize}")

        def kernel() -> None:
            assert operand.computed()
            for i in range(count):
                bits = operand.values[operand.block(lanes, first + i)].view(found.dtype)
                found[i] = (bits & found.dtype.type((1 << 8 * found.itemsize - 1) - 1)).max()

        return self._launch("look", [kernel], lambda: found, operand.computed)

    def encode(
        self, operand: Operand, job: Job, slot: Slot, at: int, first: int, scales: Bytes, refinements: Bytes,
        numbers: Integers,
    ) -> FakeMark:  # fmt: skip
        scales, refinements, count = scales.copy(), refinements.copy(), scales.size
        size, flags = job.for_encode.payload_bytes, np.zeros(count, np.uint8)
        rows, zero, datagram = (
            np.zeros((count, size), np.uint8),
            np.zeros(1, np.int64),
            np.zeros((1, job.datagram_bytes), np.uint8),
        )

        def kernel() -> None:
            for i in range(count):
                block = operand.values[operand.block(job.lanes, first + i)].copy()
                good = kernels.encode(
                    job, block, zero, numbers[i : i + 1], scales[i : i + 1], refinements[i : i + 1], datagram, zero
                )
                rows[i] = datagram[0, HEADER_BYTES:]
                flags[i] = good != kernels.ALL_GOOD  # BAD
                if self.rng.random() < self.ties:
                    flags[i] |= TIE
                    rows[i] = GARBAGE

        def copy() -> None:
            slot.codes[at * size : (at + count) * size] = rows.reshape(-1)

        return self._launch("down", [kernel, copy], lambda: flags)

    def fetch(self, operand: Operand, job: Job, block: int) -> Array:
        self.asked()
        self.mended += 1
        values: Array = operand.values[operand.block(job.lanes, block)].copy()
        return values

    def decode(
        self,
        operand: Operand,
        job: Job,
        slot: Slot,
        at: int,
        first: int,
        scales: Bytes,
        refinements: Bytes,
        divisor: int,
    ) -> FakeMark:
        scales, refinements, count = scales.copy(), refinements.copy(), scales.size
        size = job.for_decode.payload_bytes
        datagrams, invalid = np.zeros((count, job.result_bytes), np.uint8), np.zeros(1, np.int64)

        def copy() -> None:
            datagrams[:, HEADER_BYTES:] = slot.results[at * size : (at + count) * size].reshape(count, size)

        def kernel() -> None:
            every, part = np.arange(count), operand.out[first * job.lanes : (first + count) * job.lanes]
            invalid[0] = kernels.decode(job, datagrams, every, part, every, scales, refinements, divisor)

        return self._launch("up", [copy, kernel], lambda: invalid[0])

    # --- what it does ---

    def _launch(
        self, stream: str, work: list[Callable[[], None]], result: Callable[[], Any],
        ready: Callable[[], bool] = lambda: True,
    ) -> FakeMark:  # fmt: skip
        self.asked()
        if self.broken is not None:
            raise self.broken
        mark = FakeMark(self)

        def reach() -> None:
            mark.result, mark.came = result(), True
            self.ring()

        with self._lock:
            self.streams[stream] += [_When(ready, work[0]), *work[1:], reach]
        return mark

    @property
    def busy(self) -> bool:
        """It has something to do."""
        return any(self.streams.values())

    def advance(self) -> bool:
        """Do one thing, of any stream that does not wait for values; whether there was one."""
        with self._lock:
            heads = [s for s in self.streams.values() if s and not (isinstance(s[0], _When) and not s[0].ready())]
            work = self.rng.choice(heads).popleft() if heads else None
        if work is not None:
            work()
        return work is not None


@dataclass(frozen=True)
class _When:
    """Work that waits for something."""

    ready: Callable[[], bool]
    work: Callable[[], None]

    def __call__(self) -> None:
        self.work()
