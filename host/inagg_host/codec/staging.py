"""Operations whose values are not in the host's memory: what stands between them and a device. See `codec.staged`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from inagg_wire.scale import FloatType

from .calls import Addresses
from .job import Job
from .ordered import offset_of, store_word
from .staged import FAILED, GIVEN_UP, MANY_TIES, STAGED, TIES, arriving_scale_address, release, staged_addresses
from .table import Column

if TYPE_CHECKING:
    from inagg_host.core.operation import Operation

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]

_ALIGNMENT = 64
_WORD_OF: Final = {name: offset_of(STAGED, name) // 8 for name in STAGED.names or ()}
_NAN_BITS: Final = {float_type.dtype: float_type.nan_bits for float_type in FloatType}


class Codec:
    """The link between an operation and whoever brings its values: one for each operation."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake``: has the transport ask again; for any thread."""
        self._wake = wake
        self._words = np.zeros(len(_WORD_OF), np.int64)
        self.address: int = self._words.ctypes.data
        self._error: BaseException | None = None

    @property
    def record(self) -> npt.NDArray[np.void]:
        """`STAGED`, (1,): what the kernels know."""
        return self._words.view(STAGED)

    def _describe(self, **fields: int) -> None:
        """Write ``fields`` of the record, as its words: numpy takes thrice as long for fields."""
        for name, value in fields.items():
            self._words[_WORD_OF[name]] = value

    def fields(self, kernels: Addresses) -> dict[str, int]:
        """Fields of the operation's record; ``kernels``: those of the CPU. On the thread that begins it."""
        raise NotImplementedError

    def begin(self, operation: Operation) -> None:
        """The operation is in the engine. On the thread that begins it, before the core calls any kernel."""

    @property
    def error(self) -> BaseException | None:
        """Why there will be no codes."""
        failed = self._words[_WORD_OF["failed"]]
        if self._error is None and failed == MANY_TIES:
            return RuntimeError(f"more than {TIES} lanes of an all-reduce have a tie: the device counts wrong")
        if self._error is None and failed == GIVEN_UP:
            return RuntimeError(
                "its sums had not come within the time limit, and all that time a thread that waited for the device "
                "kept Python's lock: INAGG_BLOCKING_WAIT=1 has the host wait for sums"
            )
        return self._error

    def fail(self, error: BaseException) -> None:
        """The values will never come: the kernels say `RAISED` from now on."""
        self._error = error
        store_word(self.address + FAILED, 1)
        self._wake()

    def finish(self) -> None:
        """All sums, or results, are in the host's memory, and the core may not have been who brought them there."""

    def release(self) -> None:
        """The core does nothing more with the operation, and has not finished it: nothing waits for it from now on, and
        all sums that have not come become NaN."""
        release(self.address)


class Arriving(Codec):
    """Values that are on their way to the host's memory, where the kernels of the CPU find them. ``arrived``: a word
    that is not 0 when they are there; ``sums``: where the sums will be; ``summed``: a word that is told of them."""

    def __init__(
        self, wake: Callable[[], None], words: Words, sums: npt.NDArray[Any], wait: Callable[[], None]
    ) -> None:
        """``words``: int64, (2,), zeros: see above. ``sums``: of a float type, or uint16, which are bfloat16. ``wait``:
        returns when the values are there."""
        super().__init__(wake)
        self._kept, self._wait = (words, sums), wait
        self.arrived: int = words.ctypes.data
        self.summed = self.arrived + 8
        self._describe(
            measured=self.arrived, summed=self.summed, sums=sums.ctypes.data, elements=sums.size, width=sums.itemsize,
            nan=_NAN_BITS[sums.dtype],
        )  # fmt: skip

    def wait(self) -> None:
        """Wait until they are there; raises what went wrong."""
        self._wait()
        if self.error is not None:
            raise self.error

    def fields(self, kernels: Addresses) -> dict[str, int]:
        """The CPU's kernels, but for scales, with which all begins: these must wait until values are there."""
        self._describe(scale=kernels.scale)
        fields = {"scale": arriving_scale_address(), "staged": self.address, "summed": self.summed}
        return {**kernels._asdict(), **fields}

    def finish(self) -> None:
        """See `Codec.finish`: whoever waits for ``summed`` goes on."""
        store_word(self.summed, 1)

    def release(self) -> None:
        """See `Codec.release`; but when the values are there, which may come to where the sums would be."""
        try:
            self._wait()
        finally:
            super().release()


