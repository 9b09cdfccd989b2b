"""Mem-SGD over the network: what a worker contributed, exactly, and the mean of all, from one exchange."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..base import Compressor, Floats, State
from ..exchange import Exchange
from ..feedback import ErrorFeedback
from ..memory import Memories

OWN = "own"


@dataclass(frozen=True, slots=True)
class _Contributed(ErrorFeedback):
    """Keeps what was contributed, in the place of what was not: the memory is the optimizer's."""

    def new_state(self, d: int, dtype: npt.DTypeLike) -> State:
        return {OWN: np.zeros(d, dtype)}

    def enter(self, x: Floats, state: State) -> Floats:
        return x

    def leave(self, entered: Floats, own: Floats, total: Floats, state: State) -> Floats:
        state[OWN] = own
        return total


class SwitchMean:
    """An exchange for `memory.MemSGD`: ``compressor`` through the switch, or a gather where that cannot sum it.

        optimizer = MemSGD(model.parameters(), lr, exchange=SwitchMean(exchange, RandK(0.01), workers))

    The coordinates of rand-k come from the shared seed, so it is a dense block of few lanes in the switch, without
    indices. rand-k is taken unscaled, as the memory needs a contraction. For the same reason the job's format must be
    one that `ErrorFeedback` offers for it: in tern its memory would grow without end.
    """

    def __init__(self, exchange: Exchange, compressor: Compressor, workers: int) -> None:
        self._exchange, self._workers = exchange, workers
        self._compressor = _Contributed(compressor, damping=1.0)
        self._memories: Memories = {}

    def __call__(self, number: int, vector: Floats) -> tuple[Floats, Floats]:
        """See `memory.Exchange`. Raises ArithmeticError if some worker's vector is not finite."""
        total = self._exchange.reduce(self._compressor, {number: vector}, self._memories)[number]
        if not np.isfinite(total).all():
            raise ArithmeticError(f"what enters parameter {number} is not finite on some worker: lower the step size")
        mean: Floats = total / total.dtype.type(self._workers)
        return self._memories[number].state[OWN], mean
