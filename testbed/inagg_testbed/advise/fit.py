"""Least squares with coefficients that are not negative, for a handful of coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np


def fit(rows: Sequence[Sequence[float]], times: Sequence[float]) -> tuple[float, ...]:
    """Coefficients c >= 0 that minimize sum(((row . c) / time - 1)^2): *relative* errors count, so that short times
    weigh as much as long ones.

    Tries every set of coefficients to be zero, which is exact (one of them is the optimum's) and cheap for the four
    that a cost model has. Raises ValueError without rows, or for times that are not positive.
    """
    if not rows or min(times) <= 0:
        raise ValueError("a fit needs times above zero")
    a = np.asarray(rows, float) / np.asarray(times, float)[:, None]
    count = a.shape[1]
    best, best_error = np.zeros(count), float(len(rows))  # all zero: each relative error is 1
    for size in range(1, count + 1):
        for chosen in map(list, combinations(range(count), size)):
            scale = np.abs(a[:, chosen]).max(axis=0)
            if not scale.all():
                continue
            solution = np.linalg.lstsq(a[:, chosen] / scale, np.ones(len(a)), rcond=None)[0] / scale
            if (solution < 0).any():
                continue
            error = float(((a[:, chosen] @ solution - 1) ** 2).sum())
            if error < best_error - 1e-12:
                best_error = error
                best = np.zeros(count)
                best[chosen] = solution
    return tuple(float(c) for c in best)
