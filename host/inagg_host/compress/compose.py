"""One compressor after another."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .around import left_to
from .base import (
    Aggregation,
    Bound,
    Compressor,
    Contraction,
    Floats,
    Indices,
    Mask,
    NoBound,
    Unbiased,
    check,
    expect,
    scatter,
)
from .key import Key
from .sparse import SWITCH_FORMATS, SharedSparsifier, Sparsifier

COUNT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Composed(Compressor):
    """``outer`` after ``inner``: for all x, outer(inner(x)).

    After a sparsifier, ``outer`` sees the kept values alone: it must not make anything of zeros. Bytes are then: how
    many indices bytes there are (4), these, and what ``outer`` makes of the values. Of A+(B+C) with a sparsifier C that
    goes for A as well as for B, so it is kept as (A+B)+C, which is the same map.
    """

    outer: Compressor
    inner: Compressor

    def __post_init__(self) -> None:
        for part in (self.outer, self.inner):
            if type(part).enter is not Compressor.enter:
                raise ValueError(f"{part} has a memory, which must be around the whole: give ef first, as in "
                                 "ef+natural+topk:k=0.01")  # fmt: skip
        if isinstance(self.inner, Composed) and isinstance(self.inner.inner, Sparsifier):
            outer, inner = Composed(self.outer, self.inner.outer), self.inner.inner
            object.__setattr__(self, "outer", outer)
            object.__setattr__(self, "inner", inner)

    @property
    def aggregation(self) -> Aggregation:
        """The coordinates are the inner's, the numbers the outer's; either may need a gather."""
        if self.outer.aggregation is not Aggregation.SUM:  # coordinates of what the inner makes
            return Aggregation.GATHER
        if isinstance(self.inner, Sparsifier):
            return self.inner.aggregation
        # What a scale is agreed on for would be what the inner makes, and that is there only after the agreement.
        needs_scale = self.outer.scale(np.zeros(1, np.float32)) is not None
        return Aggregation.GATHER if needs_scale else Aggregation.SUM

    @property
    def formats(self) -> tuple[str, ...]:
        """The outer one's formats."""
        return () if self.aggregation is Aggregation.GATHER else self.outer.formats or SWITCH_FORMATS

    def bound(self, d: int) -> Bound:
        """The bound: of two unbiased ones B(w1 w2 + w1 + w2) (Horvath et al. 2019); the others derived.

        A sparsifier P that does not scale is a projection, so |x - Q P x|^2 = |x - P x|^2 + |P x - Q P x|^2. With
        E|x - P x|^2 <= (1 - a)|x|^2 and Q in B(w), w < 1, that is at most (1 - a (1 - w)) |x|^2; with a contraction Q
        by b, at most (1 - a b) |x|^2.

        If it is Q that does not scale, and has each coordinate with the same probability b whatever P x is, then
        E|x - Q P x|^2 = E|x - Q x|^2 + E|Q (x - P x)|^2 = (1 - b)|x|^2 + b E|x - P x|^2. For P in B(w), w < 1, that is
        at most (1 - b (1 - w)) |x|^2; with a contraction P by a, at most (1 - a b) |x|^2.

        For others only the triangle inequality is left, in the root mean square.
        """
        inner, outer = self.inner.bound(d), self.outer.bound(self._seen(d))
        projects, uniform = isinstance(self.inner, Sparsifier), isinstance(self.outer, SharedSparsifier)
        match outer, inner:
            case (NoBound() as none, _) | (_, NoBound() as none):
                return none
            case Unbiased(w1), Unbiased(w2):
                return Unbiased(w1 * w2 + w1 + w2)
            case Unbiased(w), Contraction(a) if projects:
                return Contraction(a * (1 - w)) if w < 1 else NoBound(f"{self.outer} adds more noise than it keeps")
            case Contraction(b), Unbiased(w) if uniform:
                return Contraction(b * (1 - w)) if w < 1 else NoBound(f"{self.inner} adds more noise than it keeps")
            case Contraction(b), Contraction(a) if projects or uniform:
                return Contraction(a * b)
        first, size = _error_and_size(inner)
        error = first + _error_and_size(outer)[0] * size
        return Contraction(1 - error**2) if error < 1 else NoBound("the errors of both may add up to all there is")

    def _seen(self, d: int) -> int:
        """How many elements the outer sees, at most."""
        return self.inner.most(d) if isinstance(self.inner, Sparsifier) else d

    def remark(self, d: int) -> str | None:
        """The inner's, or else the outer's."""
        return self.inner.remark(d) or self.outer.remark(self._seen(d))

    def contractive(self) -> Compressor:
        """The contraction of both."""
        return Composed(self.outer.contractive(), self.inner.contractive())

    def compress(self, x: Floats, key: Key) -> bytes:
        """The parts have noise of their own."""
        if not isinstance(self.inner, Sparsifier):
            return self.outer.compress(self.inner(x, key.child(1)), key.child(0))
        indices = self.inner.select(check(x), key.child(1))
        head = self.inner.index_bytes(indices)
        values = self.outer.compress(self.inner.kept(x, indices), key.child(0))
        return len(head).to_bytes(COUNT_BYTES, "little") + head + values

    def decompress(self, data: bytes, d: int, dtype: npt.DTypeLike) -> Floats:
        """The vector, as exact as the outer one gives it."""
        if not isinstance(self.inner, Sparsifier):
            return self.outer.decompress(data, d, dtype)
        values_at = COUNT_BYTES + int.from_bytes(data[:COUNT_BYTES], "little")
        expect(data[:values_at], values_at)
        indices = self.inner.read_indices(data[COUNT_BYTES:values_at], d)
        return scatter(self.outer.decompress(data[values_at:], indices.size, dtype), indices, d)

    blocks = left_to("inner", Compressor.blocks)
    kept = left_to("inner", Compressor.kept)
    scale = left_to("outer", Compressor.scale)
    from_sum = left_to("outer", Compressor.from_sum)

    def where(self, d: int, key: Key, union: Mask | None = None) -> Indices | None:
        """A sparsifier's; any other inner one makes a whole vector."""
        return self.inner.where(d, key.child(1), union) if isinstance(self.inner, Sparsifier) else None

    def to_sum(self, x: Floats, key: Key, scale: float | None = None) -> Floats:
        """The outer's, after an inner that is no sparsifier."""
        x = x if isinstance(self.inner, Sparsifier) else self.inner(x, key.child(1))
        return self.outer.to_sum(x, key.child(0), scale)


def _error_and_size(bound: Bound) -> tuple[float, float]:
    """Root mean squares of C(x) - x and of C(x), for |x| = 1: at most so large."""
    if isinstance(bound, Unbiased):
        return math.sqrt(bound.w), math.sqrt(1 + bound.w)
    assert isinstance(bound, Contraction)
    error = math.sqrt(1 - bound.kept)
    return error, 1 + error
