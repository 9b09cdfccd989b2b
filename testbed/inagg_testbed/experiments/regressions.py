"""Ridge and logistic regression of several workers with samples of their own, and methods that solve them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from inagg_host.compress.optim.diana import Diana, dcgd_step, diana_step
from inagg_host.compress.optim.quantize import (
    RowCompressor,
    block_steps,
    uniform_steps,
    varying_probabilities,
    varying_steps,
)
from inagg_host.compress.optim.smoothness import (
    Smoothness,
    logistic_smoothness,
    ridge_smoothness,
    shared_smoothness,
    stacked,
)

from .labelled import DataError, Labelled
from .logistic import Array, Logistic
from .quadratic import Effort, Quadratics, solve

L2 = 1e-2
BLOCKS = 4
FEATURES_MAX = 2000
"""Each worker has a matrix of d x d."""


def few_features(data: Labelled, workers: int) -> tuple[str, Array, Array]:
    """Name, samples and labels of ``data`` as dense arrays. Raises DataError if that would be too much, or too little
    for so many workers."""
    m, d = data.samples.shape
    if d > FEATURES_MAX:
        raise DataError(
            f"{data.name} has {d:,} features: {FEATURES_MAX:,} are the most, as a worker has a matrix of d x d"
        )
    if m < 2 * workers:
        raise DataError(f"{data.name} has {m} samples: too few for {workers} workers")
    return data.name, data.samples.toarray(), data.labels


@dataclass(frozen=True, eq=False)
class Problem:
    """A function of each worker, and what is known of it."""

    name: str
    gradients: Callable[[Array], Array]
    minimizer: Array
    matrices: list[Smoothness]
    diagonals: list[Smoothness]
    smoothness: float
    """L of the mean."""

    @property
    def largest(self) -> float:
        """The largest L_i."""
        return max(m.largest for m in self.matrices)


def of_quadratics(quadratics: Quadratics) -> Problem:
    """The same, for the methods here."""
    matrices = [Smoothness.of(hessian) for hessian in quadratics.hessians]
    return Problem("quadratics", quadratics.gradients, quadratics.minimizer, matrices, matrices, quadratics.smoothness)


def problems(samples: Array, labels: Array, workers: int) -> list[Problem]:
    """Both regressions; workers have other samples, since these are sorted by the sum of their features."""
    order = np.array_split(np.argsort(samples.sum(axis=1), kind="stable"), workers)
    parts = [Logistic(samples[mine], labels[mine], L2) for mine in order]
    size = min(len(p.labels) for p in parts)
    parts = [Logistic(p.samples[:size], p.labels[:size], L2) for p in parts]  # equal, so the mean of means is the mean
    whole = Logistic(np.concatenate([p.samples for p in parts]), np.concatenate([p.labels for p in parts]), L2)
    d = samples.shape[1]
    grams = [p.samples.T @ p.samples / size + L2 * np.eye(d) for p in parts]
    targets = [p.samples.T @ p.labels / size for p in parts]
    mean_gram = np.mean(grams, axis=0)

    def ridge(x: Array) -> Array:
        return np.stack([g @ x - t for g, t in zip(grams, targets, strict=True)])

    def logistic(x: Array) -> Array:
        return np.stack([p.gradient(x) for p in parts])

    return [
        Problem(
            "ridge",
            ridge,
            np.linalg.solve(mean_gram, np.mean(targets, axis=0)),
            [ridge_smoothness(p.samples, L2) for p in parts],
            [ridge_smoothness(p.samples, L2, diagonal=True) for p in parts],
            ridge_smoothness(whole.samples, L2).largest,
        ),
        Problem(
            "logistic",
            logistic,
            whole.minimizer,
            [logistic_smoothness(p.samples, L2) for p in parts],
            [logistic_smoothness(p.samples, L2, diagonal=True) for p in parts],
            logistic_smoothness(whole.samples, L2).largest,
        ),
    ]


@dataclass(frozen=True, eq=False)
class Method:
    """A way to solve a problem, as the theory sets it up."""

    name: str
    compressor: RowCompressor
    matrices: Smoothness | None
    learns: bool
    """DIANA: shifts learn the gradients."""

    def step(self, problem: Problem, workers: int) -> float:
        """The theory's."""
        if self.matrices is None:
            cal = self.compressor.w * problem.largest
        else:
            cal = self.compressor.cal(self.matrices.diagonal)
        return (diana_step if self.learns else dcgd_step)(problem.smoothness, cal, workers)


def methods(problem: Problem, workers: int, d: int) -> list[Method]:
    """All with a budget of d/n coordinates; block quantization, where d can be cut into 4 blocks, with d/n too, and a
    norm for each."""
    budget = d / workers
    own, diagonal, shared = stacked(problem.matrices), stacked(problem.diagonals), shared_smoothness(problem.matrices)
    found = [
        Method("DCGD", uniform_steps(d, budget), None, False),
        Method("DIANA", uniform_steps(d, budget), None, True),
        Method("DCGD+ varying steps", varying_steps(own.diagonal, budget), own, False),
        Method("DIANA+ varying steps", varying_steps(own.diagonal, budget), own, True),
        Method("DIANA+ even steps", uniform_steps(d, budget), own, True),
        Method("DIANA+ sparsification", varying_probabilities(own.diagonal, budget), own, True),
        Method("DIANA+ varying steps, one shared matrix", varying_steps(shared.diagonal, budget), shared, True),
        Method("DIANA+ varying steps, diagonal matrices", varying_steps(diagonal.diagonal, budget), diagonal, True),
    ]
    if d % BLOCKS == 0:
        found.insert(6, Method("DIANA+ blocks", block_steps(own.diagonal, BLOCKS, budget), own, True))
    return found


def solved(
    method: Method, problem: Problem, rng: np.random.Generator, accuracy: float, limit: int
) -> tuple[Effort, float]:
    """Run ``method`` from zero; return its effort and its step size."""
    workers, step = len(problem.matrices), method.step(problem, len(problem.matrices))
    running = Diana(
        np.zeros(problem.minimizer.size),
        workers,
        method.compressor,
        rng,
        step=step,
        alpha=1 / (1 + method.compressor.w) if method.learns else 0.0,
        matrices=method.matrices,
    )
    return solve(running, problem.gradients, problem.minimizer, accuracy, limit), step
