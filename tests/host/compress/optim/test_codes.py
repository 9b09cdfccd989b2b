"""The two codes whose bits are counted: what is counted is what is written, and it can be read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg_host.compress.optim import codes
from inagg_host.compress.optim.codes import Levels, folded


def encode_dense(levels: Levels) -> str:
    """The code that `codes.dense_bits` counts, of one row, as a string of 0 and 1."""
    return "".join(map(_gamma, folded(levels).tolist()))


def decode_dense(code: str) -> Levels:
    """The levels of `encode_dense`."""
    numbers, at = [], 0
    while at < len(code):
        number, at = _read_gamma(code, at)
        numbers.append(number)
    folded = np.array(numbers, np.int64)
    return np.where(folded % 2 == 0, folded // 2, -(folded // 2))


def encode_sparse(levels: Levels) -> str:
    """The code that `codes.sparse_bits` counts, of one row."""
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


def _gamma(n: int) -> str:
    return "0" * (n.bit_length() - 1) + f"{n:b}"


def _read_gamma(code: str, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends."""
    zeros = code.index("1", at) - at
    end = at + 2 * zeros + 1
    return int(code[at:end], 2), end


rows = st.lists(st.sampled_from([0, 0, 0, 0, 1, -1, 2, -3, 17]), min_size=1, max_size=40)


@given(rows)
def test_dense_code_has_the_counted_bits_and_decodes(row: list[int]) -> None:
    levels = np.array(row)
    code = encode_dense(levels)
    assert len(code) == codes.dense_bits(levels)
    assert decode_dense(code).tolist() == row


@given(rows)
def test_gap_code_has_the_counted_bits_and_decodes(row: list[int]) -> None:
    levels = np.array(row)
    code = encode_sparse(levels)
    assert len(code) == codes.sparse_bits(levels[None])
    assert decode_sparse(code, levels.size).tolist() == row


def test_bits_of_several_rows_are_the_sum_of_their_bits() -> None:
    levels = np.random.default_rng(1).integers(-2, 3, (7, 30)) * (np.arange(30) % 3 == 0)
    levels[2] = levels[6] = 0
    assert codes.sparse_bits(levels) == sum(codes.sparse_bits(row[None]) for row in levels)
    assert codes.dense_bits(levels) == sum(codes.dense_bits(row) for row in levels)


@pytest.mark.parametrize(("n", "bits"), [(1, 1), (2, 3), (3, 3), (4, 5), (7, 5), (8, 7), (1023, 19), (1024, 21)])
def test_gamma_code_takes_twice_the_logarithm_and_one_bit(n: int, bits: int) -> None:
    assert codes.gamma_bits(np.array([n])).tolist() == [bits]
