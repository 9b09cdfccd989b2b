"""Payloads to floats: `inagg_wire.codec.decode` for many blocks at a time, written into the caller's array."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import by_types, fused, inline
from inagg_link.simd import fence
from inagg_wire.layout import HEADER_BYTES, Encoding
from inagg_wire.scale import SCALE_BIAS, SCALE_BYTE_MAX, SCALE_ZERO, FloatType

from .bits import I32, U16, U32, U64, Array, bits_of
from .coding import Fixed, Linear, Natural
from .decoder_loops import from_integers, from_natural, load8, load16, load32, narrow, unpack, unpack_tern
from .decoder_streams import stream_integers, stream_natural
from .past_caches import goes_past_caches

NAT4, TERN, FIX32, INT4, INT16 = (
    int(e) for e in (Encoding.NAT4, Encoding.TERN, Encoding.FIX32, Encoding.INT4, Encoding.INT16)
)
NAN_HALF, NAN_BFLOAT, NAN_32, NAN_64 = (float_type.nan_bits for float_type in FloatType)


# --- by family of the format ---


@by_types
def decode_block(job: Any, out: Any, codes: Any, unit: Any, divisor: Any, room: Any, past: Any) -> Any:
    """``unit``: its mantissa and exponent; ``past``: as `decode_payload`. Returns how many codes name no level."""

    def of_natural(
        job: Any, out: Array, codes: Array, unit: tuple[int, int], divisor: int, room: Array, past: bool
    ) -> Any:
        if past and stream_natural(out, codes, unit[1], job.top, divisor):
            return 0
        invalid = from_natural(out, codes, unit[1], job.top, job.half)
        if divisor != 1:
            divide(out, out, divisor, job.half)
        return invalid

    def of_natural16(
        job: Any, out: Array, codes: Array, unit: tuple[int, int], divisor: int, room: Array, past: bool
    ) -> Any:
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

    natural, linear = (of_natural16, of_linear16) if out.dtype.bitwidth == 16 else (of_natural, of_linear)
    return {Natural: natural, Linear: linear, Fixed: linear}[job.instance_class]


@inline
def load_integers(job: Any, integers: Array, codes: Array) -> int:
    """The integers of a linear format's ``codes``; how many name no level."""
    if job.encoding == FIX32:
        return load32(integers, codes, job.top)
    if job.encoding == INT16:
        return load16(integers, codes, job.top)
    return load8(integers, codes, job.top)


@by_types
def divide(out: Any, sums: Any, divisor: Any, half: Any) -> Any:
    """Write the bits of means. ``sums``: bits of floats, ``out`` itself or, if that is narrower, of float32."""

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


@by_types
def nan_bits(out: Any, half: Any) -> Any:
    """The bits of NaN in the type of ``out``."""
    return {
        16: lambda out, half: U16(NAN_HALF) if half else U16(NAN_BFLOAT),
        32: lambda out, half: U32(NAN_32),
        64: lambda out, half: U64(NAN_64),
    }[out.dtype.bitwidth]


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
    room: Array,
    codes: Array,
    past: bool,
) -> int:
    """Write the sums that results hold over blocks of ``values`` (bits), which may go ``past`` the caches. ``data``: so
    many datagrams of ``size`` bytes, of which those at ``places`` are of the blocks ``numbers`` * ``step`` +
    ``offset``. ``job``: a `Coding`.

    ``scales``, ``refinements``: the agreed bytes of all blocks. A block whose scale is 250 or above becomes NaN, one
    with scale 0 zeros, whatever its codes. ``room`` (uint32) and ``codes`` (uint8), of one block: for use inside.

    ``divisor``: the number of workers, for their mean. The sum is rounded to the float type, or to float32 if that is
    narrower, divided in that, and rounded to the float type: so a mean that is in its range comes even of a sum that is
    not.

    Returns how many codes name no level; they count as zero.
    """
    lanes, datagrams, invalid = job.lanes, data.reshape((len(data) // size, size)), 0
    for i in range(len(places)):
        at = numbers[i] * step + offset
        out = values[at * lanes : min((at + 1) * lanes, len(values))]
        payload, scale = datagrams[places[i], HEADER_BYTES : HEADER_BYTES + job.payload_bytes], int(scales[at])
        streams = past and goes_past_caches(len(values), out)
        invalid += decode_payload(job, out, payload, scale, int(refinements[at]), divisor, room, codes, streams)
    if past:
        fence()
    return invalid
