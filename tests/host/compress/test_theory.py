"""The noise terms of two-way compression, against noise measured through the switch."""

from __future__ import annotations

import numpy as np
import pytest
from tests.host.compress.ranks import Rank, ranks_on

from inagg_host.compress import Floats, Key, Natural, noise_terms, parse
from inagg_host.compress.natural import NATURAL_W

D = 50_000
"""|g|^2 is a sum of so many independent parts that one draw is near its mean."""


def gradient(rank: int, spread: float) -> Floats:
    """grad f_i of worker i: a common part, and ``spread`` of its own."""
    common, own = np.random.default_rng(0), np.random.default_rng(1 + rank)
    gradient: Floats = (common.standard_normal(D) + spread * own.standard_normal(D)).astype(np.float32)
    return gradient


@pytest.mark.parametrize(("sigma", "spread"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (2.0, 0.5)])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_second_moment_of_the_compressed_mean_is_within_alpha_and_beta(
    switch: str, workers: int, sigma: float, spread: float
) -> None:
    gradients = np.stack([gradient(rank, spread) for rank in range(workers)]).astype(np.float64)
    mean = gradients.mean(axis=0)

    def run(rank: Rank) -> Floats:
        noise = sigma * np.random.default_rng([7, rank.rank]).standard_normal(D)
        return rank.reduce(parse("natural"), (gradients[rank.rank] + noise).astype(np.float32))[0] / workers

    with ranks_on(switch, workers, "nat8") as ranks:
        measured = float(np.square(ranks.run(run)[0].astype(np.float64)).sum())
    dissimilarity = float(np.square(gradients - mean).sum()) / workers
    terms = noise_terms(NATURAL_W, NATURAL_W, workers, sigma**2 * D, dissimilarity)
    bound, squared = terms.second_moment(float(mean @ mean)), float(mean @ mean)
    without = squared + sigma**2 * D / workers
    assert without * 0.99 < measured < bound * 1.01
    assert measured > without * 1.05, "there is noise"
    # One worker's sum is rounded once only: the bound is (9 / 8)**2 / 1.0812 = 1.17 times that, but for chance.
    assert bound < measured * 1.2, "and the bound is not far from it"


def test_the_terms_are_those_of_the_paper() -> None:
    terms = noise_terms(up=0.5, down=0.25, workers=4, variance=8.0, dissimilarity=2.0)
    assert terms.alpha == 1.25 * 1.5 * 8.0 / 4 + 1.25 * 0.5 * 2.0 / 4
    assert terms.beta == 1 + 0.25 + 1.25 * 0.5 / 4
    shared = noise_terms(up=0.5, down=0.25, workers=4, variance=8.0, dissimilarity=2.0, shared=1.0)
    assert (shared.alpha, shared.beta) == (2 * terms.alpha, 2 * terms.beta)
    assert noise_terms(0, 0, 4, 8.0).alpha == 2.0, "no compression: the variance of a mean"
    with pytest.raises(ValueError, match="at least one worker"):
        noise_terms(0, 0, 0, 1.0)


def test_without_noise_of_gradients_one_worker_has_the_moments_of_both_roundings() -> None:
    """At |t| = 4/3 2^e the way up has exactly 9/8; its results are powers of two, which the way down leaves alone."""
    x = np.full(D, 4 / 3, np.float32)
    up = Natural()(x, Key(1))
    assert np.square(up).mean() / (4 / 3) ** 2 == pytest.approx(9 / 8, rel=0.01)
    assert (Natural()(up, Key(2)) == up).all()


@pytest.mark.parametrize("workers", [1, 4])
def test_where_workers_share_coordinates_errors_do_not_cancel(workers: int) -> None:
    """rand-k of equal gradients: the mean of all is rand-k of one."""
    randk, gradient = parse("randk:k=0.125"), np.random.default_rng(1).standard_normal(64)
    draws = [np.mean([randk(gradient, Key(7, rank, step)) for rank in range(workers)], axis=0) for step in range(4000)]
    second, square = float(np.mean([(g**2).sum() for g in draws])), float((gradient**2).sum())
    assert second / noise_terms(0, 0, workers, 0.0, shared=7.0).second_moment(square) == pytest.approx(1, abs=0.05)
    if workers > 1:
        assert second > 2 * noise_terms(7.0, 0, workers, 0.0).second_moment(square)
