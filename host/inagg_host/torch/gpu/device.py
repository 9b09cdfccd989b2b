"""A device that encodes and decodes tensors: `inagg_host.io.device.Device` by PyTorch and its kernels. For CUDA; or for
the CPU, where all is done at once, for tests.

All memory is taken when it is made, and all kernels are compiled and run once. So what is done for an operation neither
allocates nor loads anything: that may wait until the whole device is idle, and no other thread launches anything as
long (CUDA C++ Programming Guide, "Implicit Synchronization" and "Lazy Loading").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inagg_host.codec import Job
from inagg_host.codec.bell import Bell
from inagg_host.codec.job import FRACTION_BITS
from inagg_host.codec.staging import RUN_BLOCKS_MOST, SLOT_BYTES, run_blocks
from inagg_host.io.device import LOOK_ELEMENTS, SHELF_BLOCKS, Bytes, Integers, Slot
from inagg_link import MAX_BATCH_BYTES
from inagg_wire.scale import FloatType

from . import driver, kernels_for
from .lane import Lane, Mark, on_device
from .table import FLOATS, Column, make_table

SLOTS = 16
"""Runs that are under way at a time: 64 MiB in the host's memory, pinned, and as much on the device. A switch's window
is a few. A batch is 64 datagrams and `MAX_BATCH_BYTES` at most, and a run has as many bytes as 32 of them, or
`RUN_BLOCKS_MOST` blocks: so all but one of the slots have room for the batches of 480 shards, see `Device.slots`."""
assert SLOT_BYTES >= 32 * MAX_BATCH_BYTES and RUN_BLOCKS_MOST >= 32 * 64
SHELVES = 4
ALIGNMENT = 16
"""Bytes. Of tensors that kernels read and write: for others they would be compiled anew."""

DTYPES = {
    FloatType.FLOAT16: torch.float16, FloatType.BFLOAT16: torch.bfloat16, FloatType.FLOAT32: torch.float32,
    FloatType.FLOAT64: torch.float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """One operation's tensors: 1-D, contiguous and aligned (`is_aligned`). ``out`` has the sums of this rank's piece,
    and may be memory of ``values``. ``computed``: where the values are there."""

    values: Tensor
    out: Tensor
    computed: Mark


def is_aligned(tensor: Tensor) -> bool:
    """Whether kernels take it as it is."""
    return tensor.data_ptr() % ALIGNMENT == 0


@dataclass(frozen=True, slots=True, eq=False)
class _Marked:
    """Something on its way, which is there when the device has come to ``mark``."""

    mark: Mark

    def done(self) -> bool:
        """As `inagg_host.io.device.Mark.done`."""
        return self.mark.done()


@dataclass(frozen=True, slots=True, eq=False)
class Looked(_Marked):
    """Largest magnitudes, on their way to the host."""

    bits: npt.NDArray[Any]

    def found(self) -> npt.NDArray[Any]:
        """As `inagg_host.io.device.Looked.found`."""
        return self.bits


@dataclass(frozen=True, slots=True, eq=False)
class Encoded(_Marked):
    """Codes on their way to the host. ``parts``: (blocks, bytes of flags each)."""

    parts: Bytes

    def flags(self) -> Bytes:
        """As `inagg_host.io.device.Encoded.flags`."""
        flags: Bytes = np.bitwise_or.reduce(self.parts, axis=1)
        return flags


@dataclass(frozen=True, slots=True, eq=False)
class Decoded(_Marked):
    """Sums on their way to the tensor."""

    counts: npt.NDArray[np.int32]

    def invalid(self) -> int:
        """As `inagg_host.io.device.Decoded.invalid`."""
        return int(self.counts.sum())


class _Twin:
    """The same memory on the host, where copies reach it, and on the device."""

    def __init__(self, lane: Lane, *shape: int, dtype: torch.dtype = torch.uint8) -> None:
        self.host = lane.host(*shape, dtype=dtype)
        self.array: npt.NDArray[Any] = self.host.numpy()
        self.there = torch.zeros(shape, dtype=dtype, device=lane.device)

    def up(self, part: slice) -> None:
        """On the current stream."""
        self.there[part].copy_(self.host[part], non_blocking=True)

    def down(self, part: slice) -> None:
        """On the current stream."""
        self.host[part].copy_(self.there[part], non_blocking=True)


class _Slot:
    """What a slot has besides the memory that the feeder knows."""

    def __init__(self, lane: Lane, flags: int, counts: int) -> None:
        self.codes, self.results = _Twin(lane, SLOT_BYTES), _Twin(lane, SLOT_BYTES)
        self.flags, self.counts = _Twin(lane, flags), _Twin(lane, counts, dtype=torch.int32)
        self.sending, self.receiving = (_Twin(lane, RUN_BLOCKS_MOST, len(Column), dtype=torch.int32) for _ in range(2))


class TensorDevice:
    """One device, for one job. Memory and kernels are had when it is made, which takes seconds."""

    shelves = SHELVES

    def __init__(
        self, device: torch.device, jobs: Mapping[FloatType, Job], bell: Bell, using: ModuleType | None = None
    ) -> None:
        """``jobs``: the job, for all types of values; none, if nothing is to be encoded here. ``using``: the kernels
        (None: the best for the device)."""
        self.device, self._bell = device, bell
        self._kernels = kernels_for(device) if using is None else using
        self.look_lane, self.down, self.up = (Lane(device) for _ in range(3))
        flags, counts = (
            max((run_blocks(job) * per(job) for job in jobs.values()), default=0)
            for per in (self._kernels.flag_bytes, self._kernels.count_words)
        )
        self._parts = [_Slot(self.down, flags, counts) for _ in range(SLOTS if jobs else 0)]
        self.slots = [Slot(i, part.codes.array, part.results.array) for i, part in enumerate(self._parts)]
        self._shelves = [_Twin(self.down, SHELF_BLOCKS, dtype=torch.int64) for _ in range(SHELVES)]
        self._block = self.down.host(max((job.lanes for job in jobs.values()), default=0) * 8)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the memory is cleared, on another stream
        for dtype in DTYPES.values():
            self._copy_once(dtype)
        for job in jobs.values():
            self._run_once(job)

    def _run_once(self, job: Job) -> None:
        """All that is launched for a type of values, for its shapes of launches."""
        values = torch.zeros(2 * job.lanes, dtype=DTYPES[job.float_type], device=self.device)
        operand, slot = Operand(values, values, Mark(None)), self.slots[0]
        none, numbers = np.zeros(2, np.uint8), np.zeros(2, np.int64)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        marks: list[Any] = [self.look(operand, job.lanes, 0, 2, 0)]
        marks.append(self.encode(operand, job, slot, 0, 0, none, none, numbers))
        marks += [self.decode(operand, job, slot, 0, 0, none, none, divisor) for divisor in {1, max(job.workers, 2)}]
        self.fetch(operand, job, 0)
        for mark in marks:
            (mark if isinstance(mark, Mark) else mark.mark).wait()

    def _copy_once(self, dtype: torch.dtype) -> None:
        """All ways in which sums come to a tensor: as it lies, strided, or negative."""
        values, here = torch.zeros(16, dtype=dtype, device=self.device), self.up.host(16, dtype=dtype)
        with self.up():
            for target in (values, values.view(2, 8).t(), torch._neg_view(values)):
                for source in (torch.zeros_like(values), here):
                    target.copy_(source.view(target.shape), non_blocking=True)
        self.up.mark().wait()

    def begin_thread(self) -> None:
        """As `inagg_host.io.device.Device.begin_thread`."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            with on_device(self.device):
                driver.stay_out_of_graphs()

    def end_thread(self) -> None:
        """As `inagg_host.io.device.Device.end_thread`."""
        for lane in (self.look_lane, self.down, self.up):
            if lane.stream is not None:
                lane.stream.synchronize()

    # --- what the feeder asks for ---

    def look(self, operand: Operand, lanes: int, first: int, count: int, shelf: int) -> Looked:
        """As `inagg_host.io.device.Device.look`."""
        assert count * lanes <= max(LOOK_ELEMENTS, lanes)
        twin, size = self._shelves[shelf], operand.values.element_size()
        there, here = (whole.view(FLOATS[size])[:count] for whole in (twin.there, twin.host))
        self.look_lane.after(operand.computed)
        with self.look_lane():
            self._kernels.largest(operand.values[first * lanes : (first + count) * lanes], lanes, there)
            here.copy_(there, non_blocking=True)
        return Looked(self.look_lane.mark(self._bell), here.numpy().view(f"u{size}"))

    def encode(
        self, operand: Operand, job: Job, slot: Slot, at: int, first: int, scales: Bytes, refinements: Bytes,
        numbers: Integers,
    ) -> Encoded:  # fmt: skip
        """As `inagg_host.io.device.Device.encode`."""
        part, count, size = self._parts[slot.number], scales.size, job.for_encode.payload_bytes
        each, rows = self._kernels.flag_bytes(job), slice(at, at + scales.size)
        part.sending.array[rows] = make_table(job, scales, refinements, job.for_encode.fraction_bits, numbers)
        flags = slice(at * each, (at + count) * each)
        with self.down():
            part.sending.up(rows)
            values = operand.values[first * job.lanes : (first + count) * job.lanes]
            self._kernels.encode(job, values, part.sending.there, part.codes.there, part.flags.there, at, count)
            part.codes.down(slice(at * size, (at + count) * size))
            part.flags.down(flags)
        return Encoded(self.down.mark(self._bell), part.flags.array[flags].reshape(count, each))

    def fetch(self, operand: Operand, job: Job, block: int) -> npt.NDArray[Any]:
        """As `inagg_host.io.device.Device.fetch`."""
        values = operand.values[block * job.lanes : (block + 1) * job.lanes]
        here = self._block[: values.nbytes].view(values.dtype)
        with self.down():
            here.copy_(values, non_blocking=True)
        self.down.mark().wait()
        array: npt.NDArray[Any] = here.view(FLOATS[values.element_size()]).numpy().view(job.dtype)
        return array

    def decode(
        self, operand: Operand, job: Job, slot: Slot, at: int, first: int, scales: Bytes, refinements: Bytes,
        divisor: int,
    ) -> Decoded:  # fmt: skip
        """As `inagg_host.io.device.Device.decode`."""
        part, count, size = self._parts[slot.number], scales.size, job.for_decode.payload_bytes
        each, rows = self._kernels.count_words(job), slice(at, at + scales.size)
        part.receiving.array[rows] = make_table(job, scales, refinements, job.for_decode.fraction_bits)
        counts = slice(at * each, (at + count) * each)
        with self.up():
            part.receiving.up(rows)
            part.results.up(slice(at * size, (at + count) * size))
            out = operand.out[first * job.lanes : (first + count) * job.lanes]
            self._kernels.decode(
                job, part.results.there, part.receiving.there, out, part.counts.there, at, count, divisor
            )
            part.counts.down(counts)
        return Decoded(self.up.mark(self._bell), part.counts.array[counts])


assert set(FRACTION_BITS) == set(DTYPES)
