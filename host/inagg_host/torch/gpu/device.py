"""A device that encodes and decodes tensors, by kernels of its own.

All that it does for an operation is launched at once, by `TensorDevice.launch`, on three streams that wait for words in
the host's memory and write others (`inagg_host.codec.staged` says which): *scan* finds the largest magnitudes when the
values are computed, *encode* encodes each chunk when its scales are agreed on, *decode* decodes chunks when their
results are there. Kernels read and write the host's memory themselves: only codes, results and some bytes of each block
cross the bus.

Why no stream waits for ever. As long as one waits for a word, the first launch of a kernel, a copy from memory that is
not pinned, and cudaFree wait for it, and meanwhile no thread of the process launches anything (seen on an H100, driver
580). So a word must come though nobody launches anything more. What the word of an operation's chunk needs was launched
before the wait for it, or comes from the network: results need contributions, of which a rank's own come from *encode*,
all of which is launched before the first wait in *decode*; those need agreed scales, which come from *scan*, launched
before the first wait in *encode*, and from the network, to which the scales of a chunk go after the values of some
chunks before it, whose encoders are before its own in *encode*. Values that are copied as they are, for which see
`torch.cuda`, come in *scan*, not *encode*, where tensors that are encoded wait for the network; their sums go to the
device in *decode*. No operation needs one that comes after it, on any rank, and all ranks submit them in one order. Nor
does the network need the interpreter, whose lock a thread may have that waits in the driver: see `io.serve`.

All kernels are compiled and run once when the device is made: what is launched later loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inagg_host.codec import Job
from inagg_host.codec.launches import BASE_BLOCKS, KERNEL, LAUNCH, WORDS, await_and_copy, copy_and_tell, launch
from inagg_host.codec.staging import Board
from inagg_host.codec.table import State
from inagg_wire.scale import FloatType

from .floats import DTYPES
from .platform import Kernels, Platform, warn_of_copies
from .stream import Computed

ALIGNMENT = 16
"""Bytes. Of tensors that kernels read and write, which are compiled for it."""

WORDS_EACH, WORDS_AT_ONCE = 8, 64
"""Words of an operation, a cache line of them, and for how many operations memory is taken at once. They are not beside
a tensor's values, since PyTorch makes the size of what it gives a power of two, as many tensors' is."""

NOTHING_CODED = (State.ZERO, 0, 1, 0, 0)
"""A row of a table (`codec.table.Column`) of a block of zeros."""

LOOK_ELEMENTS = 1 << 28
"""The most elements whose largest magnitudes are found in a launch, where they are counted in 32 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """One operation's tensors: 1-D, contiguous and aligned (`is_aligned`). ``out`` has the sums of this rank's piece,
    and may be memory of ``values``."""

    values: Tensor
    out: Tensor


def is_aligned(tensor: Tensor) -> bool:
    """Whether kernels take it as it is."""
    return tensor.data_ptr() % ALIGNMENT == 0


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor's memory holds its elements in order, as they are."""
    return tensor.is_contiguous() and not tensor.is_neg()


