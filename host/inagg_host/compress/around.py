"""A compressor around another one: what both share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt

from .base import Aggregation, Bound, Compressor, Floats, Indices, Mask
from .key import Key


@dataclass(frozen=True, slots=True)
class Around(Compressor):
    """Does everything as ``inner`` does it, but for the state. A derived class overrides what it does itself."""

    inner: Compressor

    @property
    def aggregation(self) -> Aggregation:
        """The inner's."""
        return self.inner.aggregation

    @property
    def formats(self) -> tuple[str, ...]:
        """The inner's."""
        return self.inner.formats

    def bound(self, d: int) -> Bound:
        """The inner's."""
        return self.inner.bound(d)

    def remark(self, d: int) -> str | None:
        """The inner's."""
        return self.inner.remark(d)

    def compress(self, x: Floats, key: Key) -> bytes:
        """The inner's. It is the caller who has called `enter`."""
        return self.inner.compress(x, key)

    def decompress(self, data: bytes, d: int, dtype: npt.DTypeLike) -> Floats:
        """The inner's."""
        return self.inner.decompress(data, d, dtype)

    def blocks(self, x: Floats) -> Mask | None:
        """The inner's."""
        return self.inner.blocks(x)

    def where(self, d: int, key: Key, union: Mask | None = None) -> Indices | None:
        """The inner's."""
        return self.inner.where(d, key, union)

    def kept(self, x: Floats, where: Indices) -> Floats:
        """The inner's."""
        return self.inner.kept(x, where)

    def spread(self, values: Floats, where: Indices | None, d: int) -> Floats:
        """The inner's."""
        return self.inner.spread(values, where, d)

    def scale(self, x: Floats) -> float | None:
        """The inner's."""
        return self.inner.scale(x)

    def to_sum(self, x: Floats, key: Key, scale: float | None = None) -> Floats:
        """The inner's."""
        return self.inner.to_sum(x, key, scale)

    def from_sum(self, sums: Floats, scale: float | None = None) -> Floats:
        """The inner's."""
        return self.inner.from_sum(sums, scale)
