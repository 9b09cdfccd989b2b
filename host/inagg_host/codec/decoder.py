"""Payloads to floats: `inagg_wire.codec.decode` for many blocks at a time, written into the caller's array."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from inagg_link.simd import fence
from inagg_wire.layout import HEADER_BYTES, Encoding
from inagg_wire.scale import SCALE_BIAS, SCALE_BYTE_MAX, SCALE_ZERO

from .bits import I32, U16, U32, U64, Array, bits_of, fused, inline, jit
from .decoder_loops import from_integers, from_natural, load8, load16, load32, narrow, unpack, unpack_tern
from .decoder_streams import stream_integers, stream_natural
from .past_caches import goes_past_caches

NAT4, TERN, FIX32, INT4, INT16 = (
    int(e) for e in (Encoding.NAT4, Encoding.TERN, Encoding.FIX32, Encoding.INT4, Encoding.INT16)
)


class Result(NamedTuple):
    """What is the same for all results of a job, or for all contributions, as the kernels take it."""

    lanes: int
    payload_bytes: int
    encoding: int
    half: bool
    """Values of 16 bits are float16; else bfloat16."""
    top: int
    """The highest level (natural) or largest magnitude (linear) that a code may name."""
    refined: bool
    fraction_bits: int
    """The exponent of a result's unit is that of S less this."""


class NaturalResult(Result):
    """Of nat8 and nat4. The kernel is compiled by the class."""


class LinearResult(Result):
    """Of all others."""


# --- by family of the format ---


def decode_block(
    job: Any, out: Array, codes: Array, unit: tuple[int, int], divisor: int, room: Array, past: bool
) -> int:
    """``unit``: its mantissa and exponent; ``past``: as `decode_payload`. Returns how many codes name no level."""
    raise NotImplementedError("for use in kernels")


@overload(decode_block, strict=False)
def _decode_block(job: Any, out: Any, codes: Any, unit: Any, divisor: Any, room: Any, past: Any) -> Any:
    def of_natural(
        job: Any, out: Array, codes: Array, unit: tuple[int, int], divisor: int, room: Array, past: bool
    ) -> int:
        if past and stream_natural(out, codes, unit[1], job.top, divisor):
            return 0
        invalid = from_natural(out, codes, unit[1], job.top, job.half)
        if divisor != 1:
            divide(out, out, divisor, job.half)
        return invalid

    def of_natural16(
        job: Any, out: Array, codes: Array, unit: tuple[int, int], divisor: int, room: Array, past: bool
    ) -> int:
        if divisor == 1:
            return from_natural(out, codes, unit[1], job.top, job.half)
        sums = room[: len(out)]
        invalid = from_natural(sums, codes, unit[1], job.top, job.half)
        divide(out, sums, divisor, job.half)
        return invalid

    def of_linear(
        job: Any, out: Array, codes: Array, unit: tuple[int, int], divisor: int, room: Array, past: bool
    ) -> int:
        integers = room.view(np.int32)[: len(out)]
        invalid = load_integers(job, integers, codes)
        if past and stream_integers(out, integers, unit[0], unit[1], divisor):
            return invalid
        from_integers(out, integers, unit[0], unit[1], job.half)
        if divisor != 1:
            divide(out, out, divisor, job.half)
        return invalid

    def of_linear16(
        job: Any, out: Array, codes: Array, unit: tuple[int, int], divisor: int, room: Array, past: bool
    ) -> int:
        integers = room.view(np.int32)[: len(out)]
        invalid = load_integers(job, integers, codes)
        if divisor == 1:
            from_integers(out, integers, unit[0], unit[1], job.half)
        else:
            sums = room[: len(out)]  # of each integer, where it was
            from_integers(sums, integers, unit[0], unit[1], job.half)
            divide(out, sums, divisor, job.half)
        return invalid

    is_narrow = out.dtype.bitwidth == 16
    return {
        NaturalResult: of_natural16 if is_narrow else of_natural,
        LinearResult: of_linear16 if is_narrow else of_linear,
    }[job.instance_class]


@inline
def load_integers(job: Any, integers: Array, codes: Array) -> int:
    """The integers of a linear format's ``codes``; how many name no level."""
    if job.encoding == FIX32:
        return load32(integers, codes, job.top)
    if job.encoding == INT16:
        return load16(integers, codes, job.top)
    return load8(integers, codes, job.top)


def divide(out: Array, sums: Array, divisor: int, half: bool) -> None:
    """Write the bits of means. ``sums``: bits of floats, ``out`` itself or, if that is narrower, of float32."""
    raise NotImplementedError("for use in kernels")


