"""A device that there is not: three streams, in each of which work is done in order, and between which in any. It works
only when it is told to, and what it is to bring is not there before. Its kernels are those of the CPU.

As a real one (`inagg_host.torch.gpu.device`), it is given all of an operation at once, and from then on it and the core
tell each other by words alone. It notes which threads give it something: one that never does cannot wait for it.
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

from inagg_host.codec import ALL_GOOD, Job
from inagg_host.codec.calls import addresses
from inagg_host.codec.ordered import load_word, store_word
from inagg_host.codec.staged import BAD, PLACE_BITS, TIE, TIES
from inagg_host.codec.staging import Board, Staging
from inagg_host.codec.table import Column, State
from inagg_host.core.operation import Operation
from inagg_host.core.schedule import Phase
from inagg_testbed.kernel_calls import Call, make_table
from inagg_wire import payload
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.layout import LANE_BITS as CODE_BITS
from inagg_wire.scale import SCALE_BYTE_MAX, SCALE_NONFINITE

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
GARBAGE = 0xAA
STREAMS = ("measure", "down", "up")
ALIGNMENT = 64
UNIT = slice(Column.STATE, Column.MANTISSA + 1)


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

    def owned(self, lanes: int) -> range:
        """The blocks whose sums this rank gets."""
        piece = -(-self.out.size // lanes)
        return range(self.own * piece, (self.own + 1) * piece)


def compile_for(job: Job) -> None:
    """What a device does for a job: so that no test waits for it."""
    addresses(job)
    make_table(job, np.zeros(1, np.uint8), np.zeros(1, np.uint8), 0, np.zeros(1, np.int64))


def garbage(size: int) -> Bytes:
    """So many bytes, aligned, in which nothing is yet."""
    memory = np.full(size + ALIGNMENT, GARBAGE, np.uint8)
    at = -memory.ctypes.data % ALIGNMENT
    return memory[at : at + size]


@dataclass(frozen=True)
class _Step:
    """Work of a stream that waits for something."""

    ready: Callable[[], bool]
    work: Callable[[], None]


class Watched(Staging):
    """One that knows what it is about, so that the device can be told what it should find."""

    operation: Operation | None = None

    def begin(self, operation: Operation) -> None:
        super().begin(operation)
        self.operation = operation


@dataclass(frozen=True, eq=False)
class _Work:
    """What the device knows of one operation."""

    operand: Operand
    job: Job
    board: Board
    staging: Watched
    divisor: int

    def agreed(self, blocks: range) -> tuple[Bytes, Bytes]:
        """Scales and refinements of blocks; those of an operation that is not in the engine are no matter."""
        operation = self.staging.operation
        if operation is None:
            return np.zeros(len(blocks), np.uint8), np.zeros(len(blocks), np.uint8)
        scales, refinements = operation.bytes_of[1:3, blocks.start : blocks.stop].copy()
        return scales, refinements


@dataclass(eq=False)
class FakeDevice:
    """See above. ``ties``: how many blocks have one, which the core must mend."""

    rng: random.Random
    ties: float = 0.0
    held: set[str] = field(default_factory=set)
    """Streams that stand still."""
    streams: dict[str, deque[_Step]] = field(default_factory=lambda: {name: deque() for name in STREAMS})
    asked_by: set[str] = field(default_factory=set)
    """Names of the threads that have asked it for something."""
    tied: int = 0
    boards: list[Board] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    # --- what it is asked for ---

    def board(self, job: Job, blocks: int, chunk: int) -> Board:
        """Memory for an operation, with garbage in it."""
        board = Board.make(job, blocks, chunk, garbage, self.rng.randint(1, 3), self.rng.randint(1, 3))
        self.boards.append(board)
        return board

    def launch(self, operand: Operand, job: Job, board: Board, staging: Watched, chunk: int, divisor: int = 1) -> None:
        """All that is to be done for an operation."""
        self.asked_by.add(threading.current_thread().name)
        work, blocks, own = (
            _Work(operand, job, board, staging, divisor),
            board.magnitudes.size,
            operand.owned(job.lanes),
        )
        steps: list[tuple[str, _Step]] = []
        for part in self._cut(blocks, blocks):
            steps += self._measure(work, part)
        for i, first in enumerate(range(0, blocks, chunk)):
            steps += self._encode(work, range(first, min(first + chunk, blocks)), i)
        chunks = board.complete.size
        for group in self._cut(chunks, 3):
            first, end = max(group.start * chunk, own.start), min(group.stop * chunk, own.stop)
            if first < end:
                steps += self._decode(work, range(first, end), range(first // chunk, (end - 1) // chunk + 1), own)
        with self._lock:
            for stream, step in steps:
                self.streams[stream].append(step)

    def _cut(self, count: int, most: int) -> list[range]:
        """Parts of ``count``, of up to ``most`` each."""
        parts, at = [], 0
        while at < count:
            end = min(at + self.rng.randint(1, most), count)
            parts.append(range(at, end))
            at = end
        return parts

    # --- what it does for an operation ---

    def _measure(self, w: _Work, part: range) -> list[tuple[str, _Step]]:
        magnitudes = w.board.magnitudes
        mask = magnitudes.dtype.type((1 << 8 * magnitudes.itemsize - 1) - 1)

        def largest() -> None:
            for block in part:
                magnitudes[block] = (
                    w.operand.values[w.operand.block(w.job.lanes, block)].view(mask.dtype) & mask
                ).max()

        return [
            ("measure", _Step(w.operand.computed, largest)),
            ("measure", _Step(lambda: True, lambda: store_word(w.board.measured.ctypes.data, part.stop))),
        ]

    def _encode(self, w: _Work, blocks: range, chunk: int) -> list[tuple[str, _Step]]:
        def encode() -> None:
            scales, refinements = w.agreed(blocks)
            states = w.board.receiving[blocks.start : blocks.stop, Column.STATE]
            if (states == State.NAN).all() and (scales <= SCALE_BYTE_MAX).any():
                return  # the operation was released, and rows may be anything
            operation = w.staging.operation
            assert operation is not None
            item = next(i for i in operation.shape.items if i.phase is Phase.VALUES and i.first == blocks.start)
            numbers = operation.first_block + item.start + np.arange(len(blocks))
            rows = make_table(w.job, scales, refinements, w.job.for_encode.fraction_bits, numbers)
            assert w.board.sending[blocks.start : blocks.stop].tolist() == rows.tolist(), "not what was agreed on"
            for i, block in enumerate(blocks):
                self._encode_block(w, block, int(numbers[i]), scales[i : i + 1], refinements[i : i + 1])

        agreed, coded = w.board.agreed[chunk:].ctypes.data, w.board.coded[chunk:].ctypes.data
        return [
            ("down", _Step(lambda: load_word(agreed) >= 1, encode)),
            ("down", _Step(lambda: True, lambda: store_word(coded, 1))),
        ]

    def _encode_block(self, w: _Work, block: int, number: int, scale: Bytes, refinement: Bytes) -> None:
        job, size = w.job, w.job.for_encode.payload_bytes
        datagram = np.zeros((1, job.datagram_bytes), np.uint8)
        values = w.operand.values[w.operand.block(job.lanes, block)].copy()
        flag = 0
        if Call(job, values, scale, refinement, ring=datagram).encode(0, number, 1, 0) != ALL_GOOD:
            flag = BAD
        codes = datagram[0, HEADER_BYTES:]
        if 0 < scale[0] <= SCALE_BYTE_MAX and self.rng.random() < self.ties:
            flag |= self._tie(w, block, values, codes)
        w.board.codes[block * size : (block + 1) * size] = codes
        flags = w.board.flags[block]
        flags[:] = 0
        flags[self.rng.randrange(flags.size)] = flag

    def _tie(self, w: _Work, block: int, values: Array, codes: Bytes) -> int:
        """Leave one lane to the core, whose code is anything; if there is room to say which: as in all lanes there
        is no tie, all of them may be said to have one."""
        used = int((w.board.ties[:, 0] != 0).sum())
        if used == TIES:
            return 0
        lane, up, job_lanes = self.rng.randrange(values.size), w.job.format.up, w.job.lanes
        lanes = payload.unpack(up, codes.tobytes()).copy()
        lanes[lane] ^= self.rng.randrange(1, 1 << CODE_BITS[up])
        codes[:] = np.frombuffer(payload.pack(up, lanes), np.uint8)
        bits = values[lane : lane + 1].view(f"i{values.itemsize}").astype(np.int64)
        w.board.ties[used] = (block + 1) << PLACE_BITS | lane, bits[0]
        if used + 1 < TIES:  # and one after the last, as kernels have them
            w.board.ties[used + 1] = (block + 1) << PLACE_BITS | job_lanes + self.rng.randrange(64), 0
        self.tied += 1
        return TIE

    def _decode(self, w: _Work, blocks: range, chunks: range, own: range) -> list[tuple[str, _Step]]:
        job, board, size, count = w.job, w.board, w.job.for_decode.payload_bytes, len(blocks)

        def decode() -> None:
            scales, refinements = w.agreed(blocks)
            rows = board.receiving[blocks.start : blocks.stop].copy()
            nan = rows[:, Column.STATE] == State.NAN
            expected = make_table(job, scales, refinements, job.for_decode.fraction_bits)
            assert rows[~nan, UNIT].tolist() == expected[~nan, UNIT].tolist(), "not what was agreed on"
            scales[nan] = SCALE_NONFINITE
            datagrams, every = np.zeros((count, job.result_bytes), np.uint8), np.arange(count)
            datagrams[:, HEADER_BYTES:] = board.results[blocks.start * size : blocks.stop * size].reshape(count, size)
            to = (blocks.start - own.start) * job.lanes
            part, invalid = w.operand.out[to : to + count * job.lanes], board.invalid[blocks.start : blocks.stop]
            invalid[:] = 0
            call = Call(job, part, scales, refinements, data=datagrams, places=every, numbers=every, divisor=w.divisor)
            invalid[0, -1] = call.decode(0, count)

        words = [board.complete[i:].ctypes.data for i in chunks]
        return [("up", _Step(lambda: all(load_word(word) >= 1 for word in words), decode))]

    # --- what it does ---

    @property
    def busy(self) -> bool:
        """It has something to do, or to wait for."""
        return any(self.streams.values())

    def advance(self) -> bool:
        """Do one thing, of any stream that waits for nothing; whether there was one. By one thread at a time."""
        with self._lock:
            heads = [steps for name, steps in self.streams.items() if steps and name not in self.held]
        ready = [steps for steps in heads if steps[0].ready()]
        if not ready:
            return False
        stream = self.rng.choice(ready)
        stream[0].work()
        stream.popleft()
        return True
