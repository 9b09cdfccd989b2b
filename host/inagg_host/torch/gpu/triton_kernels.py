"""The kernels in Triton: each reads floats or codes once and writes the other, in the order of memory.

One program does a stretch of one block. Everything is integers of an explicit width, or float64: no float32 operation
meets a subnormal number, and none may be contracted to another result. Kernels have no annotations but `constexpr`,
since Triton would look for what these name.

Memory that kernels write is given to them. Rows of payloads, tables, flags and counts belong to blocks; a kernel works
on ``count`` of them from row ``at`` on, so that several may be under way in one buffer.

Triton compiles a kernel anew for other constants and types, for numbers that are 1 or multiples of 16, and for
addresses that are not multiples of 16 bytes. So what does not change in a job is a constant, counts and offsets are
exempt, and addresses are those of whole buffers, and of blocks of values: these begin at multiples of 8 lanes of 2
bytes or more.

A job launches what Triton has compiled without it (`load`): see `inagg_host.codec.launches`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from inagg_host.codec import Job
from inagg_host.codec.launches import DECODE, ENCODE, LARGEST
from inagg_host.codec.staged import TIES
from inagg_host.codec.table import COLUMNS

from . import triton_decode, triton_encode
from .floats import DTYPES, FLOATS
from .platform import Kernel, Kernels
from .triton_decode import count_words, decode
from .triton_encode import encode, flag_bytes, largest

__all__ = ["count_words", "decode", "encode", "flag_bytes", "largest", "load"]


def load(job: Job, device: torch.device, mean: bool) -> Kernels:
    """Compile the kernels of a job, and run each once, as the first launch of a kernel waits for all that the device
    does. ``mean``: sums are divided. On the current stream. Raises RuntimeError if they can be launched by Triton
    alone."""

    def zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype, device=device)

    values = zeros(job.lanes, DTYPES[job.float_type])
    bits, table = zeros(1, FLOATS[values.element_size()]), zeros(COLUMNS, torch.int32)
    payload, flags = zeros(job.for_encode.payload_bytes, torch.uint8), zeros(flag_bytes(job), torch.uint8)
    ties, counted = zeros(2 * TIES, torch.int64), zeros(1, torch.int32)
    result, counts = zeros(job.for_decode.payload_bytes, torch.uint8), zeros(count_words(job), torch.int32)
    divisor = max(job.workers, 2) if mean else 1
    return Kernels(
        _loaded(largest(values, job.lanes, bits), triton_encode._largest, LARGEST, 1),
        _loaded(
            encode(job, values, table, payload, flags, ties, counted, 0, 1), triton_encode._encode, ENCODE,
            flag_bytes(job),
        ),
        _loaded(
            decode(job, result, table, values, counts, 0, 1, divisor), triton_decode._decode, DECODE, count_words(job)
        ),
    )  # fmt: skip


def _loaded(compiled: Any, kernel: Any, arguments: np.dtype[np.void], programs: int) -> Kernel:
    """Return what Triton has compiled and loaded. Beside its own arguments a kernel has the addresses of memory for use
    inside, which ours do not use: these may be 0."""
    name, metadata = kernel.fn.__name__, compiled.metadata
    taken = tuple(parameter.name for parameter in kernel.params if not parameter.is_constexpr)
    assert taken == arguments.names, f"{name} takes {taken}"
    needs = {
        "programs in clusters": metadata.num_ctas != 1,
        "memory for use inside": getattr(metadata, "global_scratch_size", 0) != 0,
        "memory to be profiled or checked": getattr(metadata, "profile_scratch_size", 0) != 0,
        "to begin before others end": getattr(metadata, "launch_pdl", False),
        "to run all at once": getattr(metadata, "launch_cooperative_grid", False),
    }
    if any(needs.values()):
        found = " and ".join(need for need, needed in needs.items() if needed)
        raise RuntimeError(
            f"Triton compiles {name} so that it needs {found}, which inagg does not provide: turn Triton's profiler "
            "and checks off in this process, and tell us which version of Triton it is"
        )
    return Kernel(compiled.function, programs, 32 * metadata.num_warps, metadata.shared, compiled)
