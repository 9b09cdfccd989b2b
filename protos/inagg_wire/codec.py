"""The reference host codec: floats to codes and back, in numpy, one scale block at a time.

Encoding is unbiased rounding to levels. Let p be the exact fraction of the way from the level below |x| to the
level above (below the lowest level: from zero), and U = 0.w0 w1 w2 ... the binary fraction that the lane's
noise words spell. The magnitude goes up if and only if U + p carries into the ones. That is the design's
``(bits + r) & mask``, continued to as many noise words as p has bits, which is why it is exact at both edges of
the window and for every float type: the code depends on the number, not on its type.

Word 0 alone decides except in a *tie*, when w0 plus the top 32 bits of p are all ones and p has bits below them.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from .formats import Family, JobFormat
from .layout import LANE_BITS, SIGN_AND_LEVEL, Encoding
from .payload import Codes
from .reencode import integers
from .scale import ZERO, Floats, FloatType, Unit, to_bfloat16, widen

Noise = Callable[[int], npt.NDArray[np.uint32]]
"""Word i of every lane, for i = 0, 1, ...; see `noise.host_words`."""

U64 = npt.NDArray[np.uint64]


def carries(p: Fraction, words: Callable[[int], int], width: int = 32) -> bool:
    """Whether U + p >= 1, for 0 <= p < 1 and U spelled by ``words(0)``, ``words(1)``, ...: the specification.

    Looks at as many words as it takes; each further one is needed with probability 2**-width. ``width`` is the bits
    of a word; proofs enumerate all the noise of a narrower one.
    """
    i, ones = 0, (1 << width) - 1
    while p:  # when nothing is left to add, nothing carries out of the words that are left
        p *= 1 << width
        total = int(p) + words(i)
        if total != ones:
            return total > ones
        p, i = p - int(p), i + 1
    return False


def encode(values: Floats, float_type: FloatType, fmt: JobFormat, workers: int, unit: Unit, noise: Noise) -> Codes:
    """The codes of one block: ``values`` (1-D), uint32 codes of ``fmt.up``.

    Zero and -0.0 have code 0. Raises ValueError for values that are not finite or beyond the top level: the
    scale round has gone wrong (a block whose agreed scale is non-finite is not encoded).
    """
    x = widen(values, float_type)
    if unit == ZERO:
        if x.any():
            raise ValueError("the agreed scale is zero, and the values are not")
        return np.zeros(x.size, np.uint32)
    magnitude = np.abs(x)
    top = fmt.top(workers) * Fraction(unit.mantissa) * Fraction(2) ** unit.exponent
    if not np.isfinite(x).all() or Fraction(float(magnitude.max(initial=0.0))) > top:
        raise ValueError("values beyond the top level: was the scale made from these values?")
    if fmt.family is Family.NATURAL:
        level, p32, rest = _natural_floor(magnitude, unit)
    else:
        level, p32, rest = _linear_floor(magnitude, unit)
    total = p32 + noise(0)
    level += total >> np.uint64(32)
    for lane in np.flatnonzero((total == 0xFFFFFFFF) & rest):
        p = _fraction(Fraction(float(magnitude[lane])), fmt, unit)
        level[lane] += carries(p, lambda i, lane=lane: int(noise(i)[lane]))  # type: ignore[misc]
    return _codes(fmt.up, level, np.signbit(x))


def _split(magnitude: npt.NDArray[np.float64]) -> tuple[U64, npt.NDArray[np.int64]]:
    """``magnitude`` = m * 2**e exactly, with integers m, of 53 bits or zero, and e."""
    fraction, exponent = np.frexp(magnitude)
    return np.ldexp(fraction, 53).astype(np.uint64), exponent.astype(np.int64) - 53


def _shift_right(m: U64, by: npt.NDArray[np.int64]) -> tuple[U64, npt.NDArray[np.bool_]]:
    """floor(m / 2**by) and whether anything was lost; negative ``by`` shifts left."""
    right = np.clip(by, 0, 63).astype(np.uint64)  # m has 53 bits, so 63 leaves nothing, as more would
    left = np.clip(-by, 0, 63).astype(np.uint64)
    shifted = (m >> right) << left
    return shifted, (shifted >> left) << right != m


def _natural_floor(magnitude: npt.NDArray[np.float64], unit: Unit) -> tuple[U64, U64, npt.NDArray[np.bool_]]:
    """Level below each magnitude, the top 32 bits of p, and whether p has bits below those."""
    m, e = _split(magnitude)
    position = e + 52 - unit.exponent  # log2 of |x| / unit, rounded down
    inside = position >= 0
    fraction = np.where(inside, m & np.uint64((1 << 52) - 1), m)
    # Inside the window p is the mantissa's 52 fraction bits; below, all 53 bits, further down.
    p32, rest = _shift_right(fraction, np.where(inside, 20, 20 - position))
    level = np.where(inside & (m > 0), position + 1, 0).astype(np.uint64)
    return level, p32, rest


def _linear_floor(magnitude: npt.NDArray[np.float64], unit: Unit) -> tuple[U64, U64, npt.NDArray[np.bool_]]:
    """`_natural_floor` for levels that are multiples of the unit."""
    m, e = _split(magnitude)
    # |x| / unit * 2^32 = m * 2^(e - exponent + 32) / mantissa. Levels below 2^31 keep it below 2^63, so a shift
    # to the left (fix32 alone, whose mantissa is 1) loses nothing.
    scaled, lost = _shift_right(m, unit.exponent - 32 - e)
    quotient, remainder = np.divmod(scaled, np.uint64(unit.mantissa))
    return quotient >> np.uint64(32), quotient & np.uint64(0xFFFFFFFF), lost | (remainder != 0)


def _fraction(magnitude: Fraction, fmt: JobFormat, unit: Unit) -> Fraction:
    """p of one magnitude, exactly."""
    y = magnitude / unit.mantissa / Fraction(2) ** unit.exponent
    if fmt.family is Family.NATURAL and y >= 1:
        y /= 1 << (int(y).bit_length() - 1)
    return y - int(y)


def _codes(encoding: Encoding, level: U64, negative: npt.NDArray[np.bool_]) -> Codes:
    """Levels and signs to codes. A level of zero loses its sign."""
    bits = LANE_BITS[encoding]
    if encoding in SIGN_AND_LEVEL:
        sign = (negative & (level > 0)).astype(np.uint32) << np.uint32(bits - 1)
        return level.astype(np.uint32) | sign
    signed = np.where(negative, -level.astype(np.int64), level.astype(np.int64))
    return (signed & ((1 << bits) - 1)).astype(np.uint32)


def decode(codes: Codes, float_type: FloatType, fmt: JobFormat, workers: int, unit: Unit | None) -> Floats:
    """The sum over all workers that a result's ``codes`` stand for, as an array of ``float_type``.

    Exact for nat8 and nat4 in every type and for tern and dith8 in float32 and float64; else rounded once, to
    nearest even. A sum beyond the type's range is infinite, as that of a float all-reduce would be. ``unit``
    None (a non-finite scale) gives NaN.
    """
    if unit is None:
        wide = np.full(codes.size, np.nan)
    else:
        sums, _ = integers(fmt.down(workers), codes, fmt.result_levels(workers))
        exact = (sums * unit.mantissa).astype(np.float64)  # below 2^31 * 1, or 2^12 * 2^9: exact
        wide = np.ldexp(exact, unit.exponent + fmt.result_shift(workers)) + 0.0
    if float_type is FloatType.BFLOAT16:
        return _bfloat16_bits(wide)
    with np.errstate(over="ignore", under="ignore"):
        return wide.astype(float_type.dtype)


def _bfloat16_bits(wide: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """Rounded to nearest even, from values with at most 31 significant bits."""
    with np.errstate(over="ignore", under="ignore"):
        return to_bfloat16(_round_to_odd(wide))


def _round_to_odd(wide: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """float64 to float32, to odd, so that a second rounding gives what a single one would.

    (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd",
    2008.)
    """
    nearest = wide.astype(np.float32)
    bits = nearest.view(np.uint32)
    inexact = nearest.astype(np.float64) != wide
    too_far = np.abs(nearest.astype(np.float64)) > np.abs(wide)
    truncated = np.where(inexact & too_far, bits - np.uint32(1), bits)
    return np.where(inexact & np.isfinite(wide), truncated | np.uint32(1), bits).astype(np.uint32).view(np.float32)
