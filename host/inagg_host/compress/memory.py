"""A rank's memory of each tensor between two compressions: for a checkpoint, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .base import Compressor, Floats, State
from .feedback import MEMORY


@dataclass(slots=True)
class Memory:
    """The memory of one tensor of ``d`` elements. Can be pickled."""

    d: int
    dtype: np.dtype[Any]
    step: int = 0
    """How often it has been compressed."""
    state: State = field(default_factory=dict)
    """State of the compressor that is in use."""

    def expect(self, x: Floats) -> None:
        """Raise ValueError if ``x`` is another tensor."""
        if (x.size, x.dtype) != (self.d, self.dtype):
            raise ValueError(
                f"a tensor of {x.size} elements of {x.dtype} where one of {self.d} of {self.dtype} is remembered: "
                "compress the same parameters, in the same order, as before"
            )

    def fit(self, compressor: Compressor, x: Floats) -> Floats:
        """Have the state that ``compressor`` needs; what to give to it in the place of ``x``, after `expect`.

        Another compressor may have been in use. What both know stays. An error that is remembered, and that the new
        one would not know, is added to ``x``, so that nothing is lost.
        """
        wanted = compressor.new_state(self.d, self.dtype)
        if MEMORY not in wanted and (error := self.release()) is not None:
            x = x + error
        self.state = {name: self.state.get(name, fresh) for name, fresh in wanted.items()}
        return x

    def release(self) -> Floats | None:
        """The error that is remembered, which from now on is not; None if there is none."""
        return self.state.pop(MEMORY, None)


Memories = dict[int, Memory]
"""Memories, by the tensor's number."""


def memory_of(memories: Memories, number: int, d: int, dtype: npt.DTypeLike) -> Memory:
    """The memory of tensor ``number``, made if there is none."""
    return memories.setdefault(number, Memory(d, np.dtype(dtype)))
