"""Quantization by steps and sampling: unbiased, with the variance that is promised, and the best for a budget."""

from __future__ import annotations

import numpy as np
import pytest

from inagg_host.compress.optim.quantize import (
    NoCompression,
    RowCompressor,
    Sampling,
    Steps,
    block_steps,
    uniform_steps,
    varying_probabilities,
    varying_steps,
)

D = 16
DIAGONAL = np.geomspace(1, 0.01, D)
KINDS = {
    "uniform": uniform_steps(D, 4.0),
    "varying": varying_steps(DIAGONAL, 4.0),
    "blocks": block_steps(DIAGONAL, 4, 4.0),
    "sampling": varying_probabilities(DIAGONAL, 4.0),
}
by_kind = pytest.mark.parametrize("compressor", KINDS.values(), ids=KINDS.keys())


def repeated(compressor: RowCompressor, x: np.ndarray, count: int = 100_000) -> np.ndarray:
    return compressor(np.tile(x, (count, 1)), np.random.default_rng(7)).values


@by_kind
def test_mean_is_the_vector_and_error_is_within_both_bounds(compressor: RowCompressor) -> None:
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(D)
        values = repeated(compressor, x)
        spread = values.std(axis=0) / np.sqrt(len(values))
        assert (np.abs(values.mean(axis=0) - x) < 5 * spread + 1e-12).all()
        squares = ((values - x) ** 2).mean(axis=0)
        slack = 1.02 * float(x @ x)  # the mean of 100,000
        assert squares.sum() <= compressor.w * slack
        assert (DIAGONAL * squares).sum() <= compressor.cal(DIAGONAL) * slack


def test_rounding_to_a_grid_has_the_variance_of_its_two_neighbours() -> None:
    """One coordinate, norm 1, steps of 1/4: 0.3 times the norm goes to 1/4 or 1/2, with p = 1/5."""
    x = np.array([0.3, np.sqrt(1 - 0.09)])
    values = repeated(Steps(np.full(2, 0.25)), x)[:, 0]
    assert set(np.round(np.unique(values), 12)) == {0.25, 0.5}
    assert (values == 0.5).mean() == pytest.approx(0.2, abs=0.01)


def test_varying_steps_have_the_budget_and_the_best_bound() -> None:
    best = varying_steps(DIAGONAL, 4.0)
    assert np.linalg.norm(1 / best.steps) == pytest.approx(4.0)
    assert best.cal(DIAGONAL) == pytest.approx(DIAGONAL.sum() / 4.0)
    rng = np.random.default_rng(3)
    for _ in range(100):
        other = best.steps * np.exp(0.3 * rng.standard_normal(D))
        other *= np.linalg.norm(1 / other) / 4.0
        assert Steps(other).cal(DIAGONAL) >= best.cal(DIAGONAL)


def test_uniform_steps_have_the_budget_and_the_bound_of_dithering() -> None:
    steps = uniform_steps(64, 4.0)
    assert np.linalg.norm(1 / steps.steps) == pytest.approx(4.0)
    assert steps.w == pytest.approx(64 / 4.0)


def test_block_steps_make_all_blocks_equally_bad_within_the_budget() -> None:
    blocks = block_steps(DIAGONAL, 4, 4.0)
    steps = blocks.steps.reshape(4, 4)
    assert (steps == steps[:, :1]).all()
    assert (2 / steps[:, 0]).sum() == pytest.approx(4.0)  # sqrt(4) / h_l
    weights = np.linalg.norm(DIAGONAL.reshape(4, 4) * steps, axis=1)
    assert weights == pytest.approx(np.full(4, blocks.cal(DIAGONAL)))


def test_probabilities_have_the_budget_and_make_all_coordinates_equally_bad() -> None:
    sampling = varying_probabilities(DIAGONAL, 4.0)
    p = sampling.probabilities
    assert p.sum() == pytest.approx(4.0)
    assert DIAGONAL * (1 / p - 1) == pytest.approx(np.full(D, sampling.cal(DIAGONAL)))


def test_each_row_has_its_own_steps_and_norm() -> None:
    steps = varying_steps(np.stack([DIAGONAL, DIAGONAL[::-1]]), 4.0)
    x = np.random.default_rng(0).standard_normal((2, D)) * [[1.0], [1000.0]]
    values = steps(x, np.random.default_rng(1)).values
    grid = steps.steps * np.linalg.norm(x, axis=1, keepdims=True)
    assert values / grid == pytest.approx(np.round(values / grid))


@by_kind
def test_zero_vectors_stay_zero(compressor: RowCompressor) -> None:
    assert not compressor(np.zeros((3, D)), np.random.default_rng(0)).values.any()


def test_norms_are_counted_for_each_block_and_row() -> None:
    zeros = np.zeros((3, D))
    one, four = (Steps(np.ones(D), blocks)(zeros, np.random.default_rng(0)).bits for blocks in (1, 4))
    assert four - one == 3 * 3 * 32
    assert NoCompression()(zeros, np.random.default_rng(0)).bits == 3 * D * 32


def test_of_sampled_coordinates_values_and_places_are_counted() -> None:
    message = Sampling(np.ones(3))(np.full((2, 3), 5.0), np.random.default_rng(0))
    gaps = 1 + 1 + 1 + 1  # each is next to the one before, and the end is next to the last
    assert message.bits == 2 * (3 * 32 + gaps)
    assert message.dense_bits == 2 * (3 * 32 + 3)


def test_steps_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Steps(np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="equal blocks"):
        Steps(np.ones(10), 4)
