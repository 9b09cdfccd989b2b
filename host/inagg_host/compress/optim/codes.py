"""Bits of quantized vectors: two prefix codes for vectors of small integers, most of which are zero.

Both use Elias' gamma code (1975): a positive integer n takes 2 floor(log2 n) + 1 bits. Methods are compared by these
counts, so the codes can be decoded, and a test does.
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
    return int(gamma_bits(_folded(levels)).sum())


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


def encode_dense(levels: Levels) -> str:
    """The code that `dense_bits` counts, of one row, as a string of 0 and 1."""
    return "".join(map(_gamma, _folded(levels).tolist()))


def decode_dense(code: str) -> Levels:
    """The levels of `encode_dense`."""
    numbers, at = [], 0
    while at < len(code):
        number, at = _read_gamma(code, at)
        numbers.append(number)
    folded = np.array(numbers, np.int64)
    return np.where(folded % 2 == 0, folded // 2, -(folded // 2))


def encode_sparse(levels: Levels) -> str:
    """The code that `sparse_bits` counts, of one row."""
    parts, before = [], -1
    for column in np.flatnonzero(levels).tolist():
        level = int(levels[column])
        parts += [_gamma(column - before), _gamma(abs(level)), "1" if level < 0 else "0"]
        before = column
    return "".join([*parts, _gamma(levels.size - before)])


def decode_sparse(code: str, d: int) -> Levels:
    """The ``d`` levels of `encode_sparse`."""
    levels, at, column = np.zeros(d, np.int64), 0, -1
    while True:
        gap, at = _read_gamma(code, at)
        column += gap
        if column == d:
            return levels
        magnitude, at = _read_gamma(code, at)
        levels[column] = -magnitude if code[at] == "1" else magnitude
        at += 1


def _folded(levels: Levels) -> Levels:
    """0, 1, -1, 2, -2, ... as 1, 2, 3, 4, 5, ..."""
    return np.where(levels > 0, 2 * levels, 1 - 2 * levels)


def _gamma(n: int) -> str:
    return "0" * (n.bit_length() - 1) + f"{n:b}"


def _read_gamma(code: str, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends."""
    zeros = code.index("1", at) - at
    end = at + 2 * zeros + 1
    return int(code[at:end], 2), end
