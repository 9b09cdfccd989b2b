"""One tensor on a device, encoded and decoded there: only codes cross the bus, a byte or so for each element.

The engine asks for blocks as it sends them, and gives results as they come. The device works ahead of it, in *pieces*
of some hundred blocks: as soon as a chunk's scales are agreed on, all its pieces are encoded and copied into pinned
memory one after the other, while those that are there go out; and the results of a piece are copied up and decoded
when the last of them has come, while others still come in.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inagg_host import codec as kernels
from inagg_host.codec.job import FRACTION_BITS
from inagg_host.codec.scales import largest_magnitudes
from inagg_wire.layout import HEADER_BYTES

from . import kernels_for
from .ops import BAD
from .table import FLOATS, make_table

PIECE_BLOCKS = 256
"""Half a mebibyte of nat8: copied in 10 us or so, a few times what it takes to begin a copy."""

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class Lane:
    """A stream of a device and what is done on it; for the CPU, where all is done at once, nothing."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        make: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
        self.stream = make(device) if device.type == "cuda" else None

    def __call__(self) -> AbstractContextManager[Any]:
        """What is launched in the block runs here."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def after_current(self) -> None:
        """What is launched from now on waits for what is on the current stream now."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def keep(self, *tensors: Tensor) -> None:
        """Do not let the allocator give their memory away before what is here has used it."""
        if self.stream is not None:
            for tensor in tensors:
                tensor.record_stream(self.stream)

    def mark(self) -> Callable[[], None]:
        """What waits, when called, until all that is here now is done."""
        if self.stream is None:
            return lambda: None
        make: Callable[..., torch.cuda.Event] = torch.cuda.Event
        event = make(blocking=True)
        event.record(self.stream)
        return event.synchronize

    def host(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Memory of the host that copies reach."""
        return torch.empty(shape, dtype=dtype, pin_memory=self.stream is not None)

    def down(self, tensor: Tensor) -> Tensor:
        """A copy on the host, which is there when `mark` says so."""
        return self.host(*tensor.shape, dtype=tensor.dtype).copy_(tensor, non_blocking=True)

    def up(self, array: npt.NDArray[Any] | Tensor) -> Tensor:
        """A copy on the device."""
        there = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
        if self.stream is None:
            return there.clone()
        if not there.is_pinned():
            there = self.host(*there.shape, dtype=there.dtype).copy_(there)
        return there.to(self.device, non_blocking=True)


class DeviceCodec:
    """Codes of one tensor, for one operation of the engine: an `inagg_host.core.Codec`.

    `start` is called on the thread that submits, all else on the transport's. That waits only for pieces which are on
    their way to the host; the values are there when what `start` returns is done.
    """

    job: kernels.Job

    def __init__(
        self, values: Tensor, out: Tensor, lanes: int, down: Lane, up: Lane, using: ModuleType | None = None,
        shares: int = 1,
    ) -> None:  # fmt: skip
        """``values`` and ``out``: 1-D, contiguous, alike; they may be the same. ``lanes``: of the job. ``using``: the
        kernels (None: the best for the device). ``shares``: of so many ranks, equal ones of whole blocks, one after
        the other; only this rank's gets sums, if there are several, and the rest of ``out`` may become anything."""
        self._values, self._out, self._lanes, self._down, self._up = values, out, lanes, down, up
        self._kernels = kernels_for(values.device) if using is None else using
        self.elements, self.blocks = values.numel(), -(-values.numel() // lanes)
        self._sent: dict[int, _Piece] = {}
        self._invalid: list[Tensor] = []
        self._shares = shares

    def start(self, look: Lane) -> Callable[[], None]:
        """Begin to find the largest magnitudes on ``look``, once the current stream has computed the values. What is
        returned waits for that, and must be called before `bind`.

        The other lanes wait for nothing: when they come to these values, the host knows that they are there. Would they
        wait, then also for what is submitted later and not computed yet.
        """
        look.after_current()
        for lane in (look, self._down):
            lane.keep(self._values)
        self._up.keep(self._out)
        with look():
            self._found = look.down(self._kernels.largest(self._values, self._lanes, 0, self.blocks))
            return look.mark()

    def bind(self, job: kernels.Job, chunk_blocks: int) -> Self:
        """What the engine calls first (it is a `MakeCodec`). ``chunk_blocks``: how many blocks have their scales agreed
        on at a time."""
        if job.lanes != self._lanes:
            raise ValueError(f"the job has {job.lanes} lanes, not {self._lanes}")
        self.job, self._chunk = job, chunk_blocks
        own = self.blocks // self._shares
        first = job.rank * own if self._shares > 1 else 0
        pieces = -(-self.blocks // PIECE_BLOCKS)
        self._awaited = np.bincount(np.arange(first, first + own) // PIECE_BLOCKS, minlength=pieces)
        self._magnitudes = _widened(self._found, job)
        self._results = self._up.host(self.blocks, job.for_decode.payload_bytes)
        self._array: Bytes = self._results.numpy()
        return self

    def largest(self, first: int, count: int) -> npt.NDArray[np.uint64]:
        """As `inagg_host.codec.largest`, of some blocks."""
        return self._magnitudes[first : first + count]

    # --- contributions ---

    def encode(
        self, scales: Bytes, refinements: Bytes, first: int, number: int, step: int, count: int, datagrams: Bytes,
        row: int,
    ) -> int:  # fmt: skip
        """Write the payloads of ``count`` blocks, ``first``, ``first + step``, ... into the rows from ``row`` on.

        ``number``: of the first one in the job; all blocks of a chunk are numbered on from each other. Returns as
        `inagg_host.codec.encode`, with how many blocks come before the bad one.
        """
        done = 0
        while done < count:
            block = first + done * step
            piece = self._piece(block, scales, refinements, number - first)
            here = min(count - done, -(-(piece.first + piece.blocks - block) // step))
            at = slice(block - piece.first, block - piece.first + (here - 1) * step + 1, step)
            flags, payloads = piece.take(at, here)
            rows = datagrams[row + done : row + done + here, HEADER_BYTES:]
            rows[:] = payloads
            for i in np.flatnonzero(flags).tolist():
                if flags[i] & BAD:
                    return done + i
                self._encode_exactly(scales, refinements, block + i * step, number - first, rows[i])
            if not piece.left:
                del self._sent[piece.first]
            done += here
        return kernels.ALL_GOOD

    def _piece(self, block: int, scales: Bytes, refinements: Bytes, offset: int) -> _Piece:
        """The piece with ``block``. The first block of a chunk that is asked for begins all of its pieces."""
        chunk = block // self._chunk * self._chunk
        first = chunk + (block - chunk) // PIECE_BLOCKS * PIECE_BLOCKS
        if first not in self._sent:
            self._encode_chunk(chunk, scales, refinements, offset)
        return self._sent[first]

    def _encode_chunk(self, chunk: int, scales: Bytes, refinements: Bytes, offset: int) -> None:
        end = min(chunk + self._chunk, self.blocks)
        numbers = np.arange(chunk, end, dtype=np.int64) + offset
        bits = self.job.for_encode.fraction_bits
        with self._down():
            table = self._down.up(make_table(self.job, scales[chunk:end], refinements[chunk:end], bits, numbers))
            for first in range(chunk, end, PIECE_BLOCKS):
                part = table[first - chunk : first - chunk + PIECE_BLOCKS]
                codes = self._kernels.encode(self.job, self._values, first, part)
                payloads, flags = (self._down.down(tensor) for tensor in codes)
                self._sent[first] = _Piece(first, len(part), payloads.numpy(), flags.numpy(), self._down.mark())

    def _encode_exactly(self, scales: Bytes, refinements: Bytes, block: int, offset: int, payload: Bytes) -> None:
        """On the CPU, with as many noise words as it takes."""
        lanes = self.job.lanes
        with self._down():
            values = self._down.down(self._values[block * lanes : (block + 1) * lanes])
            self._down.mark()()
        zero = np.zeros(1, np.int64)
        datagram = np.empty((1, self.job.datagram_bytes), np.uint8)
        agreed = scales[block : block + 1], refinements[block : block + 1]
        kernels.encode(self.job, _floats(values, self.job), zero, zero + block + offset, *agreed, datagram, zero)
        payload[:] = datagram[0, HEADER_BYTES:]

    # --- results ---

    def decode(
        self, data: Bytes, size: int, places: Integers, blocks: Integers, step: int, offset: int, scales: Bytes,
        refinements: Bytes, divisor: int,
    ) -> int:  # fmt: skip
        """Take the results of blocks ``blocks * step + offset``, which stand at ``places`` of ``data``, datagrams of
        ``size`` bytes.

        Returns 0: codes that name no level are counted on the device, see `invalid_codes`.
        """
        mine = blocks * step + offset
        self._array[mine] = data.reshape(-1, size)[places, HEADER_BYTES : HEADER_BYTES + self._array.shape[1]]
        came = np.bincount(mine // PIECE_BLOCKS, minlength=self._awaited.size)
        self._awaited -= came
        for piece in np.flatnonzero((self._awaited == 0) & (came > 0)).tolist():
            first, end = piece * PIECE_BLOCKS, min((piece + 1) * PIECE_BLOCKS, self.blocks)
            bits = self.job.for_decode.fraction_bits
            table = make_table(self.job, scales[first:end], refinements[first:end], bits)
            with self._up():
                there = self._up.up(self._results[first:end]), self._up.up(table)
                self._invalid.append(self._kernels.decode(self.job, *there, self._out, first, divisor))
        return 0

    def invalid_codes(self) -> int:
        """Codes of results that name no level, so far; waits for the device."""
        return sum(int(count) for count in self._invalid)


class _Piece:
    """The codes of some blocks from ``first`` on, on their way to the host."""

    def __init__(self, first: int, blocks: int, payloads: Bytes, flags: Bytes, wait: Callable[[], None]) -> None:
        self.first, self.blocks, self.left = first, blocks, blocks
        self._payloads, self._flags, self._wait = payloads, flags, wait

    def take(self, at: slice, count: int) -> tuple[Bytes, Bytes]:
        """Flags and payloads of ``count`` blocks, which are asked for once."""
        if self.left == self.blocks:
            self._wait()
        self.left -= count
        return self._flags[at], self._payloads[at]


def _floats(values: Tensor, job: kernels.Job) -> npt.NDArray[Any]:
    """The same memory as an array of the job's type; bfloat16 as uint16."""
    array: npt.NDArray[Any] = values.view(FLOATS[values.element_size()]).numpy().view(job.dtype)
    return array


def _widened(values: Tensor, job: kernels.Job) -> npt.NDArray[np.uint64]:
    """Magnitudes as `inagg_host.codec.largest` has them."""
    out = np.empty(values.numel(), np.uint64)
    largest_magnitudes(job.bits(_floats(values, job)), 1, FRACTION_BITS[job.float_type], out)
    return out
