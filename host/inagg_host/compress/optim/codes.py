"""Bits of quantized vectors, in two prefix codes for vectors of small integers, most of which are zero.

Both use Elias' gamma code (1975): a positive integer n takes 2 floor(log2 n) + 1 bits. Methods are compared by these
counts alone; that there are such codes, which can be decoded, a test shows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Levels = npt.NDArray[np.int64]
NORM_BITS = 32
"""A norm is sent as a float32."""


def gamma_bits(n: Levels) -> Levels:
    """Length of the gamma code of each of ``n`` >= 1."""
    return 2 * np.frexp(n.astype(np.float64))[1].astype(np.int64) - 1


def dense_bits(levels: Levels) -> int:
    """Bits of ``levels`` (any shape), each by the gamma code of 1, 2, 3, 4, 5, ... for 0, 1, -1, 2, -2, ..."""
    return int(gamma_bits(folded(levels)).sum())


def sparse_bits(levels: Levels) -> int:
    """Bits of the rows of ``levels`` (rows, d): for each value that is not zero its distance from the one before it and
    its magnitude, both by the gamma code, and a sign; then the distance to one past the row's end."""
    rows, d = levels.shape
    row, column = np.nonzero(levels)
    starts = np.r_[0, np.flatnonzero(np.diff(row)) + 1] if row.size else np.zeros(0, np.int64)
    gaps = np.diff(column, prepend=-1)
    gaps[starts] = column[starts] + 1
    last = np.full(rows, -1)
    last[row] = column  # the greatest column of a row is assigned last
    magnitudes = np.abs(levels[row, column])
    return int(gamma_bits(gaps).sum() + gamma_bits(magnitudes).sum() + row.size + gamma_bits(d - last).sum())


def folded(levels: Levels) -> Levels:
    """0, 1, -1, 2, -2, ... as 1, 2, 3, 4, 5, ..."""
    return np.where(levels > 0, 2 * levels, 1 - 2 * levels)