def overlap(tensor: Tensor, other: Tensor) -> bool:
    """Whether they are views of one memory."""
    return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class _Lent:
    """A tensor's memory, for numpy, which keeps this, and so the tensor. PyTorch never resizes memory again of which
    `Tensor.numpy` has made an array, and scripts do: `Tensor.resize_`, or `resize_` of storages."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * tensor.itemsize for stride in tensor.stride()),
            "typestr": _type_text(tensor.dtype),
        }


@cache
def _type_text(dtype: torch.dtype) -> str:
    return np.dtype("uint16" if dtype is torch.bfloat16 else str(dtype).removeprefix("torch.")).str


def view(tensor: Tensor) -> npt.NDArray[Any]:
    """The same memory as an array; bfloat16, which numpy does not have, as uint16."""
    if type(tensor) is Tensor and tensor.numel():
        return np.asarray(_Lent(tensor))
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: npt.NDArray[Any] = tensor.numpy()  # of a subclass, which may have no memory of its own
    return array


@dataclass(frozen=True, slots=True, eq=False)
class _Described:
    """Description of all launches of a job: a `LAUNCH`, its `KERNEL`, and what these are about."""

    record: npt.NDArray[np.void]
    kernels: npt.NDArray[np.void]
    kept: Kernels


class TensorDevice:
    """One device, for one job. Kernels are compiled when it is made, which takes seconds."""

    def __init__(self, platform: Platform, jobs: Mapping[FloatType, Job]) -> None:
        """``jobs``: the job, for all types of values; none, if nothing is to be encoded here. Nothing is, either, if
        the kernels cannot be loaded, of which it warns. Raises what says why the device cannot do what it has to."""
        self.device, self._platform = platform.device, platform
        self.scan_stream, self.encode_stream, self.decode_stream, self.callback_stream = (
            platform.stream() for _ in range(4)
        )
        self.streams = self.scan_stream, self.encode_stream, self.decode_stream
        try:
            self._prepare(jobs)
        except BaseException:
            self.close()
            raise

    def _prepare(self, jobs: Mapping[FloatType, Job]) -> None:
        with self.here():
            self._computed = Computed(self.device)
        self._idle_words: list[npt.NDArray[np.int64]] = []
        self._ties = torch.zeros(1, dtype=torch.int32, device=self.device)
        self._arguments = np.zeros((3, WORDS), np.int64)
        self._pointers = self._arguments.ctypes.data + 8 * np.arange(self._arguments.size).reshape(3, WORDS)
        self._jobs: dict[tuple[FloatType, bool], _Described] = {}
        with self.here():
            self._tell_once()
            for dtype in DTYPES.values():
                self._copy_once(dtype)
            self.encodes = self._load(jobs)
            """Whether it encodes: there are jobs, and kernels for them."""
            for job in jobs.values() if self.encodes else ():
                self._run_once(job)

    def _load(self, jobs: Mapping[FloatType, Job]) -> bool:
        """Load the kernels of all jobs; whether there are any. Triton may be here and lack what it needs, as the images
        do that run what others compile. That ends no training: copied tensors have the same sums."""
        try:
            for job in jobs.values():
                for mean in (False, True):
                    self._jobs[job.float_type, mean] = self._describe(job, mean)
        except Exception as error:  # a compiler's, a loader's, the driver's
            warn_of_copies(f"kernels cannot be loaded: {error}")
            self._jobs.clear()
        return bool(self._jobs)

    def _describe(self, job: Job, mean: bool) -> _Described:
        kernels, described = self._platform.kernels(job, mean), np.zeros(3, KERNEL)
        for i, (kernel, stream) in enumerate(zip(kernels, self.streams, strict=True)):
            at = self._arguments[i].ctypes.data, self._pointers[i].ctypes.data
            described[i] = (kernel.function, kernel.programs, kernel.threads, kernel.shared, stream.handle, *at)
        record = np.zeros(1, LAUNCH)
        one: Any = record[0]
        calls = self._platform.calls
        one["wait_value"], one["write_value"], one["launch_kernel"] = calls.wait, calls.write, calls.launch
        one["kernels"], one["counted"] = described.ctypes.data, self._ties.data_ptr()
        one["width"], one["lanes"] = job.dtype.itemsize, job.lanes
        one["code_bytes"], one["result_bytes"] = job.for_encode.payload_bytes, job.for_decode.payload_bytes
        one["measured_at_once"] = max(LOOK_ELEMENTS // job.lanes // BASE_BLOCKS, 1) * BASE_BLOCKS
        one["flag_bytes"], one["count_bytes"] = kernels.encode.programs, 4 * kernels.decode.programs
        return _Described(record, described, kernels)

    def board(self, job: Job, blocks: int, chunk: int) -> Board:
        """Memory for an operation."""
        kernels = self._jobs[job.float_type, False].kept
        programs = kernels.encode.programs, kernels.decode.programs
        return Board.make(job, blocks, chunk, lambda size: view(self.decode_stream.pinned(size)), *programs)

    def launch(self, operand: Operand, job: Job, board: Board, chunk: int, own: range, divisor: int) -> None:
        """All that brings the sums: they are there when all that is in `decode_stream` is done. ``own``: the blocks
        whose sums this rank gets. Returns at once, but for operations of hundreds of chunks, for more of which CUDA's
        queues have no room. As all that launches, it is to be called in `here`, by one thread at a time, when what
        makes the values is on the current stream; and raises `DriverError`."""
        self._computed.record()
        for stream in self.streams:
            stream.wait_event(self._computed)
        record = self._jobs[job.float_type, divisor != 1].record.copy()
        one: Any = record[0]
        one["values"], one["elements"] = operand.values.data_ptr(), operand.values.numel()
        one["out"], one["sums"] = operand.out.data_ptr(), operand.out.numel()
        for name, address in board.addresses.items():
            one[name] = address
        one["blocks"], one["chunk"], one["divisor"] = board.magnitudes.size, chunk, divisor
        one["own_start"], one["own_end"] = own.start, own.stop
        self._platform.check(launch(record.ctypes.data))

    def words(self) -> npt.NDArray[np.int64]:
        """Words for an operation: int64, (`WORDS_EACH`,), zeros, in memory that the device reaches."""
        if not self._idle_words:
            words: npt.NDArray[np.int64] = view(self.decode_stream.pinned(WORDS_AT_ONCE, WORDS_EACH, dtype=torch.int64))
            self._idle_words.extend(words)
        found = self._idle_words.pop()
        found[:] = 0
        return found

    def give_back(self, words: npt.NDArray[np.int64]) -> None:
        """Nothing reads or writes them any more. For any thread."""
        self._idle_words.append(words)

    def copy_to_host(self, values: Tensor, to: int, arrived: int) -> None:
        """Copy a tensor, which is contiguous, to an address, and then write a word, in `scan_stream`."""
        self._computed.record()
        self.scan_stream.wait_event(self._computed)
        self._platform.check(
            copy_and_tell(self._platform.calls, self.scan_stream.handle, to, values.data_ptr(), values.nbytes, arrived)
        )

    def copy_from_host(self, source: int, target: Tensor, summed: int) -> None:
        """When a word is written, copy what is at an address to a tensor, which is contiguous. It need not wait for
        what is on the current stream if that was to come before the word."""
        self._platform.check(
            await_and_copy(
                self._platform.calls, self.decode_stream.handle, target.data_ptr(), source, target.nbytes, summed
            )
        )

    def here(self) -> AbstractContextManager[None]:
        """Have what is launched in the block be for this device."""
        return self._platform.here()

    def close(self) -> None:
        """Nothing more is launched; all that was is done, or is given up."""
        for stream in (*self.streams, self.callback_stream):
            stream.close()

    # --- once ---

    def _run_once(self, job: Job) -> None:
        """All that is launched for a type of values, for its shapes of launches."""
        values = torch.zeros(2 * job.lanes, dtype=DTYPES[job.float_type], device=self.device)
        for divisor in {1, max(job.workers, 2)}:
            board = self.board(job, 2, 2)
            board.sending[:] = board.receiving[:] = NOTHING_CODED
            board.agreed[:], board.complete[:] = 1, 1
            self.launch(Operand(values, values), job, board, 2, range(2), divisor)
            for stream in self.streams:
                stream.record_event().synchronize()

    def _tell_once(self) -> None:
        """Have device and host tell each other all that they do of a copied tensor: not all drivers can."""
        values, here, words = torch.zeros(16, device=self.device), self.decode_stream.pinned(64), self.words()
        self.copy_to_host(values, here.data_ptr(), words.ctypes.data)
        self.scan_stream.record_event().synchronize()
        self.copy_from_host(here.data_ptr(), values, words.ctypes.data)
        self.decode_stream.record_event().synchronize()
        self.give_back(words)

    def _copy_once(self, dtype: torch.dtype) -> None:
        """All ways in which sums come to a tensor: as it lies, strided, or negative."""
        values, here = torch.zeros(16, dtype=dtype, device=self.device), self.decode_stream.pinned(16, dtype=dtype)

        def copy() -> None:
            for target in (values, values.view(2, 8).t(), torch._neg_view(values)):
                for source in (torch.zeros_like(values), here):
                    target.copy_(source.view(target.shape), non_blocking=True)

        self._computed.record()
        self.decode_stream.wait_event(self._computed)
        self.decode_stream.do(copy)
        self.decode_stream.record_event().synchronize()
