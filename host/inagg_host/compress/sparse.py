"""Sparsifiers: some coordinates as they are, the others zero (Stich et al. 2018)."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from .base import (
    Aggregation,
    Bound,
    Compressor,
    Contraction,
    Floats,
    Indices,
    Mask,
    Unbiased,
    check,
    check_flag,
    expect,
    is_number,
    is_whole,
    scatter,
)
from .key import Key

SWITCH_FORMATS = ("nat8", "nat4", "nat4-nat8", "dith8", "dith8-exact", "fix32", "tern")
"""Coordinates that are dense on the wire can go in any format; the job's rounding comes on top. fix32 hardly rounds."""


def without_tern(formats: tuple[str, ...]) -> tuple[str, ...]:
    """``formats`` for what a memory is around: none with so much noise that a contraction becomes none, unless the
    compressor is made for that one, and so counts its noise."""
    return tuple(name for name in formats if name != "tern") or formats


THEORY_ONLY = 8.0
"""A factor of the noise, or of a step that becomes smaller, that is too much to train with, from here on."""


def count_of(k: float, d: int) -> int:
    """How many of ``d`` coordinates ``k`` means: an int is a number, a float a share, rounded up. At most d."""
    return min(d, int(k) if is_whole(k) else math.ceil(k * d))


def share_of(k: float, d: int) -> float:
    """Share of ``d`` coordinates that ``k`` are: 1 where ``d`` is 0."""
    return count_of(k, d) / d if d else 1.0


def check_count(k: float) -> None:
    """Raise ValueError unless ``k`` is a number of coordinates or a share of them."""
    if not (k >= 1 if is_whole(k) else is_number(k) and 0 < k <= 1):
        raise ValueError(f"k = {k!r}: give a whole number from 1, or a share above 0 and up to 1.0")


class Sparsifier(Compressor):
    """Keeps the coordinates that `select` names, each times `factor`. Bytes: indices (4 each), then values."""

    __slots__ = ()

    @abstractmethod
    def select(self, x: Floats, key: Key) -> Indices:
        """The coordinates to keep, ascending."""

    def most(self, d: int) -> int:
        """How many of ``d`` coordinates it keeps at most; at least 1. Here as many as of ones, which takes a `select`,
        and error feedback asks for each tensor: what knows the number should say it."""
        return max(1, self.select(np.ones(d), Key(0)).size)

    def factor(self, d: int) -> float:
        """Factor of the kept values."""
        return 1.0

    def kept(self, x: Floats, where: Indices) -> Floats:
        """The values there, times the factor."""
        factor, values = self.factor(x.size), x[where]
        return values if factor == 1.0 else values * x.dtype.type(factor)

    def index_bytes(self, indices: Indices) -> bytes:
        """The coordinates' numbers: 4 bytes each, little-endian."""
        return indices.astype("<u4").tobytes()

    def read_indices(self, data: bytes, d: int) -> Indices:
        """The coordinates that `index_bytes` has written. Raises ValueError if one is not below ``d``."""
        return indices_from(data, d)

    def index_bytes_in(self, size: int, item_bytes: int) -> int:
        """How many of ``size`` bytes say where the values are."""
        return size // (4 + item_bytes) * 4

    def compress(self, x: Floats, key: Key) -> bytes:
        """Indices, then the values in their type."""
        indices = self.select(check(x), key)
        return self.index_bytes(indices) + self.kept(x, indices).tobytes()

    def decompress(self, data: bytes, d: int, dtype: npt.DTypeLike) -> Floats:
        """Exact."""
        item_bytes = np.dtype(dtype).itemsize
        head = self.index_bytes_in(len(data), item_bytes)
        indices = self.read_indices(data[:head], d)
        expect(data, head + indices.size * item_bytes)
        return scatter(np.frombuffer(data[head:], dtype), indices, d)


