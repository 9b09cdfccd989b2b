"""DIANA and DIANA+ as compressors, so that they go wherever compressors go: a DDP hook, the switch, a gather.

DIANA is ``Shifted(Dithering(math.inf, 127, shared=True), alpha)``. DIANA+ with one matrix for all workers is
``Shifted(..., alpha, matrix)``: the switch sums, and the matrix is undone after the sum. With a matrix for each worker
it is ``Shifted(WhitenedEach(..., matrices, rank), alpha)``: they must be undone before the sum, so it needs a gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack, unpack
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ..around import Around
from ..base import Bound, Compressor, Floats, NoBound, State
from ..key import Key
from ..sparse import without_tern
from .smoothness import Smoothness

EXACT_SUMS = ("tern", "dith8-exact", "fix32")
"""Job formats whose sums are not rounded again."""
NO_BOUND = NoBound("its error is bounded in the norm of the smoothness matrix: see inagg_host.compress.optim.quantize")


@dataclass(frozen=True, slots=True, eq=False)
class Shifted(Around):
    """Compresses x - h, and lets h follow what is sent: h += alpha C(x - h) (DIANA; Wang et al. 2021, algorithm 2).

    With a ``matrix`` L that all workers share, it is L^(1/2) C(L^(-1/2) (x - h)). The state holds ``shift``, h of this
    worker, and ``shifts``, the sum of all workers'. The latter is what it says only if the sums of the switch are
    exact; so only such formats are offered.
    """

    alpha: float
    matrix: Smoothness | None = None
    name: ClassVar[str] = "diana"

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ValueError(f"alpha = {self.alpha}: give a share, best 1 / (1 + w) of what is inside")
        if type(self.inner).enter is not Compressor.enter:
            raise ValueError(f"{self.inner} has a memory of its own, and would not be asked for it: give one without")
        if self.matrix is not None and self.matrix.stacked:
            raise ValueError("one matrix for all workers (shared_smoothness); for one each take WhitenedEach")

    # --- the state ---

    def new_state(self, d: int, dtype: npt.DTypeLike) -> State:
        """``shift`` and ``shifts``, zero."""
        return {"shift": np.zeros(d, dtype), "shifts": np.zeros(d, dtype)}

    def enter(self, x: Floats, state: State) -> Floats:
        """L^(-1/2) (x - h)."""
        difference: Floats = x - state["shift"]
        if self.matrix is None:
            return difference
        return self.matrix.whiten(difference.astype(np.float64)).astype(x.dtype)

    def leave(self, entered: Floats, own: Floats, total: Floats, state: State) -> Floats:
        """The sum of all h + L^(1/2) C; and h follows."""
        own, total = self._colour(own), self._colour(total)
        estimate: Floats = state["shifts"] + total
        if np.isfinite(total).all():
            alpha = own.dtype.type(self.alpha)
            state["shift"] += alpha * own
            state["shifts"] += alpha * total
        return estimate

    def _colour(self, x: Floats) -> Floats:
        return x if self.matrix is None else self.matrix.colour(x.astype(np.float64)).astype(x.dtype)

    @property
    def formats(self) -> tuple[str, ...]:
        """The inner one's formats whose sums are exact, and whose noise ``alpha`` can count."""
        return without_tern(tuple(name for name in self.inner.formats if name in EXACT_SUMS))

    def bound(self, d: int) -> Bound:
        """The inner's, if there is no matrix; it is about the differences."""
        return self.inner.bound(d) if self.matrix is None else NO_BOUND


@dataclass(frozen=True, slots=True, eq=False)
class WhitenedEach(Compressor):
    """L_i^(1/2) C(L_i^(-1/2) x), with a matrix for each worker: always a gather. The bytes begin with the rank (2), by
    which the others find the matrix. ``matrices``: of all workers, by rank; telling them costs
    `Smoothness.setup_bits` each."""

    inner: Compressor
    matrices: Sequence[Smoothness]
    rank: int
    name: ClassVar[str] = "whitened_each"

    def bound(self, d: int) -> Bound:
        """`NoBound`: there is none in the usual norm."""
        return NO_BOUND

    def compress(self, x: Floats, key: Key) -> bytes:
        """The rank, then C(L_i^(-1/2) x)."""
        white = self.matrices[self.rank].whiten(x.astype(np.float64)).astype(x.dtype)
        return pack("<H", self.rank) + self.inner.compress(white, key)

    def decompress(self, data: bytes, d: int, dtype: npt.DTypeLike) -> Floats:
        """The vector, by the sender's matrix. Raises ValueError if the bytes name no rank."""
        rank = unpack("<H", data[:2])[0] if len(data) >= 2 else len(self.matrices)
        if rank >= len(self.matrices):
            raise ValueError(f"the bytes name no sender of {len(self.matrices)} workers")
        vector = self.inner.decompress(data[2:], d, dtype).astype(np.float64)
        coloured: Floats = self.matrices[rank].colour(vector).astype(dtype)
        return coloured
