"""Sparsifiers: some coordinates as they are, the others zero (Stich et al. 2018, definitions 2.1 to 2.3)."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from .base import Aggregation, Bound, Compressor, Contraction, Floats, Unbiased, check, expect
from .key import Key

Indices = npt.NDArray[np.int64]

SWITCH_FORMATS = ("nat8", "nat4", "nat4-nat8", "dith8", "dith8-exact", "fix32", "tern")
"""Coordinates that are dense on the wire can go in any format; the job's rounding comes on top. fix32 hardly rounds."""


def count_of(k: float, d: int) -> int:
    """How many of ``d`` coordinates ``k`` means: an int is a number, a float a share, rounded up. At most d."""
    return min(d, k if isinstance(k, int) else math.ceil(k * d))


def check_count(k: float) -> None:
    """Raise ValueError unless ``k`` is a number of coordinates or a share of them."""
    if not (k >= 1 if isinstance(k, int) else 0 < k <= 1):
        raise ValueError(f"k = {k}: give a whole number from 1, or a share above 0 and up to 1.0")


class Sparsifier(Compressor):
    """Keeps the coordinates that `select` names, each times `factor`. Bytes: indices (4 each), then values.

    Where all workers select the same (`common`), no index is sent: C is then a dense vector of few lanes.
    """

    __slots__ = ()
    common: ClassVar[bool] = False

    @abstractmethod
    def select(self, x: Floats, key: Key) -> Indices:
        """The coordinates to keep, ascending."""

    def factor(self, d: int) -> float:
        """By what the kept values are multiplied."""
        return 1.0

    def values(self, x: Floats, indices: Indices) -> Floats:
        """The kept values."""
        factor = self.factor(x.size)
        kept: Floats = x[indices] if factor == 1.0 else x[indices] * x.dtype.type(factor)
        return kept

    def compress(self, x: Floats, key: Key) -> bytes:
        """Indices as 4 bytes, little-endian, then the values in their type."""
        indices = self.select(check(x), key)
        return indices.astype("<u4").tobytes() + self.values(x, indices).tobytes()

    def decompress(self, data: bytes, d: int, dtype: npt.DTypeLike) -> Floats:
        """Exact."""
        kept = len(data) // (4 + np.dtype(dtype).itemsize)
        expect(data, kept * (4 + np.dtype(dtype).itemsize))
        return scatter(np.frombuffer(data[4 * kept :], dtype), indices_from(data[: 4 * kept], d), d)


def indices_from(data: bytes, d: int) -> Indices:
    """Indices below ``d``, from bytes. Raises ValueError for others."""
    indices = np.frombuffer(data, "<u4").astype(np.int64)
    if indices.size and int(indices.max()) >= d:
        raise ValueError(f"index {indices.max()} of {d} elements: another length than the sender's")
    return indices


def scatter(values: Floats, indices: Indices, d: int) -> Floats:
    """``values`` at ``indices`` of a vector of ``d`` zeros."""
    out: Floats = np.zeros(d, values.dtype)
    out[indices] = values
    return out


@dataclass(frozen=True, slots=True)
class TopK(Sparsifier):
    """The ``k`` largest magnitudes. Each worker has its own coordinates, so their sum needs a gather."""

    k: float
    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        check_count(self.k)

    def bound(self, d: int) -> Bound:
        """k/d: the largest k squares are at least that share of all (lemma A.1)."""
        return Contraction(count_of(self.k, d) / d)

    def select(self, x: Floats, key: Key) -> Indices:
        """Of equal magnitudes the first."""
        return largest(np.abs(x), count_of(self.k, x.size))


def largest(magnitudes: npt.NDArray[np.floating], k: int) -> Indices:
    """The indices of the ``k`` largest, ascending; of equal ones the first. A function of the values alone."""
    d = magnitudes.size
    if k >= d:
        return np.arange(d)
    threshold = np.partition(magnitudes, d - k)[d - k]
    above = np.flatnonzero(~(magnitudes <= threshold))  # NaN is above everything
    equal = np.flatnonzero(magnitudes == threshold)[: k - above.size]
    return np.sort(np.concatenate([above, equal]))


class SharedSparsifier(Sparsifier):
    """Coordinates from the shared noise: the same on all workers, without a byte. The switch sums the values."""

    __slots__ = ()
    common = True

    @property
    def aggregation(self) -> Aggregation:
        """A dense block of the kept lanes."""
        return Aggregation.DENSE_BLOCK

    @property
    def formats(self) -> tuple[str, ...]:
        """Any."""
        return SWITCH_FORMATS

    @abstractmethod
    def choose(self, d: int, key: Key) -> Indices:
        """The coordinates of a vector of ``d`` elements, ascending, from the shared stream of ``key``."""

    def select(self, x: Floats, key: Key) -> Indices:
        """As `choose`."""
        return self.choose(x.size, key)

    def to_sum(self, x: Floats, key: Key, scale: float | None = None) -> Floats:
        """The kept values: a dense vector."""
        return self.values(x, self.choose(x.size, key))

    def from_sum(self, sums: Floats, d: int, key: Key, scale: float | None = None) -> Floats:
        """Back to their places."""
        return scatter(sums, self.choose(d, key), d)


@dataclass(frozen=True, slots=True)
class RandK(SharedSparsifier):
    """``k`` coordinates at random, the same on all workers. ``scaled`` by d/k it is unbiased, else a contraction."""

    k: float
    scaled: bool = True
    name: ClassVar[str] = "randk"

    def __post_init__(self) -> None:
        check_count(self.k)

    def bound(self, d: int) -> Bound:
        """B(d/k - 1), with equality; unscaled k/d, with equality (lemma A.1)."""
        share = count_of(self.k, d) / d
        return Unbiased(1 / share - 1) if self.scaled else Contraction(share)

    def factor(self, d: int) -> float:
        """d/k, if scaled."""
        return d / count_of(self.k, d) if self.scaled else 1.0

    def choose(self, d: int, key: Key) -> Indices:
        """The k largest of d random numbers."""
        return largest(key.shared().uniforms(d), count_of(self.k, d))


@dataclass(frozen=True, slots=True)
class UltraSparse(SharedSparsifier):
    """One coordinate at random, and that only with probability ``k`` < 1 (definition 2.3); else nothing at all."""

    k: float
    name: ClassVar[str] = "ultrasparse"

    def __post_init__(self) -> None:
        if not 0 < self.k < 1:
            raise ValueError(f"k = {self.k}: give a probability above 0 and below 1; for whole coordinates take randk")

    def bound(self, d: int) -> Bound:
        """k/d, with equality."""
        return Contraction(self.k / d)

    def choose(self, d: int, key: Key) -> Indices:
        """The first number decides whether, the second which."""
        whether, which = key.shared().uniforms(2)
        return np.array([int(which * d)] if d and whether < self.k else [], np.int64)
