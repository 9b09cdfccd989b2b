"""Smoothness matrices against the functions that they are of."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from inagg_host.compress.optim.smoothness import (
    Smoothness,
    diagonal_bound,
    logistic_smoothness,
    ridge_smoothness,
    shared_smoothness,
    stacked,
)

Array = npt.NDArray[np.float64]
RNG = np.random.default_rng(20210607)
SAMPLES = RNG.standard_normal((30, 6)) * np.geomspace(1, 0.01, 6)
L2 = 0.01


def is_at_least(larger: Array, smaller: Array) -> bool:
    """``larger`` - ``smaller`` is positive semidefinite, up to rounding."""
    return bool(np.linalg.eigvalsh(larger - smaller)[0] >= -1e-12 * np.linalg.norm(larger))


def test_root_squared_is_the_matrix_and_inverse_root_undoes_it() -> None:
    for matrix in (ridge_smoothness(SAMPLES, L2), Smoothness.of(np.array([4.0, 9.0, 0.25]))):
        v = RNG.standard_normal((5, matrix.diagonal.size))
        twice = matrix.colour(matrix.colour(v))
        assert np.allclose(twice, v * matrix.matrix if matrix.is_diagonal else v @ matrix.matrix)
        assert np.allclose(matrix.colour(matrix.whiten(v)), v)


def test_what_the_function_does_not_bend_along_stays_zero() -> None:
    matrix = Smoothness.of(np.diag([1.0, 4.0, 0.0]))
    assert matrix.whiten(np.array([2.0, 2.0, 5.0])).tolist() == [2.0, 1.0, 0.0]
    assert Smoothness.of(np.array([1.0, 4.0, 0.0])).whiten(np.array([2.0, 2.0, 5.0])).tolist() == [2.0, 1.0, 0.0]


def test_what_rounding_makes_of_a_direction_without_bend_is_none() -> None:
    samples = np.random.default_rng(4).standard_normal((2, 6))
    smoothness = Smoothness.of(samples.T @ samples)
    assert np.linalg.matrix_rank(smoothness.inverse_root) == 2
    assert np.abs(smoothness.inverse_root).max() < 10


def test_ridge_matrix_is_the_hessian() -> None:
    def gradient(x: Array) -> Array:
        result: Array = SAMPLES.T @ (SAMPLES @ x) / len(SAMPLES) + L2 * x
        return result

    columns = [gradient(e) - gradient(np.zeros(6)) for e in np.eye(6)]
    assert np.allclose(ridge_smoothness(SAMPLES, L2).matrix, np.stack(columns, axis=1))


def test_logistic_loss_stays_below_its_quadratic_bound() -> None:
    labels = np.sign(RNG.standard_normal(30))

    def loss(x: Array) -> float:
        return float(np.logaddexp(0, -labels * (SAMPLES @ x)).mean() + L2 / 2 * (x @ x))

    def gradient(x: Array) -> Array:
        pull = labels / (1 + np.exp(labels * (SAMPLES @ x)))
        result: Array = L2 * x - (SAMPLES.T @ pull) / len(labels)
        return result

    full, diagonal = logistic_smoothness(SAMPLES, L2).matrix, np.diag(logistic_smoothness(SAMPLES, L2, True).matrix)
    for matrix in (full, diagonal):
        for _ in range(200):
            x, y = RNG.standard_normal((2, 6)) * 10.0 ** RNG.uniform(-3, 2)
            bound = loss(y) + gradient(y) @ (x - y) + (x - y) @ matrix @ (x - y) / 2
            assert loss(x) <= bound + 1e-12 * abs(bound)


def test_diagonal_bound_is_at_least_the_gram_matrix_and_equals_it_if_that_is_diagonal() -> None:
    assert is_at_least(np.diag(diagonal_bound(SAMPLES)), SAMPLES.T @ SAMPLES)
    assert diagonal_bound(np.diag([1.0, -2.0, 3.0])).tolist() == [1.0, 4.0, 9.0]


@pytest.mark.parametrize("diagonal", [False, True])
def test_shared_matrix_is_at_least_each(diagonal: bool) -> None:
    parts = [ridge_smoothness(part, L2, diagonal) for part in np.split(SAMPLES, 3)]
    shared = shared_smoothness(parts)
    for part in parts:
        larger, smaller = (np.diag(m.matrix) if diagonal else m.matrix for m in (shared, part))
        assert is_at_least(larger, smaller)


def test_shared_matrix_of_equal_ones_is_that_matrix() -> None:
    one = ridge_smoothness(SAMPLES, L2)
    assert np.allclose(shared_smoothness([one, one]).matrix, one.matrix)


@pytest.mark.parametrize("diagonal", [False, True])
def test_stacked_matrices_apply_row_by_row(diagonal: bool) -> None:
    parts = [ridge_smoothness(part, L2, diagonal) for part in np.split(SAMPLES, 3)]
    v = RNG.standard_normal((3, 6))
    together = stacked(parts)
    for rows, each in ((together.whiten(v), "whiten"), (together.colour(v), "colour")):
        assert np.allclose(rows, [getattr(part, each)(row) for part, row in zip(parts, v, strict=True)])
    assert together.setup_bits == sum(part.setup_bits for part in parts) == 3 * 32 * (6 if diagonal else 36)
    assert together.trace == pytest.approx(max(part.trace for part in parts))


@pytest.mark.parametrize("matrix", [np.array([1.0, -1.0]), np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones((2, 3))])
def test_what_is_no_smoothness_matrix_is_refused(matrix: Array) -> None:
    with pytest.raises(ValueError, match=r"smoothness|symmetric"):
        Smoothness.of(matrix)
