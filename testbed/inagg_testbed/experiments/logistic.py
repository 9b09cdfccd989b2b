"""Logistic regression with an L2 term, on dense or on sparse samples: the loss, its gradient, its minimum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy.sparse
import scipy.sparse.linalg

from .model import SettingsError

Array = npt.NDArray[np.float64]

STILL = 1e-12


@dataclass(frozen=True, eq=False)
class Logistic:
    """f(x) = 1/m sum log(1 + exp(-b_i a_i^T x)) + l2/2 |x|^2; ``samples`` a (m, d), ``labels`` b (m,) of +-1."""

    samples: Array | scipy.sparse.csr_array
    labels: Array
    l2: float

    def loss(self, x: Array) -> float:
        """f(x)."""
        return float(np.logaddexp(0, -self.labels * (self.samples @ x)).mean() + self.l2 / 2 * (x @ x))

    def gradient(self, x: Array) -> Array:
        """The gradient of f at x."""
        gradient: Array = self.l2 * x - (self.samples.T @ self._pull(x)) / len(self.labels)
        return gradient

    def sample_gradient(self, x: Array, i: int) -> Array:
        """The gradient of the i-th term alone, l2/2 |x|^2 included."""
        gradient: Array
        b = self.labels[i]
        if isinstance(self.samples, np.ndarray):
            a = self.samples[i]
            gradient = self.l2 * x - (b * _sigmoid(-b * float(a @ x))) * a
        else:
            mine = slice(*self.samples.indptr[i : i + 2])
            where, a = self.samples.indices[mine], self.samples.data[mine]
            gradient = self.l2 * x
            gradient[where] -= (b * _sigmoid(-b * float(a @ x[where]))) * a
        return gradient

    def _pull(self, x: Array) -> Array:
        margins = self.labels * (self.samples @ x)
        pull: Array = self.labels * 0.5 * (1 - np.tanh(margins / 2))
        return pull

    @cached_property
    def minimizer(self) -> Array:
        """Where f is smallest, by Newton's method; the gradient there is below `STILL`. Raises SettingsError."""
        x = np.zeros(self.samples.shape[1])
        for _ in range(100):
            gradient = self.gradient(x)
            steepest = float(np.abs(gradient).max())
            if steepest < STILL:
                return x
            if math.isnan(steepest):
                break
            pull = np.abs(self._pull(x))
            direction = self._newton(pull * (1 - pull), gradient)
            size = 1.0  # shorter until the loss falls
            while size > 1e-8 and self.loss(x - size * direction) > self.loss(x):
                size /= 2
            x = x - size * direction
        raise SettingsError(
            f"Newton's method does not find where the loss is smallest (the gradient is {steepest:.3g}, not below "
            f"{STILL}): scale the features, so that they are about 1 or less"
        )

    def _newton(self, weights: Array, gradient: Array) -> Array:
        """The inverse of the Hessian, in which samples weigh ``weights``, times the gradient. If samples are sparse,
        without a matrix of d^2 numbers."""
        m = len(self.labels)
        if isinstance(self.samples, np.ndarray):
            curvature = (self.samples.T * weights) @ self.samples / m
            direct = np.linalg.solve(curvature + self.l2 * np.eye(gradient.size), gradient)
            return np.asarray(direct, np.float64)
        a = self.samples
        d = gradient.size
        hessian = scipy.sparse.linalg.LinearOperator(
            (d, d), matvec=lambda v: a.T @ (weights / m * (a @ v)) + self.l2 * v, dtype=np.float64
        )
        iterated: Array = scipy.sparse.linalg.cg(hessian, gradient, rtol=1e-8, maxiter=10_000)[0]
        return iterated


def _sigmoid(z: float) -> float:
    return 0.5 * (1 + float(np.tanh(z / 2)))


def parity_of_digits() -> tuple[Array, Array]:
    """scikit-learn's digits: (1797, 64) from 0 to 1, and +1 for even ones, -1 for odd ones."""
    import sklearn.datasets

    pictures, digits = sklearn.datasets.load_digits(return_X_y=True)
    return pictures / 16.0, np.where(digits % 2 == 0, 1.0, -1.0)
