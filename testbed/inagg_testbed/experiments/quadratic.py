"""Quadratics with diagonal Hessians, one a worker, and methods of the DIANA family run on them to an accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inagg_host.compress.optim.diana import Diana

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Quadratics:
    """f_i(x) = 1/2 (x - c_i)^T Diag(h_i) (x - c_i), with ``hessians`` and ``centres`` of shape (n, d)."""

    hessians: Array
    centres: Array

    def gradients(self, x: Array) -> Array:
        """(n, d)."""
        return self.hessians * (x - self.centres)

    @property
    def minimizer(self) -> Array:
        """Minimizer of the mean of the f_i."""
        weighted: Array = (self.hessians * self.centres).mean(axis=0) / self.hessians.mean(axis=0)
        return weighted

    @property
    def smoothness(self) -> float:
        """L of the mean."""
        return float(self.hessians.mean(axis=0).max())


@dataclass(frozen=True, slots=True)
class Effort:
    """Effort to reach the accuracy; bits are those of one worker."""

    iterations: int
    bits: float
    dense_bits: float
    setup_bits: float
    reached: bool
    curve: list[tuple[float, float]]
    """(bits of one worker, squared distance over that at the start), now and then."""

    def points(self) -> tuple[list[float], list[float]]:
        """The curve after the start: bits, set-up included, and squared distances."""
        points = self.curve[1:] or self.curve
        return [bits + self.setup_bits for bits, _ in points], [share for _, share in points]


def over(one: float, other: float, *efforts: Effort) -> float:
    """``one`` over ``other``, which were taken from ``efforts``. NaN, which is within no tolerance, unless all of these
    have reached the accuracy: where both only ran to the limit, their ratio would be 1."""
    return one / other if all(effort.reached for effort in efforts) else math.nan


def solve(method: Diana, gradients: Callable[[Array], Array], minimizer: Array, accuracy: float, limit: int) -> Effort:
    """Iterate until the squared distance to ``minimizer`` has shrunk to the share ``accuracy``, or ``limit`` times."""
    workers = len(method.shifts)
    first = float(((method.x - minimizer) ** 2).sum())
    curve, share, iterations = [(0.0, 1.0)], 1.0, 0
    while share > accuracy and iterations < limit:
        method.update(gradients(method.x))
        iterations += 1
        share = float(((method.x - minimizer) ** 2).sum()) / first
        if share < 0.8 * curve[-1][1]:
            curve.append((method.bits / workers, share))
    return Effort(
        iterations,
        method.bits / workers,
        method.dense_bits / workers,
        method.setup_bits / workers,
        share <= accuracy,
        curve,
    )