@dataclass(frozen=True, slots=True, eq=False)
class Board:
    """Memory of one operation that host and device reach: see `codec.staged` for who writes what."""

    measured: Words
    """int64, (1,)."""
    agreed: Words
    """int64, (chunks,); so are the next two."""
    coded: Words
    complete: Words
    ties: npt.NDArray[np.int64]
    """int64, (`TIES`, 2): where lanes are that have a tie, and the bits of their values."""
    magnitudes: npt.NDArray[Any]
    """(blocks,): unsigned integers of the size of a value."""
    sending: npt.NDArray[np.int32]
    """int32, (blocks, `table.COLUMNS`); so is the next one."""
    receiving: npt.NDArray[np.int32]
    codes: Bytes
    """uint8, (blocks * bytes of a contribution's payload,)."""
    results: Bytes
    """The same of results."""
    flags: Bytes
    """uint8, (blocks, bytes of flags each)."""
    invalid: npt.NDArray[np.int32]
    """int32, (blocks, words each): how many codes of results name no level."""
    addresses: dict[str, int]
    """Addresses of all of these, by name."""

    @classmethod
    def make(
        cls, job: Job, blocks: int, chunk: int, allot: Callable[[int], Bytes], flag_bytes: int = 1, count_words: int = 1
    ) -> Self:
        """``chunk``: blocks of one; ``allot``: so many bytes of memory that the device reaches, aligned to 64."""
        parts, size = _plan(job, blocks, -(-blocks // chunk), flag_bytes, count_words)
        memory = allot(size)
        base = memory.ctypes.data
        arrays: dict[str, Any] = {name: np.ndarray(shape, dtype, memory, at) for name, shape, dtype, at in parts}
        addresses = {name: base + at for name, _, _, at in parts}
        for name in ("measured", "agreed", "coded", "complete", "ties"):
            arrays[name][:] = 0
        return cls(**arrays, addresses=addresses)


@lru_cache(maxsize=256)
def _plan(
    job: Job, blocks: int, chunks: int, flag_bytes: int, count_words: int
) -> tuple[list[tuple[str, tuple[int, ...], np.dtype[Any], int]], int]:
    """The parts of a `Board`: names, shapes, dtypes, and where they begin; and how many bytes they have. Tensors of one
    size come again and again."""
    parts: list[tuple[tuple[int, ...], Any]] = [
        ((1,), np.int64), *[((chunks,), np.int64)] * 3, ((TIES, 2), np.int64),
        ((blocks,), f"u{job.dtype.itemsize}"), ((blocks, len(Column)), np.int32), ((blocks, len(Column)), np.int32),
        ((blocks * job.for_encode.payload_bytes,), np.uint8), ((blocks * job.for_decode.payload_bytes,), np.uint8),
        ((blocks, flag_bytes), np.uint8), ((blocks, count_words), np.int32),
    ]  # fmt: skip
    at, found = 0, []
    for (shape, dtype), part in zip(parts, fields(Board), strict=False):
        found.append((part.name, shape, np.dtype(dtype), at))
        at += -(-math.prod(shape) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
    return found, at


_SHARED: Final = ("measured", "agreed", "coded", "complete", "ties", "magnitudes", "codes", "flags", "sending",
                  "receiving", "results")  # fmt: skip
"""The parts of a `Board` whose addresses the record has, too."""


class Staging(Codec):
    """Values on a device."""

    def __init__(self, board: Board, chunk: int, wake: Callable[[], None]) -> None:
        """``chunk``: as of the engine (`core.engine.Engine.chunk`)."""
        super().__init__(wake)
        self.board, self._chunk = board, chunk
        self._left = np.full(board.coded.size, chunk, np.int64)
        self._left[-1] = board.magnitudes.size - (board.coded.size - 1) * chunk
        self._starts = np.zeros(board.coded.size, np.int64)
        self._describe(
            **{name: board.addresses[name] for name in _SHARED}, width=board.magnitudes.itemsize,
            flag_bytes=board.flags.shape[1], starts=self._starts.ctypes.data, left=self._left.ctypes.data,
            blocks=board.magnitudes.size, chunk=chunk,
        )  # fmt: skip

    def fields(self, kernels: Addresses) -> dict[str, int]:
        """The kernels of `codec.staged`; nothing is drafted."""
        return {**staged_addresses()._asdict(), "staged": self.address, "drafting": 0}

    def begin(self, operation: Operation) -> None:
        """See `Codec.begin`. Raises RuntimeError if the engine has other chunks than the device was told of."""
        if operation.shape.chunk != self._chunk:
            raise RuntimeError(f"a chunk has {operation.shape.chunk} blocks, the device was told of {self._chunk}")
        self._starts[:] = operation.starts
        self._describe(needs=operation.needs)
