"""A device that encodes and decodes tensors, by PyTorch and its kernels. For CUDA; or for the CPU, for tests.

All that it does for an operation is launched at once, by `TensorDevice.launch`, on three streams that wait for words in
the host's memory and write others (`inagg_host.codec.staged` says which): *look* finds the largest magnitudes when the
values are computed, *down* encodes each chunk when its scales are agreed on, *up* decodes chunks when their results are
there. Kernels read and write the host's memory themselves: only codes, results and some bytes of each block cross the
bus.

Why no stream waits for ever. As long as one waits for a word, the first launch of a kernel, a copy from memory that is
not pinned, and cudaFree wait for it, and meanwhile no thread of the process launches anything (seen on an H100, driver
580). So a word must come though nobody launches anything more. What the word of an operation's chunk needs was launched
before the wait for it, or comes from the network: results need contributions, of which a rank's own come from *down*,
all of which is launched before the first wait in *up*; those need agreed scales, which come from *look*, launched
before the first wait in *down*, and from the network, to which the scales of a chunk go after the values of some chunks
before it, whose encoders are before its own in *down*. No operation needs one that comes after it, on any rank, and all
ranks submit them in one order.

All kernels are compiled and run once when the device is made: what is launched later loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inagg_host.codec import Job
from inagg_host.codec.staging import Board
from inagg_host.codec.table import make_table
from inagg_wire.scale import FloatType

from . import kernels_for
from .floats import DTYPES
from .lane import Mark, computed, make_lane, on_device

ALIGNMENT = 16
"""Bytes. Of tensors that kernels read and write: for others they would be compiled anew."""

LOOK_ELEMENTS = 1 << 28
"""The most elements whose largest magnitudes are found in a launch, where they are counted in 32 bits."""

BASE_BLOCKS = 16
"""Kernels are told of blocks from the last multiple of this on: memory before it is a multiple of `ALIGNMENT`, whatever
a block has, and what is after it is counted in 32 bits."""

DECODED_CHUNKS = 4
"""Chunks that are decoded in a launch, of an operation that has many: to launch takes time of the submitting thread,
and the network takes longer for a chunk."""


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


def view(tensor: Tensor) -> npt.NDArray[Any]:
    """The same memory as an array; bfloat16, which numpy does not have, as uint16."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: npt.NDArray[Any] = tensor.numpy()
    return array


