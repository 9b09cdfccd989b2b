"""The worker's kernels on the CPU: floats to datagrams and back, many blocks a call, at the speed of memory.

They give the bits of `inagg_wire.codec` and `inagg_wire.scale`, which are the reference, for float16, bfloat16 (as
uint16 bits), float32 and float64. All release the GIL, and none raises for what comes off the wire.

A tensor is a flat array; its block i is the elements from i * lanes on, the last one padded with zeros. A block has a
*number* in the job's stream too, which seeds its rounding noise. `encode` and `decode` take arrays that name, per
datagram, the block and the row of the buffer, so that a batch may be any set of blocks and the buffer a ring.

The first call for a family of formats and a size of float compiles, for some seconds, and the result is cached on disk:
what loops call is compiled ahead (`inagg_host.warmup`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import decoder, encoder
from . import scales as _scales
from .encoder import ALL_GOOD
from .job import FRACTION_BITS, Job
from .past_caches import FAR_BYTES

__all__ = [
    "ALL_GOOD", "Job", "decode", "decode_own", "encode", "largest", "refine_bytes", "scale_bytes",
]  # fmt: skip

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Largest = npt.NDArray[np.uint64]

_UINT8, _INT64 = np.dtype(np.uint8), np.dtype(np.int64)


def largest(job: Job, values: npt.NDArray[Any]) -> Largest:
    """The largest magnitude of each block of ``values``, as the bits of a float64 (infinity if one is not finite).

    ``values``: 1-D, of the job's float type. The one pass over them that both kinds of scale bytes need.
    """
    out = np.empty(job.blocks(values.size), np.uint64)
    _scales.largest_magnitudes(job.bits(values), job.lanes, FRACTION_BITS[job.float_type], out)
    return out


def scale_bytes(job: Job, magnitudes: Largest) -> Bytes:
    """The scale byte of each block (`inagg_wire.scale.scale_byte`), from `largest`."""
    out = np.empty(magnitudes.size, np.uint8)
    _scales.scale_bytes(magnitudes, job.dith8, job.lowest_scale, out)
    return out


def refine_bytes(job: Job, magnitudes: Largest, agreed: Bytes, out: Bytes) -> int:
    """The byte of each block for the second MAX round of a refined format (`inagg_wire.scale.refine_byte`).

    ``agreed``: what came of the first round; ``out``: one byte a block. Returns `ALL_GOOD`, or the first block whose
    agreed byte is less than one's own: no maximum, so the switch is at fault.
    """
    if not job.refined:
        raise ValueError(f"{job.format.name} has no second round")
    for array in (agreed, out):
        _check_row(array, _UINT8)
    if not magnitudes.size == agreed.size == out.size:
        raise ValueError(f"{magnitudes.size} blocks, {agreed.size} agreed bytes and room for {out.size}")
    return int(_scales.refine_bytes(magnitudes, agreed, job.dith8, job.lowest_scale, out))


def encode(
    job: Job,
    values: npt.NDArray[Any],
    blocks: Indices,
    numbers: Indices,
    scales: Bytes,
    refinements: Bytes | None,
    datagrams: Bytes,
    rows: Indices,
    contributed: npt.NDArray[Any] | None = None,
) -> int:
    """Write the payloads of some blocks of ``values`` into ``datagrams``; headers stay as they are.

    ``blocks``, ``numbers``, ``rows`` (int64, of one length): which blocks, their numbers in the job's stream, and the
    rows of ``datagrams`` to write; ``datagrams``: uint8, contiguous, of shape (any, ``job.datagram_bytes``).
    ``scales`` and ``refinements``: the agreed bytes of *all* blocks of ``values`` (the second None unless the format is
    refined). A block without a unit (agreed scale 0, or 250 and above) becomes zero codes.

    ``contributed``: as many and of the same type as ``values``; the blocks of it become what `decode_own` would make of
    the payloads.

    Returns `ALL_GOOD`; or the first i for which block ``blocks[i]`` has values that its agreed bytes do not reach (or
    that are not finite): then rows from i on are not written, or hold nothing of use. Bytes that are the maximum of all
    workers' reach them. So the switch is at fault, or somebody changed the values since `largest`.

    Raises ValueError for arrays of another kind or shape, IndexError for a block or a row that is not there.
    """
    bits = job.bits(values)
    own = bits[:0] if contributed is None else job.bits(contributed)
    if own.size not in (0, bits.size):
        raise ValueError(f"room for {own.size} contributed values, where there are {bits.size}")
    _check(job, values.size, scales, refinements, datagrams, job.datagram_bytes, (blocks, numbers, rows))
    if not datagrams.flags.writeable:
        raise ValueError("the datagrams are read-only")
    room, codes = job.room()
    refined = scales if refinements is None else refinements
    drafts, serial = encoder.NO_DRAFTS, 0
    bad = encoder.encode(
        job.for_encode, bits, blocks, numbers, scales, refined, datagrams, rows, room, codes, drafts, serial,
        job.for_own, own,
    )  # fmt: skip
    if bad == encoder.OUT_OF_RANGE:
        raise IndexError("a block or a row out of range, or arrays of different lengths")
    return int(bad)


def decode(
    job: Job,
    datagrams: Bytes,
    rows: Indices,
    values: npt.NDArray[Any],
    blocks: Indices,
    scales: Bytes,
    refinements: Bytes | None,
    divisor: int = 1,
) -> int:
    """Write the sums that results hold over blocks of ``values``.

    Arguments are as for `encode`, with ``datagrams`` of shape (any, ``job.result_bytes``). A block whose agreed scale
    is 250 or above becomes NaN, one with scale 0 zeros, whatever its codes.

    ``divisor``: the number of workers, for their mean. The sum is rounded to the float type, or to float32 if that is
    narrower, divided in that, and rounded to the float type: so a mean that is in its range comes even of a sum that is
    not.

    Returns how many codes name no level; they count as zero. Raises as `encode`.
    """
    if divisor < 1:
        raise ValueError(f"divisor {divisor}")
    _check(job, values.size, scales, refinements, datagrams, job.result_bytes, (blocks, rows))
    return _decode(job, job.for_decode, datagrams, rows, values, blocks, scales, refinements, divisor)


def decode_own(
    job: Job,
    datagrams: Bytes,
    rows: Indices,
    values: npt.NDArray[Any],
    blocks: Indices,
    scales: Bytes,
    refinements: Bytes | None,
) -> None:
    """Write over blocks of ``values`` what *contributions* stand for, those that `encode` has written.

    Arguments are as for `encode`. So the sum of what this gives on all workers is the sum that the switch has before it
    encodes it. Exact in the type of ``values``, if that is float32 or float64. Blocks that are NaN on some worker (an
    agreed scale of 250 or above) become NaN.
    """
    _check(job, values.size, scales, refinements, datagrams, job.datagram_bytes, (blocks, rows))
    _decode(job, job.for_own, datagrams, rows, values, blocks, scales, refinements, 1)


def _decode(
    job: Job,
    codes_are: decoder.Result,
    datagrams: Bytes,
    rows: Indices,
    values: npt.NDArray[Any],
    blocks: Indices,
    scales: Bytes,
    refinements: Bytes | None,
    divisor: int,
) -> int:
    bits = job.bits(values)
    if not values.flags.writeable:
        raise ValueError("the values are read-only")
    room, codes = job.room()
    refined = scales if refinements is None else refinements
    past = values.nbytes >= FAR_BYTES
    invalid = int(decoder.decode(codes_are, datagrams, rows, bits, blocks, scales, refined, divisor, room, codes, past))
    if invalid < 0:
        raise IndexError("a block or a row out of range, or arrays of different lengths")
    return invalid


def _check(
    job: Job,
    elements: int,
    scales: Bytes,
    refinements: Bytes | None,
    datagrams: Bytes,
    size: int,
    indices: tuple[Indices, ...],
) -> None:
    """Raise ValueError for arrays that the kernels would not be right for, or would be compiled again for."""
    if refinements is None:
        if job.refined:
            raise ValueError(f"{job.format.name} needs the agreed bytes of the second round")
        refinements = scales
    for array in (scales, refinements):
        _check_row(array, _UINT8)
    for index in indices:
        _check_row(index, _INT64)
    if min(scales.size, refinements.size) < job.blocks(elements):
        raise ValueError(f"fewer agreed bytes than blocks: {elements} elements are {job.blocks(elements)} blocks")
    if (
        datagrams.dtype != _UINT8
        or datagrams.ndim != 2
        or datagrams.shape[1] != size
        or not datagrams.flags.c_contiguous
    ):
        raise ValueError(
            f"datagrams of {datagrams.dtype}, shape {datagrams.shape}: contiguous rows of {size} bytes are needed"
        )


def _check_row(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> None:
    if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{array.dtype} of shape {array.shape}, where one contiguous row of {dtype} is needed")
