"""The noise of two-way compressed SGD, in the terms of Horvath et al. 2019."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NoiseTerms:
    """E|g|^2 <= ``alpha`` + ``beta`` |grad f|^2 for the compressed mean g of all workers' gradients."""

    alpha: float
    beta: float

    def second_moment(self, gradient_squared: float) -> float:
        """The bound of E|g|^2 where |grad f|^2 is ``gradient_squared``."""
        return self.alpha + self.beta * gradient_squared


def noise_terms(
    up: float, down: float, workers: int, variance: float, dissimilarity: float = 0.0, shared: float = 0.0
) -> NoiseTerms:
    """The terms of algorithm 1: worker i sends C_W(g_i), the aggregator C_M of the mean.

    ``up``, ``down``: w_W and w_M of the two. ``variance``: sigma^2, E|g_i - grad f_i|^2 at most. ``dissimilarity``:
    zeta^2, the mean over workers of |grad f_i - grad f|^2. ``shared``: w_S of what all workers do alike before, with
    the same noise, as rand-k chooses the same coordinates. Its errors do not cancel. (rand-k alone: ``up`` = 0.)

    The mean s of the C_W(g_i) has E|s|^2 = |grad f|^2 + sum_i Var C_W(g_i) / n^2, and Var C_W(g_i) <=
    (w_W + 1)(|grad f_i|^2 + sigma^2) - |grad f_i|^2. With mean |grad f_i|^2 = |grad f|^2 + zeta^2 and the factor
    w_M + 1 for the way down, that is what is returned. A linear map P of B(w_S) that all share gives P g_i, whose mean
    is P of the mean; with E|P v|^2 <= (w_S + 1)|v|^2 in the place of each |v|^2, all of it has the factor w_S + 1. (The
    switch compresses the sum and not the mean; for what is linear in scale, as natural compression is by powers of two,
    it is the same.)
    """
    if min(up, down, variance, dissimilarity, shared) < 0 or workers < 1:
        raise ValueError("give variances of 0 and above and at least one worker")
    return NoiseTerms(
        alpha=(down + 1) * (shared + 1) * ((up + 1) * variance + up * dissimilarity) / workers,
        beta=(down + 1) * (shared + 1) * (1 + up / workers),
    )