class TensorDevice:
    """One device, for one job. Kernels are compiled when it is made, which takes seconds."""

    def __init__(self, device: torch.device, jobs: Mapping[FloatType, Job]) -> None:
        """``jobs``: the job, for all types of values; none, if nothing is to be encoded here."""
        self.device = device
        self._kernels: Any = kernels_for(device) if jobs else None
        self.look, self.down, self.up = (make_lane(device) for _ in range(3))
        self._ties = torch.zeros(1, dtype=torch.int32, device=device)
        with self.here():
            for dtype in DTYPES.values():
                self._copy_once(dtype)
            for job in jobs.values():
                self._run_once(job)

    def board(self, job: Job, blocks: int, chunk: int) -> Board:
        """Memory for an operation."""
        flags, counts = self._kernels.flag_bytes(job), self._kernels.count_words(job)
        return Board.make(job, blocks, chunk, lambda size: view(self.up.host(size)), flags, counts)

    def launch(self, operand: Operand, job: Job, board: Board, chunk: int, own: range, divisor: int) -> None:
        """All that brings the sums: they are there when all that is in ``up`` is done. ``own``: the blocks whose sums
        this rank gets. To be called in `here`. Returns at once, but for operations of hundreds of chunks, for more of
        which CUDA's queues have no room."""
        for lane in (self.look, self.down, self.up):
            lane.after(operand.computed)
        self._look(operand, job, board)
        blocks = board.magnitudes.size
        for first in range(0, blocks, chunk):
            self._encode(operand, job, board, first, min(first + chunk, blocks), first // chunk)
        step = chunk * (DECODED_CHUNKS if blocks > 2 * DECODED_CHUNKS * chunk else 1)
        for first in range(0, blocks, step):
            end = min(first + step, blocks)
            if max(first, own.start) < min(end, own.stop):
                self._decode(operand, job, board, range(max(first, own.start), min(end, own.stop)), own, divisor, chunk)

    def marks(self) -> list[Mark]:
        """Where all that was launched so far is done."""
        return [lane.mark() for lane in (self.look, self.down, self.up)]

    def here(self) -> AbstractContextManager[None]:
        """What is launched in the block is for this device."""
        return on_device(self.device) if self.device.type == "cuda" else nullcontext()

    def close(self) -> None:
        """Nothing more is launched; all that was is done, or is given up."""
        for lane in (self.look, self.down, self.up):
            lane.close()

    # --- what is launched ---

    def _look(self, operand: Operand, job: Job, board: Board) -> None:
        lanes, blocks = job.lanes, board.magnitudes.size
        found = torch.from_numpy(board.magnitudes.view(f"i{board.magnitudes.itemsize}"))
        step = max(LOOK_ELEMENTS // lanes // BASE_BLOCKS * BASE_BLOCKS, BASE_BLOCKS)
        for first in range(0, blocks, step):
            end = min(first + step, blocks)
            values = operand.values[first * lanes : end * lanes]
            self.look.do(partial(self._kernels.largest, values, lanes, found[first:end]))
            self.look.write(board.looked.ctypes.data, end)

    def _encode(self, operand: Operand, job: Job, board: Board, first: int, end: int, chunk: int) -> None:
        base = first // BASE_BLOCKS * BASE_BLOCKS
        size = job.for_encode.payload_bytes
        arguments = (
            job, operand.values[first * job.lanes : end * job.lanes], torch.from_numpy(board.sending[base:]),
            torch.from_numpy(board.codes[base * size :]), torch.from_numpy(board.flags[base:].reshape(-1)),
            torch.from_numpy(board.ties.reshape(-1)), self._ties, first - base, end - first, first,
        )  # fmt: skip
        self.down.wait(board.agreed[chunk:].ctypes.data)
        self.down.do(partial(self._kernels.encode, *arguments))
        self.down.write(board.coded[chunk:].ctypes.data)

    def _decode(
        self, operand: Operand, job: Job, board: Board, blocks: range, own: range, divisor: int, chunk: int
    ) -> None:
        base = blocks.start // BASE_BLOCKS * BASE_BLOCKS
        size, to = job.for_decode.payload_bytes, blocks.start - own.start
        arguments = (
            job, torch.from_numpy(board.results[base * size :]), torch.from_numpy(board.receiving[base:]),
            operand.out[to * job.lanes : (to + len(blocks)) * job.lanes],
            torch.from_numpy(board.invalid[base:].reshape(-1)), blocks.start - base, len(blocks), divisor,
        )  # fmt: skip
        for i in range(blocks.start // chunk, (blocks.stop - 1) // chunk + 1):
            self.up.wait(board.complete[i:].ctypes.data)
        self.up.do(partial(self._kernels.decode, *arguments))

    # --- once ---

    def _run_once(self, job: Job) -> None:
        """All that is launched for a type of values, for its shapes of launches."""
        values = torch.zeros(2 * job.lanes, dtype=DTYPES[job.float_type], device=self.device)
        for divisor in {1, max(job.workers, 2)}:
            board = self.board(job, 2, 2)
            none, both = np.zeros(2, np.uint8), range(2)
            board.sending[:] = make_table(job, none, none, job.for_encode.fraction_bits, np.arange(2))
            board.receiving[:] = make_table(job, none, none, job.for_decode.fraction_bits)
            board.agreed[:], board.complete[:] = 1, 1
            self.launch(Operand(values, values, computed(self.device)), job, board, 2, both, divisor)
            for mark in self.marks():
                mark.wait()

    def _copy_once(self, dtype: torch.dtype) -> None:
        """All ways in which sums come to a tensor: as it lies, strided, or negative."""
        values, here = torch.zeros(16, dtype=dtype, device=self.device), self.up.host(16, dtype=dtype)

        def copy() -> None:
            for target in (values, values.view(2, 8).t(), torch._neg_view(values)):
                for source in (torch.zeros_like(values), here):
                    target.copy_(source.view(target.shape), non_blocking=True)

        self.up.after(computed(self.device))
        self.up.do(copy)
        self.up.mark().wait()