@overload(divide, strict=False)
def _divide(out: Any, sums: Any, divisor: Any, half: Any) -> Any:
    def in16(out: Array, sums: Array, divisor: int, half: bool) -> None:
        floats, by = sums.view(np.float32), np.float32(divisor)
        for i in range(len(out)):
            bits = bits_of(floats[i] / by)
            magnitude = U32(bits & U32(0x7FFFFFFF))
            if half:
                rounded = narrow(magnitude, I32(15 - 127), U32(10), U32(0x7C00))
            else:
                rounded = U32(U32(magnitude + U32(0x7FFF) + ((magnitude >> U32(16)) & U32(1))) >> U32(16))
            out[i] = U32(rounded | U32(U32(bits >> U32(31)) << U32(15)))

    def in32(out: Array, sums: Array, divisor: int, half: bool) -> None:
        floats, by = out.view(np.float32), np.float32(divisor)
        for i in range(len(out)):
            floats[i] /= by

    def in64(out: Array, sums: Array, divisor: int, half: bool) -> None:
        floats, by = out.view(np.float64), np.float64(divisor)
        for i in range(len(out)):
            floats[i] /= by

    return {16: in16, 32: in32, 64: in64}[out.dtype.bitwidth]


def nan_bits(out: Array, half: bool) -> Any:
    """The bits of NaN in the type of ``out``."""
    raise NotImplementedError("for use in kernels")


@overload(nan_bits, strict=False)
def _nan_bits(out: Any, half: Any) -> Any:
    return {
        16: lambda out, half: U16(0x7E00) if half else U16(0x7FC0),
        32: lambda out, half: U32(0x7FC00000),
        64: lambda out, half: U64(0x7FF8000000000000),
    }[out.dtype.bitwidth]


@jit
def out_of_range(length: int, lanes: int, blocks: Array, datagrams: Array, rows: Array) -> bool:
    """Whether some block lies outside the values, or some row outside the buffer."""
    if len(blocks) != len(rows):
        return True
    last, outside = (length - 1) // lanes, False
    for i in range(len(rows)):
        outside |= blocks[i] < 0 or blocks[i] > last or rows[i] < 0 or rows[i] >= len(datagrams)
    return outside


@fused
def decode_payload(
    job: Any,
    out: Array,
    payload: Array,
    scale: int,
    refinement: int,
    divisor: int,
    room: Array,
    codes: Array,
    past: bool,
) -> int:
    """One block, with its agreed bytes. ``past``: it `goes_past_caches`, and a `fence` follows. Returns how many codes
    name no level."""
    if scale == SCALE_ZERO:
        out[:] = 0
        return 0
    if scale > SCALE_BYTE_MAX:
        out[:] = nan_bits(out, job.half)
        return 0
    if job.encoding == NAT4 or job.encoding == INT4:
        unpack(codes, payload, job.encoding == NAT4)
        payload = codes
    elif job.encoding == TERN:
        unpack_tern(codes, payload)
        payload = codes
    unit = (257 + refinement if job.refined else 1, scale - SCALE_BIAS - job.fraction_bits)
    return int(decode_block(job, out, payload, unit, divisor, room, past))


@inline
def decode(
    job: Any,
    datagrams: Array,
    rows: Array,
    values: Array,
    blocks: Array,
    scales: Array,
    refinements: Array,
    divisor: int,
    room: Array,
    codes: Array,
    past: bool,
) -> int:
    """See `inagg_host.codec.decode`; ``job`` is a `Result`, ``values`` are bits, which may go ``past`` the caches.
    Returns -1 if out of range.

    ``room`` (uint32) and ``codes`` (uint8), of one block: for use inside.
    """
    lanes = job.lanes
    if out_of_range(len(values), lanes, blocks, datagrams, rows):
        return -1
    invalid = 0
    for i in range(len(rows)):
        at = blocks[i]
        out = values[at * lanes : min((at + 1) * lanes, len(values))]
        payload, scale = datagrams[rows[i], HEADER_BYTES : HEADER_BYTES + job.payload_bytes], int(scales[at])
        streams = past and goes_past_caches(len(values), out)
        invalid += decode_payload(job, out, payload, scale, int(refinements[at]), divisor, room, codes, streams)
    if past:
        fence()
    return invalid


@inline
def decode_run(
    job: Any,
    data: Array,
    size: int,
    places: Array,
    numbers: Array,
    step: int,
    offset: int,
    values: Array,
    scales: Array,
    refinements: Array,
    divisor: int,
    indices: Array,
    room: Array,
    codes: Array,
    past: bool,
) -> int:
    """`decode` of the datagrams of ``size`` bytes at ``places`` in ``data``, which are of the blocks ``numbers`` *
    ``step`` + ``offset``. ``indices``: int64, of (3, as many or more), for use inside.
    """
    blocks = indices[0, : len(numbers)]
    for i in range(len(numbers)):
        blocks[i] = numbers[i] * step + offset
    datagrams = data.reshape((len(data) // size, size))
    return decode(job, datagrams, places, values, blocks, scales, refinements, divisor, room, codes, past)