def indices_from(data: bytes, d: int) -> Indices:
    """Indices below ``d``, from bytes. Raises ValueError for others."""
    expect(data, len(data) // 4 * 4)
    indices = np.frombuffer(data, "<u4").astype(np.int64)
    if indices.size and int(indices.max()) >= d:
        raise ValueError(f"index {indices.max()} of {d} elements: another length than the sender's")
    return indices


@dataclass(frozen=True, slots=True)
class TopK(Sparsifier):
    """The ``k`` largest magnitudes. Each worker has its own coordinates, so their sum needs a gather."""

    k: float
    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        check_count(self.k)

    def bound(self, d: int) -> Bound:
        """k/d: the largest k squares are at least that share of all."""
        return Contraction(share_of(self.k, d))

    def most(self, d: int) -> int:
        """k."""
        return max(1, count_of(self.k, d))

    def select(self, x: Floats, key: Key) -> Indices:
        """Coordinates to keep; of equal magnitudes the first."""
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


@dataclass(frozen=True, slots=True)
class BlockTopK(Sparsifier):
    """The ``k`` blocks of ``block`` elements with the largest norms, of those that are not zero (OmniReduce, Fei et
    al. 2021). Bytes: 4 for a block, then its values.

    Through the switch the blocks that *some* worker has travel, of all workers: each gives what it has there. Which
    these are the workers agree by a MAX round over a byte for each block, so the switch need not know who will not
    send: nobody sends the others, and everybody these.
    """

    k: float = 1.0
    block: int = 256
    name: ClassVar[str] = "blocktopk"
    aggregation = Aggregation.SPARSE_BLOCKS
    formats = SWITCH_FORMATS

    def __post_init__(self) -> None:
        check_count(self.k)
        if not is_whole(self.block) or self.block < 1:
            raise ValueError(f"blocks of {self.block} elements: give a whole number from 1")

    def count(self, d: int) -> int:
        """How many blocks there are in ``d`` elements."""
        return -(-d // self.block)

    def bound(self, d: int) -> Bound:
        """The share of the blocks: the largest k squared norms are at least that share of all."""
        return Contraction(share_of(self.k, self.count(d)))

    def most(self, d: int) -> int:
        """All of k blocks, of which none need be the last one."""
        return max(1, min(d, count_of(self.k, self.count(d)) * self.block))

    def blocks(self, x: Floats) -> Mask:
        """Mask of the blocks that this worker keeps; without those that are zero."""
        wide = np.zeros(self.count(x.size) * self.block)
        wide[: x.size] = x
        with np.errstate(over="ignore"):  # then it is infinite, and among the largest
            norms = np.square(wide).reshape(-1, self.block).sum(axis=1)
        mask = np.zeros(norms.size, np.bool_)
        mask[largest(norms, count_of(self.k, norms.size))] = True
        mask &= wide.reshape(-1, self.block).any(axis=1)  # a square may be zero where its root is not
        return mask

    def where(self, d: int, key: Key, union: Mask | None = None) -> Indices:
        """The elements of the blocks of ``union``."""
        assert union is not None
        return self._elements(union, d)

    def _elements(self, union: Mask, d: int) -> Indices:
        return np.flatnonzero(np.repeat(union, self.block)[:d])

    def select(self, x: Floats, key: Key) -> Indices:
        """The elements of this worker's blocks."""
        return self.where(x.size, key, self.blocks(x))

    def index_bytes(self, indices: Indices) -> bytes:
        """4 bytes a block."""
        return np.unique(indices // self.block).astype("<u4").tobytes()

    def read_indices(self, data: bytes, d: int) -> Indices:
        """The elements of the blocks."""
        union = np.zeros(self.count(d), np.bool_)
        union[indices_from(data, union.size)] = True
        return self._elements(union, d)

    def index_bytes_in(self, size: int, item_bytes: int) -> int:
        """Only the last block may be shorter."""
        return -(-size // (4 + self.block * item_bytes)) * 4


class SharedSparsifier(Sparsifier):
    """Coordinates from the shared noise, all of them equally likely: the same on all workers, without a byte. The
    switch sums the values."""

    __slots__ = ()
    aggregation = Aggregation.DENSE_BLOCK
    formats = SWITCH_FORMATS

    @abstractmethod
    def where(self, d: int, key: Key, union: Mask | None = None) -> Indices:
        """The coordinates of a vector of ``d`` elements, ascending, from the shared stream of ``key``."""

    def select(self, x: Floats, key: Key) -> Indices:
        return self.where(x.size, key)


@dataclass(frozen=True, slots=True)
class RandK(SharedSparsifier):
    """``k`` coordinates at random, the same on all workers. ``scaled`` by d/k it is unbiased, else a contraction."""

    k: float
    scaled: bool = True
    name: ClassVar[str] = "randk"

    def __post_init__(self) -> None:
        check_count(self.k)
        check_flag("scaled", self.scaled)

    def bound(self, d: int) -> Bound:
        """B(d/k - 1), with equality; unscaled k/d, with equality."""
        share = share_of(self.k, d)
        return Unbiased(1 / share - 1) if self.scaled else Contraction(share)

    def remark(self, d: int) -> str | None:
        """Scaled by much, it is for theory."""
        if self.factor(d) < THEORY_ONLY:
            return None
        return (
            f"multiplies what it keeps by {self.factor(d):.3g}, so a step's noise is as many times its signal: that is "
            f"for theory. To train, put a memory around it (ef+{self.name}:k={self.k})"
        )

    def most(self, d: int) -> int:
        """k."""
        return max(1, count_of(self.k, d))

    def factor(self, d: int) -> float:
        """d/k, if scaled."""
        return d / count_of(self.k, d) if self.scaled and d else 1.0

    def contractive(self) -> Compressor:
        """Unscaled."""
        return replace(self, scaled=False)

    def where(self, d: int, key: Key, union: Mask | None = None) -> Indices:
        """The k largest of d random numbers."""
        return largest(key.shared().uniforms(d), count_of(self.k, d))


@dataclass(frozen=True, slots=True)
class UltraSparse(SharedSparsifier):
    """One coordinate at random, and that only with probability ``k`` < 1; else nothing at all."""

    k: float
    name: ClassVar[str] = "ultrasparse"

    def __post_init__(self) -> None:
        if not is_number(self.k) or not 0 < self.k < 1:
            raise ValueError(f"k = {self.k}: give a probability above 0 and below 1; for whole coordinates take randk")

    def bound(self, d: int) -> Bound:
        """k/d, with equality."""
        return Contraction(self.k / d if d else 1.0)

    def most(self, d: int) -> int:
        """1."""
        return 1

    def where(self, d: int, key: Key, union: Mask | None = None) -> Indices:
        """The first number decides whether, the second which."""
        whether, which = key.shared().uniforms(2)
        return np.array([int(which * d)] if d and whether < self.k else [], np.int64)
