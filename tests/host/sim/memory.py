"""A caller's memory, guarded: canaries around it, and whatever is done with is overwritten at once.

A sum is looked at when its block's result has come, and then written over. So it shows whether the engine writes twice,
late or beside, and whether it reads values that it has no business to need any more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inagg_wire.scale import Floats, FloatType

PAD_BYTES = 64
CANARY, SCRIBBLE = 0xA5, 0x5A

Content = tuple[npt.NDArray[np.uint8], Floats, npt.NDArray[np.bool_], bool]


class Memory:
    """What one rank gives to one all-reduce, or, in ``pieces`` for as many ranks, to a reduce-scatter."""

    def __init__(
        self, values: Floats, in_place: bool, sums: Floats, lanes: int, float_type: FloatType, rank: int = 0,
        pieces: int = 1,
    ) -> None:  # fmt: skip
        piece = values.size // pieces
        own = slice(rank * piece, (rank + 1) * piece) if pieces > 1 else slice(None)
        self._sums, self._lanes, self._size = sums[own].tobytes(), lanes, values.itemsize
        self._out = np.full(2 * PAD_BYTES + (values if in_place else values[own]).nbytes, CANARY, np.uint8)
        inside: Floats = self._out[PAD_BYTES:-PAD_BYTES].view(float_type.dtype)
        if in_place:
            inside[:] = values
            self.values, self.out = inside, inside[own]
        else:
            self.values, self.out = values.copy(), inside
        self._kept = np.ones(values.size, np.bool_)  # of the values
        if in_place:
            self._kept[own] = False
        self._given = values[self._kept].tobytes()
        self._written = np.zeros(-(-piece // lanes), np.bool_)
        self._first = rank * self._written.size if pieces > 1 else 0
        self.finished = False

    def save(self) -> Content:
        """All that can change."""
        return self._out.copy(), self.values.copy(), self._written.copy(), self.finished

    def put_back(self, content: Content) -> None:
        """Make it what it was."""
        self._out[:], self.values[:], self._written[:], self.finished = content

    @property
    def state(self) -> bytes:
        """What tells contents apart."""
        return self._out.tobytes() + self.values.tobytes()

    def wrote(self, block: int) -> None:
        """The result of value block ``block`` has come (again), or another rank has it."""
        block -= self._first
        if not 0 <= block < self._written.size:
            return
        part = self.out[block * self._lanes : (block + 1) * self._lanes].view(np.uint8)
        if self._written[block]:
            self._check_scribbled(part.tobytes(), f"block {block} was written again")
            return
        start = block * self._lanes * self._size
        assert part.tobytes() == self._sums[start : start + part.size], f"block {block} is not the sum"
        part[:] = SCRIBBLE
        self._written[block] = True

    def finish(self) -> None:
        """The engine says that all sums are there."""
        assert not self.finished, "finished twice"
        assert self._written.all(), "finished without all sums"
        assert self.values[self._kept].tobytes() == self._given, "the values were changed"
        self.finished = True
        self.values.view(np.uint8)[:] = SCRIBBLE  # whoever reads them now will not get what they were
        self.check()

    def check(self) -> None:
        """Nothing was written after the end, or beside."""
        guard = bytes([CANARY]) * PAD_BYTES
        whole = self._out.tobytes()
        assert whole[:PAD_BYTES] == guard == whole[-PAD_BYTES:], "written beside the memory"
        if self.finished:
            self._check_scribbled(whole[PAD_BYTES:-PAD_BYTES], "written after the end")

    def _check_scribbled(self, data: bytes, otherwise: str) -> None:
        assert data.count(SCRIBBLE) == len(data), otherwise
