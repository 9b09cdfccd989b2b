"""The loops of the decoders: the codes of one block to the bits of floats.

For 16 and 32 bits, integers become a float32 that is exact (or that rounds as the exact one would), and `narrow` puts
it into the type and its range. So each value is rounded once, whatever the processor's flush-to-zero mode is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import by_types, jit, shift_left, shift_right

from .bits import I32, I64, U8, U16, U32, U64, Array, as_float, bits_of, power_of_two, swapped

# --- codes to integers; how many name no level is returned ---


@jit
def unpack(codes: Array, payload: Array, natural: bool) -> None:
    """Two codes a byte to one: nat4 as nat8, int4 as int8."""
    for i in range(len(payload)):
        byte = U32(payload[i])
        high, low = byte >> U32(4), byte & U32(15)
        if natural:
            codes[2 * i] = U8(((high & U32(8)) << U32(4)) | (high & U32(7)))
            codes[2 * i + 1] = U8(((low & U32(8)) << U32(4)) | (low & U32(7)))
        else:
            codes[2 * i] = U8((high ^ U32(8)) - U32(8))
            codes[2 * i + 1] = U8((low ^ U32(8)) - U32(8))


@jit
def unpack_tern(codes: Array, payload: Array) -> None:
    """Four codes a byte to one: tern as int8; -2, which is none, stays so."""
    for i in range(len(payload)):
        byte = U32(payload[i])
        for j in range(4):
            code = (byte >> U32(6 - 2 * j)) & U32(3)
            codes[4 * i + j] = U8((code ^ U32(2)) - U32(2))


@jit
def valid(value: Any, top: Any) -> Any:
    """An int32, 0 if it is beyond ``top``."""
    return I32(0) if value > top or value < I32(-top) else value


@jit
def load8(integers: Array, codes: Array, top: int) -> int:
    invalid = U32(0)
    for i in range(len(integers)):
        value = I32(np.int8(codes[i]))
        integers[i] = valid(value, I32(top))
        invalid = U32(invalid + U32(integers[i] != value))
    return int(invalid)


@jit
def load16(integers: Array, codes: Array, top: int) -> int:
    invalid = U32(0)
    for i in range(len(integers)):
        value = I32(np.int16(U16((U32(codes[2 * i]) << U32(8)) | U32(codes[2 * i + 1]))))
        integers[i] = valid(value, I32(top))
        invalid = U32(invalid + U32(integers[i] != value))
    return int(invalid)


@jit
def load32(integers: Array, codes: Array, top: int) -> int:
    words = codes.view(np.uint32)
    invalid = U32(0)
    for i in range(len(integers)):
        value = I32(swapped(words[i]))
        integers[i] = valid(value, I32(top))
        invalid = U32(invalid + U32(integers[i] != value))
    return int(invalid)


@jit
def highest_level(codes: Array, lanes: int) -> int:
    """The highest level of ``lanes`` natural codes: one pass, 64 to an instruction."""
    highest = U8(0)
    for i in range(lanes):
        highest = max(highest, U8(codes[i] & U8(127)))
    return int(highest)


# --- to floats ---


@jit
def narrow(magnitude: Any, shift: Any, fraction_bits: Any, infinite: Any) -> Any:
    """The magnitude of a float32, normal or zero, times a power of two, in a type with ``fraction_bits``; as bits.

    ``shift`` (int32) is what that adds to the exponent field; ``infinite`` the bits of infinity. To nearest even.
    """
    drop = U32(U32(23) - fraction_bits)
    half = U32((U32(1) << drop) >> U32(1))
    odd = U32(half != U32(0))
    field = I32(I32(magnitude >> U32(23)) + shift)
    tie = U32((magnitude >> drop) & odd)
    normal = U32(U32(magnitude + half - odd + tie) >> drop)
    normal = min(U32(normal + U32(U32(shift) << fraction_bits)), infinite)
    # The significand has 24 bits. Shifted by 25 it is less than a half, as it would be if shifted by more.
    significand = U32((magnitude & U32(0x7FFFFF)) | U32(0x800000))
    by = U32(min(I32(I32(drop) + I32(1) - field), I32(25)))
    half = shift_left(U32(1), U32(by - U32(1)))
    tie = U32(shift_right(significand, by) & U32(1))
    subnormal = shift_right(U32(significand + half - U32(1) + tie), by)
    wide = normal if field > I32(0) else subnormal
    return wide if magnitude != U32(0) else U32(0)


@jit
def integers_narrow(
    out: Array, integers: Array, mantissa: Any, shift: Any, fraction_bits: Any, infinite: Any, sign_bit: Any
) -> None:
    """``integers`` (int32) times ``mantissa`` * 2**``shift`` to the bits of a type of 16 or 32 bits."""
    to_odd = fraction_bits < U32(23)
    for i in range(len(out)):
        value = integers[i]
        m = U32(abs(I32(value * mantissa)))
        # Only fix32 has more than 24 bits, which float32 would round. Of those, 16 bits keep the top 17 or more and
        # whether anything follows, which is enough to round them once (Boldo and Melquiond 2008, see the reference).
        sticky = U32(U32(U32(m >> U32(7)) | U32((m & U32(127)) != U32(0))) << U32(7))
        m = sticky if to_odd and m >= U32(1 << 24) else m
        bits = narrow(bits_of(np.float32(I32(m))), shift, fraction_bits, infinite)
        out[i] = U32(bits | sign_bit) if value < I32(0) else bits


@jit
def are_normal_integers(exponent: int) -> bool:
    """Whether no product of `integers_floats` is subnormal, and none infinite, with a unit of up to 2^9 *
    2**``exponent``: 2^31 * 2^9 * 2^87 < 2^128."""
    return -126 <= exponent <= 87


@jit
def integers_floats(out: Array, integers: Array, unit: Any) -> None:
    """The same in float32, where `are_normal_integers`."""
    for i in range(len(out)):
        out[i] = bits_of(np.float32(integers[i]) * unit)


@jit
def natural_normal(out: Array, codes: Array, before: Any, fraction_bits: Any, sign_bit: Any) -> None:
    """`natural_narrow`, when no code is invalid, no value subnormal or infinite. ``before``: bits of half a unit."""
    to_sign = U32(24) if sign_bit == U32(0x80000000) else U32(8)
    for i in range(len(out)):
        code = U32(codes[i])
        level = U32(code & U32(127))
        bits = U32(shift_left(level, fraction_bits) + before)
        bits = U32(bits | U32(shift_left(code, to_sign) & sign_bit))
        out[i] = bits if level != U32(0) else U32(0)


@jit
def natural_floats(out: Array, codes: Array, unit: Any) -> None:
    """The same in float32, in half the time. ``unit``: 2^126 of it. With its sign at the top and its level in the
    exponent a code is a float, 2^-126 for level 1; the sum with zero makes a negative zero a positive one."""
    for i in range(len(out)):
        signed = U32(U32(I32(np.int8(codes[i])) << I32(23)) & U32(0xBFFFFFFF))
        out[i] = bits_of(np.float32(as_float(signed) * unit) + np.float32(0))


@jit
def are_normal(exponent: int, top: int) -> bool:
    """Whether the products of `natural_floats`, of levels up to ``top``, are normal floats, as are their factors."""
    return -126 <= exponent <= 1 and exponent + top <= 128


@jit
def natural_narrow(
    out: Array, codes: Array, unit_field: int, top: int, fraction_bits: Any, infinite: Any, sign_bit: Any
) -> int:
    """Codes of nat8 to the bits of a type of 16 or 32 bits. Returns how many name no level.

    ``unit_field``: the unit's exponent field; 0 and less are subnormal.
    """
    before_first, last = I32(unit_field - 1), U32(top)
    invalid = U32(0)
    normal = unit_field >= 1 and U32(U32(unit_field - 1 + top) << fraction_bits) < infinite
    if normal and highest_level(codes, len(out)) <= top:  # as almost always: none subnormal, infinite or invalid
        natural_normal(out, codes, shift_left(U32(before_first), fraction_bits), fraction_bits, sign_bit)
        return 0
    for i in range(len(out)):
        code = U32(codes[i])
        level = U32(code & U32(127))
        field = I32(I32(level) + before_first)
        bits = min(U32(U32(field) << fraction_bits), infinite)
        if field <= I32(0):
            by = U32(U32(field) + fraction_bits - U32(1))
            bits = shift_left(U32(1), by) if by < U32(32) else U32(0)
        bits = U32(bits | sign_bit) if code >= U32(128) else bits
        beyond = level > last
        out[i] = U32(0) if beyond or level == U32(0) else bits
        invalid = U32(invalid + U32(beyond))
    return int(invalid)


# --- by type of the values ---


@by_types
def from_integers(out: Any, integers: Any, mantissa: Any, exponent: Any, half: Any) -> Any:
    """``integers`` (int32) times ``mantissa`` * 2**``exponent``, as bits."""

    def to16(out: Array, integers: Array, mantissa: int, exponent: int, half: bool) -> None:
        if half:
            integers_narrow(out, integers, I32(mantissa), I32(exponent + 15 - 127), U32(10), U32(0x7C00), U32(0x8000))
        else:
            integers_narrow(out, integers, I32(mantissa), I32(exponent), U32(7), U32(0x7F80), U32(0x8000))

    def to32(out: Array, integers: Array, mantissa: int, exponent: int, half: bool) -> None:
        if are_normal_integers(exponent):
            integers_floats(out, integers, np.float32(mantissa * power_of_two(exponent)))
        else:
            integers_narrow(out, integers, I32(mantissa), I32(exponent), U32(23), U32(0x7F800000), U32(0x80000000))

    def to64(out: Array, integers: Array, mantissa: int, exponent: int, half: bool) -> None:
        unit = mantissa * power_of_two(exponent)
        for i in range(len(out)):
            out[i] = np.float64(np.float64(integers[i]) * unit).view(np.uint64)

    return {16: to16, 32: to32, 64: to64}[out.dtype.bitwidth]


@by_types
def from_natural(out: Any, codes: Any, exponent: Any, top: Any, half: Any) -> Any:
    """Codes of nat8 with a unit of 2**``exponent``, as bits. Returns how many name no level."""

    def to16(out: Array, codes: Array, exponent: int, top: int, half: bool) -> int:
        if half:
            return natural_narrow(out, codes, exponent + 15, top, U32(10), U32(0x7C00), U32(0x8000))
        return natural_narrow(out, codes, exponent + 127, top, U32(7), U32(0x7F80), U32(0x8000))

    def to32(out: Array, codes: Array, exponent: int, top: int, half: bool) -> int:
        if are_normal(exponent, top) and highest_level(codes, len(out)) <= top:
            natural_floats(out, codes, np.float32(power_of_two(exponent + 126)))
            return 0
        return natural_narrow(out, codes, exponent + 127, top, U32(23), U32(0x7F800000), U32(0x80000000))

    def to64(out: Array, codes: Array, exponent: int, top: int, half: bool) -> int:
        before_first, last, invalid = I64(exponent + 1023 - 1), U64(top), U64(0)
        for i in range(len(out)):
            code = U64(codes[i])
            level = U64(code & U64(127))
            bits = U64(U64(I64(level) + before_first) << U64(52)) | U64((code >> U64(7)) << U64(63))
            beyond = level > last
            out[i] = U64(0) if beyond or level == U64(0) else bits
            invalid += U64(beyond)
        return int(invalid)

    return {16: to16, 32: to32, 64: to64}[out.dtype.bitwidth]
