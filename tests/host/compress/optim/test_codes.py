"""The two codes whose bits are counted: what is counted is what is written, and it can be read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg_host.compress.optim import codes

rows = st.lists(st.sampled_from([0, 0, 0, 0, 1, -1, 2, -3, 17]), min_size=1, max_size=40)


@given(rows)
def test_dense_code_has_the_counted_bits_and_decodes(row: list[int]) -> None:
    levels = np.array(row)
    code = codes.encode_dense(levels)
    assert len(code) == codes.dense_bits(levels)
    assert codes.decode_dense(code).tolist() == row


@given(rows)
def test_gap_code_has_the_counted_bits_and_decodes(row: list[int]) -> None:
    levels = np.array(row)
    code = codes.encode_sparse(levels)
    assert len(code) == codes.sparse_bits(levels[None])
    assert codes.decode_sparse(code, levels.size).tolist() == row


def test_bits_of_several_rows_are_the_sum_of_their_bits() -> None:
    levels = np.random.default_rng(1).integers(-2, 3, (7, 30)) * (np.arange(30) % 3 == 0)
    levels[2] = levels[6] = 0
    assert codes.sparse_bits(levels) == sum(codes.sparse_bits(row[None]) for row in levels)
    assert codes.dense_bits(levels) == sum(codes.dense_bits(row) for row in levels)


@pytest.mark.parametrize(("n", "bits"), [(1, 1), (2, 3), (3, 3), (4, 5), (7, 5), (8, 7), (1023, 19), (1024, 21)])
def test_gamma_code_takes_twice_the_logarithm_and_one_bit(n: int, bits: int) -> None:
    assert codes.gamma_bits(np.array([n])).tolist() == [bits]
