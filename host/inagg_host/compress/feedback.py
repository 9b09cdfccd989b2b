"""Error feedback: what a compressor leaves out is added to what it gets next."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .around import Around
from .base import Bound, Compressor, Contraction, Floats, Indices, NoBound, State, Unbiased, is_number
from .sparse import THEORY_ONLY, without_tern

MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class ErrorFeedback(Around):
    """Compresses p = x + m in the place of x, and then m is p less what this worker has *contributed* for it (Stich et
    al. 2018, algorithm 1; Karimireddy et al. 2019). What is contributed are the worker's own codes, decoded: errors of
    any fixed point and rounding on the way up are in m as well.

    It needs a contraction. An unbiased compressor with w >= 1 is none, but times ``damping`` <= 1 / (1 + w) it is. None
    stands for the largest power of two that is so small. That is for the worst case, and often far less than it takes:
    give a larger one if you know better. rand-k is taken unscaled. A damped sum is a smaller step, made up for by the
    memory. With the noise of the format tern on top a contraction is none any more, and memories would grow without
    end; so tern is offered only to what is made for it, and counts its noise, or where a damping was given.

    What is remembered are gradients, not steps: if the step size falls, old errors are applied with the smaller one.
    Mem-SGD, which multiplies before it remembers, does without that.
    """

    damping: float | None = None

    def __post_init__(self) -> None:
        if type(self.inner).enter is not Compressor.enter:
            raise ValueError(f"{self.inner} has a memory of its own: give ef once, first of all")
        if self.damping is not None and not (is_number(self.damping) and 0 < self.damping <= 1):
            raise ValueError(f"damping = {self.damping}: give a factor above 0 and up to 1")
        object.__setattr__(self, "inner", self.inner.contractive())

    @property
    def formats(self) -> tuple[str, ...]:
        """The inner one's; without a damping those that leave a contraction one."""
        return without_tern(self.inner.formats) if self.damping is None else self.inner.formats

    def factor(self, d: int) -> float:
        """Factor of the sums of vectors of ``d`` elements."""
        if self.damping is not None:
            return self.damping
        bound = self.inner.bound(d)
        if isinstance(bound, NoBound):
            raise ValueError(f"{self.inner} promises nothing ({bound.why}): give a damping, as in ef:damping=0.5+...")
        if isinstance(bound, Unbiased) and bound.w >= 1:
            return 2.0 ** -math.ceil(math.log2(1 + bound.w))
        return 1.0

    def remark(self, d: int) -> str | None:
        """Damped by much, it is for theory."""
        if self.damping is not None or (factor := self.factor(d)) > 1 / THEORY_ONLY:
            return None
        return (
            f"is damped to {factor:.3g} for the worst case of {d:,} elements, and steps are as much smaller: that is "
            "for theory. To train, give a larger damping (ef:damping=0.25+...), or finer levels"
        )

    def bound(self, d: int) -> Bound:
        """The bound of one compression, without memory. Unbiased: E|x - f C(x)|^2 <= (1 - 2 f + f^2 (1 + w)) |x|^2."""
        inner = self.inner.bound(d)
        if isinstance(inner, NoBound):
            return inner
        factor = self.factor(d)
        if isinstance(inner, Unbiased):
            kept = 2 * factor - factor * factor * (1 + inner.w)
            return (
                Contraction(kept) if kept > 0 else NoBound(f"damping = {factor}: give at most {2 / (1 + inner.w):.3g}")
            )
        # x - f C = f (x - C) + (1 - f) x, and a square is convex
        return Contraction(factor * inner.kept)

    def decompress(self, data: bytes, d: int, dtype: npt.DTypeLike) -> Floats:
        """Damped."""
        return self._damp(self.inner.decompress(data, d, dtype), d)

    def _damp(self, values: Floats, d: int) -> Floats:
        factor = self.factor(d)
        return values if factor == 1.0 else values * values.dtype.type(factor)

    def spread(self, values: Floats, where: Indices | None, d: int) -> Floats:
        """Damped."""
        return self._damp(self.inner.spread(values, where, d), d)

    def new_state(self, d: int, dtype: npt.DTypeLike) -> State:
        """The memory m, zero."""
        return {MEMORY: np.zeros(d, dtype)}

    def enter(self, x: Floats, state: State) -> Floats:
        """x + m."""
        entered: Floats = x + state[MEMORY]
        return entered

    def leave(self, entered: Floats, own: Floats, total: Floats, state: State) -> Floats:
        """m = p - own."""
        if np.isfinite(total).all():
            np.subtract(entered, own, out=state[MEMORY])
        return total
