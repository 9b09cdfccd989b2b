"""The exact codes of single lanes, with as many noise words as it takes: for the blocks in which word 0 left a tie.

A magnitude is ``m * 2**e`` with an integer m of up to 53 bits. Terms are those of `inagg_wire.codec`.
"""

from __future__ import annotations

from typing import Any

from inagg_link.jit import jit
from inagg_wire.layout import Encoding

from .bits import U64, word_at

NAT8, NAT4, FIX32 = int(Encoding.NAT8), int(Encoding.NAT4), int(Encoding.FIX32)
ONES = 0xFFFFFFFF
FRACTION = (1 << 52) - 1
INFINITE = 0x7FF << 52
"""The bits of the float64 infinity; those of NaN are more."""


@jit
def split(bits: Any, width: int, fraction_bits: int) -> tuple[Any, int]:
    """m and e of the magnitude of float bits (uint64) of ``width`` bits."""
    magnitude = U64(bits & U64((1 << (width - 1)) - 1))
    fraction = U64(magnitude & U64((1 << fraction_bits) - 1))
    field = int(magnitude >> U64(fraction_bits))
    bias = (1 << (width - fraction_bits - 2)) - 1
    if field > 0:
        return U64(fraction | U64(1 << fraction_bits)), field - bias - fraction_bits
    return fraction, 1 - bias - fraction_bits


@jit
def double_bits(magnitude: Any, width: int, fraction_bits: int) -> Any:
    """The float64 bits of a magnitude of ``width`` bits (uint64); those of infinity if it is not finite."""
    if magnitude >= U64(((1 << (width - 1 - fraction_bits)) - 1) << fraction_bits):
        return U64(INFINITE)
    if width == 64 or magnitude == U64(0):
        return magnitude
    m, e = split(magnitude, width, fraction_bits)
    m, e = U64(m << U64(52 - fraction_bits)), e - 52 + fraction_bits
    while m <= U64(FRACTION):  # it was subnormal
        m, e = U64(m << U64(1)), e - 1
    return U64((U64(e + 52 + 1023) << U64(52)) | U64(m & U64(FRACTION)))


@jit
def floor_shifted(m: Any, by: int) -> Any:
    """floor(m * 2**by), modulo 2**64."""
    if by >= 0:
        return U64(m << U64(by)) if by < 64 else U64(0)
    return U64(m >> U64(-by)) if by > -64 else U64(0)


@jit
def carries(m: Any, q: int, divisor: int, lane: int, k0: Any, k1: Any) -> bool:
    """Whether U + p >= 1, for p the fraction of m * 2**-q / ``divisor`` (up to 512; its floor below 2**63).

    A long division in base 2**32: p's digits come one at a time, each to be added to its noise word.
    """
    remainder = U64(floor_shifted(m, -q) % U64(divisor))
    index = 0
    while True:
        shift = 32 * (index + 1) - q
        digit = U64(floor_shifted(m, shift) & U64(ONES))
        dividend = U64((remainder << U64(32)) | digit)
        remainder = U64(dividend % U64(divisor))
        total = U64(dividend // U64(divisor)) + U64(word_at(index, lane, k0, k1))
        if total != U64(ONES):
            return bool(total > U64(ONES))
        digits_left = shift < 0 and U64(floor_shifted(m, shift) << U64(min(-shift, 63))) != m
        if remainder == U64(0) and not digits_left:
            return False
        index += 1


@jit
def natural_level(m: Any, e: int, unit: int, lane: int, k0: Any, k1: Any) -> int:
    """The level of m * 2**e for levels from 2**``unit``."""
    length = 0
    while U64(m >> U64(length)) != U64(0):
        length += 1
    position = length - 1 + e - unit
    if length == 0:
        return 0
    if position < 0:
        return int(carries(m, unit - e, 1, lane, k0, k1))
    fraction = U64(m - U64(U64(1) << U64(length - 1)))
    return position + 1 + int(carries(fraction, length - 1, 1, lane, k0, k1))


@jit
def linear_level(m: Any, e: int, mantissa: int, exponent: int, lane: int, k0: Any, k1: Any) -> int:
    """The level of m * 2**e for levels that are multiples of ``mantissa`` * 2**``exponent``."""
    whole = int(floor_shifted(m, e - exponent) // U64(mantissa))
    return whole + int(carries(m, exponent - e, mantissa, lane, k0, k1))


@jit
def exact_code(
    encoding: int, bits: Any, width: int, fraction_bits: int, unit: tuple[int, int], lane: int, k0: Any, k1: Any
) -> int:
    """The code of a value, of whose float bits (uint64) there are ``width``; ``unit``: its mantissa and exponent. Of
    natural formats it is a sign bit and a level, else a level with its sign."""
    m, e = split(bits, width, fraction_bits)
    negative = U64(bits) >> U64(width - 1) != U64(0)
    if encoding in (NAT8, NAT4):
        level = natural_level(m, e, unit[1], lane, k0, k1)
        sign = 8 if encoding == NAT4 else 128
        return level | sign if negative and level > 0 else level
    level = linear_level(m, e, unit[0], unit[1], lane, k0, k1)
    return -level if negative else level
