"""The switch's arithmetic: codes to integers, their sum or maximum, and back to codes.

The reference in numpy. P4 does the same by a table from codes to integers, registers, and a longest-prefix
match for the leading one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .formats import JobFormat
from .layout import LANE_BITS, SIGN_AND_LEVEL, Encoding, Op
from .noise import Words
from .payload import Codes

Integers = npt.NDArray[np.int64]


def integers(encoding: Encoding, codes: Codes, top: int) -> tuple[Integers, int]:
    """The integer of each code, int64, and how many codes name no level.

    ``top``: the highest level index of a natural encoding, the largest magnitude of a linear one. A code
    beyond it counts as zero. So does a sign without a level, which is a valid zero.
    """
    bits = LANE_BITS[encoding]
    wide = codes.astype(np.int64)
    if encoding is Encoding.SCALE8:
        return wide, 0
    sign = wide >> (bits - 1)
    if encoding in SIGN_AND_LEVEL:
        level = wide & ((1 << (bits - 1)) - 1)
        invalid = level > top
        magnitude = np.where(invalid, 0, (1 << np.minimum(level, 62)) >> 1)
        return np.where(sign == 1, -magnitude, magnitude), int(invalid.sum())
    signed = wide - (sign << bits)
    invalid = np.abs(signed) > top
    return np.where(invalid, 0, signed), int(invalid.sum())


def contribution_integers(op: Op, fmt: JobFormat, workers: int, codes: Codes) -> tuple[Integers, int]:
    """Integers that a contribution adds to the accumulators (or, for MAX, that are compared with them)."""
    return integers(fmt.encoding(op), codes, fmt.levels(workers))


def combine(op: Op, accumulators: Integers, contribution: Integers) -> Integers:
    """The accumulators after one more contribution."""
    return accumulators + contribution if op is Op.SUM else np.maximum(accumulators, contribution)


def natural_levels(sums: Integers, low: int, noise: Words) -> Codes:
    """Natural compression of integers (Horvath et al. 2019, definition 2, eq. 5), levels only.

    ``low``: log2 of the lowest level. With m = |sum| and k the position of its leading one, but at least
    ``low``, the low k bits of the noise are added and the leading one is taken again. A carry out of the low k
    bits has probability (m mod 2^k) / 2^k, which is what unbiasedness asks for; below the lowest level it is
    m / 2^low. The result counts levels from 1 at 2^low; 0 is zero.
    """
    magnitude = np.abs(sums)
    position = np.maximum(bit_length(magnitude) - 1, low)
    rounded = magnitude + (noise.astype(np.int64) & ((1 << position) - 1))
    return np.maximum(bit_length(rounded) - low, 0).astype(np.uint32)


def bit_length(magnitude: Integers) -> Integers:
    """Bits of each integer below 2**52; 0 of 0."""
    return np.frexp(magnitude.astype(np.float64))[1].astype(np.int64)


def natural_codes(encoding: Encoding, sums: Integers, low: int, noise: Words) -> Codes:
    """`natural_levels` with their signs, as codes of ``encoding``."""
    level = natural_levels(sums, low, noise)
    return level | ((sums < 0) & (level > 0)).astype(np.uint32) << np.uint32(LANE_BITS[encoding] - 1)


def result_codes(
    op: Op, fmt: JobFormat, workers: int, accumulators: Integers, noise: Words, unit_shift: int = 0
) -> Codes:
    """The codes of a result, from complete accumulators and the switch's noise (`noise.switch_words`).

    ``unit_shift``: log2 of the unit of the accumulators, where they are of sums that other switches have rounded.
    """
    encoding, shift = fmt.result_encoding(op, workers), fmt.result_shift(workers) - unit_shift if op is Op.SUM else 0
    if encoding in SIGN_AND_LEVEL:
        return natural_codes(encoding, accumulators, shift, noise)
    result = accumulators
    if shift:
        rounded = (np.abs(accumulators) + (noise.astype(np.int64) & ((1 << shift) - 1))) >> shift
        result = np.where(accumulators < 0, -rounded, rounded)
    return (result & ((1 << LANE_BITS[encoding]) - 1)).astype(np.uint32)


def partial_codes(op: Op, fmt: JobFormat, workers: int, sums: Integers, noise: Words) -> Codes:
    """The codes of a partial sum that goes from switch to switch: exact, unless the format has ``roundings``; those use
    ``noise`` (`noise.partial_words`)."""
    encoding = fmt.partial(op, workers)
    if encoding in SIGN_AND_LEVEL:
        return natural_codes(encoding, sums, fmt.partial_shift(workers), noise)
    return (sums & ((1 << LANE_BITS[encoding]) - 1)).astype(np.uint32)
