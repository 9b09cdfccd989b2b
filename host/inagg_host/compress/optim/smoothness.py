"""Smoothness matrices: how a function bends in which direction, from the data of the worker that holds it.

A matrix L is one of f if f(x) <= f(y) + <grad f(y), x - y> + 1/2 |x - y|_L^2 for all x, y (Wang et al. 2021,
assumption 1). Gradients are compressed as L^(-1/2) grad and decoded by L^(1/2), so that what compression adds is small
where the function bends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
FLOAT_BITS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Smoothness:
    """One matrix L (d, d), or its diagonal (d,) for models of many parameters; or those of n workers, with n in front.

    Several matrices (`stacked`) apply to n vectors, each to its own.
    """

    matrix: Array
    root: Array
    """L^(1/2)."""
    inverse_root: Array
    """The pseudo-inverse of L^(1/2)."""
    is_diagonal: bool

    @classmethod
    def of(cls, matrix: Array) -> Smoothness:
        """Smoothness of a symmetric positive semidefinite matrix, or its diagonal. Raises ValueError for any other."""
        if matrix.ndim == 1:
            if not (matrix >= 0).all():
                raise ValueError("a smoothness matrix has no negative entries on its diagonal")
            root = np.sqrt(matrix)
            return cls(matrix, root, np.divide(1.0, root, out=np.zeros_like(root), where=root > 0), True)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.allclose(matrix, matrix.T):
            raise ValueError(f"give a symmetric matrix or its diagonal, not an array of shape {matrix.shape}")
        values, vectors = np.linalg.eigh(matrix)
        cutoff = values[-1] * len(values) * np.finfo(float).eps
        if values[0] < -cutoff:
            raise ValueError(f"a smoothness matrix has no negative eigenvalue, and this one has {values[0]:.3g}")
        roots = np.sqrt(np.where(values > cutoff, values, 0.0))
        inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0)
        return cls(matrix, (vectors * roots) @ vectors.T, (vectors * inverse) @ vectors.T, False)

    @property
    def stacked(self) -> bool:
        """Whether these are the matrices of several workers."""
        return self.matrix.ndim == (2 if self.is_diagonal else 3)

    @property
    def diagonal(self) -> Array:
        """L_jj, of shape (d,), or (n, d)."""
        return self.matrix if self.is_diagonal else np.diagonal(self.matrix, axis1=-2, axis2=-1).copy()

    @property
    def trace(self) -> float:
        """Tr L; the largest of several."""
        return float(self.diagonal.sum(axis=-1).max())

    @property
    def largest(self) -> float:
        """The largest eigenvalue (of all): the smoothness constant."""
        return float(self.matrix.max() if self.is_diagonal else np.linalg.eigvalsh(self.matrix).max())

    @property
    def setup_bits(self) -> int:
        """Bits to tell another machine L^(1/2): a float32 for each entry, of the diagonal or of all."""
        return FLOAT_BITS * self.matrix.size

    def whiten(self, v: Array) -> Array:
        """L^(-1/2) v, for v of shape (..., d)."""
        return self._apply(self.inverse_root, v)

    def colour(self, v: Array) -> Array:
        """L^(1/2) v, for v of shape (..., d)."""
        return self._apply(self.root, v)

    def _apply(self, root: Array, v: Array) -> Array:
        product: Array = v * root if self.is_diagonal else (v[..., None, :] @ root)[..., 0, :]
        return product


def stacked(matrices: Sequence[Smoothness]) -> Smoothness:
    """Smoothness of several workers as one: row i of what it is applied to meets the i-th. All diagonal, or none."""
    kinds = {m.is_diagonal for m in matrices}
    if len(kinds) != 1:
        raise ValueError("give only diagonal matrices, or only full ones")
    return Smoothness(
        np.stack([m.matrix for m in matrices]),
        np.stack([m.root for m in matrices]),
        np.stack([m.inverse_root for m in matrices]),
        kinds.pop(),
    )


def logistic_smoothness(samples: Array, l2: float, diagonal: bool = False) -> Smoothness:
    """Smoothness of the mean logistic loss over ``samples`` (m, d) plus l2 / 2 |x|^2: A^T A / (4m) + l2 I.

    ``diagonal``: a diagonal matrix that is at least as large, for a large d: see `diagonal_bound`.
    """
    return _from_gram(samples, 0.25 / len(samples), l2, diagonal)


def ridge_smoothness(samples: Array, l2: float, diagonal: bool = False) -> Smoothness:
    """Smoothness of 1/(2m) |A x - b|^2 + l2 / 2 |x|^2: its Hessian, A^T A / m + l2 I. ``diagonal``: see
    `logistic_smoothness`."""
    return _from_gram(samples, 1.0 / len(samples), l2, diagonal)


def _from_gram(samples: Array, factor: float, l2: float, diagonal: bool) -> Smoothness:
    if diagonal:
        return Smoothness.of(factor * diagonal_bound(samples) + l2)
    return Smoothness.of(factor * samples.T @ samples + l2 * np.eye(samples.shape[1]))


def diagonal_bound(samples: Array) -> Array:
    """D with Diag(D) >= A^T A, of shape (d,), without the d^2 entries of A^T A: D_j = sum_i |a_ij| sum_k |a_ik|.

    By Gershgorin's theorem: D_j is the sum of |A|^T |A| over row j, at least that of |A^T A|.
    """
    magnitudes = np.abs(samples)
    bound: Array = magnitudes.T @ magnitudes.sum(axis=1)
    return bound


def shared_smoothness(matrices: Sequence[Smoothness]) -> Smoothness:
    """One L that is at least every L_i, so that a switch can add before anybody decodes: the largest diagonal, or else
    the mean of the matrices times the least factor that makes it enough (at most n)."""
    if all(m.is_diagonal for m in matrices):
        return Smoothness.of(np.max([m.matrix for m in matrices], axis=0))
    full = [np.diag(m.matrix) if m.is_diagonal else m.matrix for m in matrices]
    mean = Smoothness.of(np.mean(full, axis=0))
    factor = max(float(np.linalg.eigvalsh(mean.inverse_root @ m @ mean.inverse_root)[-1]) for m in full)
    return Smoothness.of(factor * mean.matrix)
