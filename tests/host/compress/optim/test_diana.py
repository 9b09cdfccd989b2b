"""DCGD and DIANA against closed forms: without compression they are gradient descent; with it, DIANA converges."""

from __future__ import annotations

import numpy as np
import pytest

from inagg_host.compress.optim.diana import Diana, diana_step
from inagg_host.compress.optim.quantize import NoCompression, RowCompressor, Sampling, uniform_steps, varying_steps
from inagg_host.compress.optim.smoothness import Smoothness, shared_smoothness, stacked

N, D = 3, 8
RNG = np.random.default_rng(11)
HESSIANS = np.exp(RNG.uniform(-3, 0, (N, D)))
CENTRES = RNG.standard_normal((N, D))
MEAN = HESSIANS.mean(axis=0)
MINIMIZER = (HESSIANS * CENTRES).mean(axis=0) / MEAN
OWN = stacked([Smoothness.of(h) for h in HESSIANS])
SHARED = shared_smoothness([Smoothness.of(h) for h in HESSIANS])


def gradients(x: np.ndarray) -> np.ndarray:
    return HESSIANS * (x - CENTRES)


def method(compressor: RowCompressor, matrices: Smoothness | None, step: float, alpha: float) -> Diana:
    rng = np.random.default_rng(5)
    return Diana(np.zeros(D), N, compressor, rng, step=step, alpha=alpha, matrices=matrices)


@pytest.mark.parametrize("matrices", [None, OWN, SHARED], ids=["plain", "own", "shared"])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_without_compression_it_is_gradient_descent(matrices: Smoothness | None, alpha: float) -> None:
    """x_t - x* = (1 - step H)^t (x_0 - x*), coordinate by coordinate."""
    descent = method(NoCompression(), matrices, 0.7, alpha)
    for _ in range(20):
        descent.update(gradients(descent.x))
    assert descent.x == pytest.approx(MINIMIZER - (1 - 0.7 * MEAN) ** 20 * MINIMIZER)


def test_shifts_learn_the_gradients() -> None:
    """With alpha 1/2 and no compression, h_i halves its distance from a gradient that stays the same."""
    diana = method(NoCompression(), None, 1e-12, 0.5)
    fixed = gradients(np.zeros(D))
    for _ in range(10):
        diana.update(fixed)
    assert diana.shifts == pytest.approx(fixed * (1 - 0.5**10))


@pytest.mark.parametrize("matrices", [OWN, SHARED], ids=["own", "shared"])
def test_diana_plus_converges_where_dcgd_plus_stops_at_the_noise(matrices: Smoothness) -> None:
    compressor = varying_steps(HESSIANS if matrices is OWN else SHARED.matrix, 4.0)
    step = diana_step(float(MEAN.max()), compressor.cal(matrices.diagonal), N)
    distances = []
    for alpha in (1 / (1 + compressor.w), 0.0):
        running = method(compressor, matrices, step, alpha)
        for _ in range(8000):
            running.update(gradients(running.x))
        distances.append(np.linalg.norm(running.x - MINIMIZER))
    assert distances[0] < 1e-6 < 1e-3 < distances[1]


def test_bits_and_set_up_are_counted() -> None:
    descent = method(NoCompression(), None, 0.1, 0.0)
    descent.update(gradients(descent.x))
    assert (descent.bits, descent.setup_bits) == (32 * N * D, 0)
    assert method(NoCompression(), OWN, 0.1, 0.0).setup_bits == method(NoCompression(), SHARED, 0.1, 0.0).setup_bits
    assert method(NoCompression(), OWN, 0.1, 0.0).setup_bits == 32 * N * D


def test_a_restored_state_goes_on_as_the_first_would_have() -> None:
    compressor = Sampling(np.ones(D))  # sends everything: no noise, so the generator does not matter
    first, second = method(compressor, OWN, 0.3, 0.5), method(compressor, OWN, 0.3, 0.5)
    for _ in range(5):
        first.update(gradients(first.x))
    second.load_state_dict(first.state_dict())
    for each in (first, second):
        each.update(gradients(each.x))
    assert second.x.tobytes() == first.x.tobytes()
    assert second.shifts.tobytes() == first.shifts.tobytes()
    assert second.bits == first.bits


def test_the_same_seed_gives_the_same_bits() -> None:
    runs = []
    for _ in range(2):
        running = method(uniform_steps(D, 2.0), None, 0.05, 0.2)
        for _ in range(50):
            running.update(gradients(running.x))
        runs.append((running.x.tobytes(), running.bits))
    assert runs[0] == runs[1]


@pytest.mark.parametrize(("step", "alpha"), [(0.0, 0.5), (float("nan"), 0.5), (0.1, 1.5), (0.1, -0.1)])
def test_numbers_that_are_no_step_or_share_are_refused(step: float, alpha: float) -> None:
    with pytest.raises(ValueError, match="give a step"):
        method(NoCompression(), None, step, alpha)
