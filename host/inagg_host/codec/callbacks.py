"""Kernels in Python behind addresses, for values that are not in the host's memory: the core calls them as it calls
compiled ones.

A callback takes Python's lock for as long as it runs, and is called for each batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from .calls import CODEC, Addresses
from .job import Job
from .scales import scale_bytes

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

RAISED: Final = -4
"""What a callback returns if Python has raised something: see `Callbacks.error`."""


class Codec(Protocol):
    """The kernels of one operation whose values are not in the host's memory, such as a GPU's."""

    job: Job

    def largest(self, first: int, count: int) -> npt.NDArray[np.uint64]:
        """As `inagg_host.codec.largest`, of ``count`` blocks from ``first`` on."""

    def encode(
        self, scales: Bytes, refinements: Bytes, first: int, number: int, step: int, count: int, datagrams: Bytes,
        row: int,
    ) -> int:  # fmt: skip
        """Write the payloads of ``count`` blocks, ``first`` and every ``step``-th after it, into the rows from ``row``
        on; their numbers in the job go up likewise from ``number``. Returns as `inagg_host.codec.encode`."""

    def decode(
        self, data: Bytes, size: int, places: Integers, numbers: Integers, step: int, offset: int, scales: Bytes,
        refinements: Bytes, divisor: int,
    ) -> int:  # fmt: skip
        """Take the results at ``places`` of ``data``, datagrams of ``size`` bytes, of blocks ``numbers`` * ``step`` +
        ``offset``. Returns how many codes name no level."""


MakeCodec = Callable[[Job, int], Codec]
"""What makes one, when it is told the job and how many value blocks share a block of scales."""

_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)


class Callbacks:
    """A `Codec` as the core calls it. To be kept for as long as the operation is under way."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.error: Exception | None = None
        """What Python has raised first."""
        self._functions = [_SIGNATURE(self._guarded(call)) for call in (self._encode, self._decode, self._scale)]
        encode, decode, scale = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._functions)
        self.addresses = Addresses(encode, decode, scale)

    def _guarded(self, call: Callable[..., int]) -> Callable[..., int]:
        def guarded(operation: int, *arguments: int) -> int:
            try:
                return call(_record(operation), *arguments)
            except Exception as error:  # whatever it is: the core has its number, and who asks it gets this
                self.error = self.error or error
                return RAISED

        return guarded

    def _encode(self, c: Any, first: int, number: int, count: int, row: int) -> int:
        ring = _bytes(c["ring"], int(c["rows"]) * int(c["stride"])).reshape(int(c["rows"]), int(c["stride"]))
        return self.codec.encode(*_agreed(c), first, number, int(c["shards"]), count, ring, row)

    def _decode(self, c: Any, size: int, begin: int, end: int, offset: int) -> int:
        data = _bytes(c["data"], int(c["data_bytes"]) // size * size)
        places, numbers = (_bytes(c[name], 8 * end).view(np.int64)[begin:] for name in ("places", "numbers"))
        return self.codec.decode(data, size, places, numbers, int(c["shards"]), offset, *_agreed(c), int(c["divisor"]))

    def _scale(self, c: Any, first: int, count: int, _number: int, _d: int) -> int:
        blocks, job = int(c["blocks"]), self.codec.job
        found = _bytes(c["magnitudes"], 8 * blocks).view(np.uint64)[first : first + count]
        found[:] = self.codec.largest(first, count)
        scale_bytes(found, job.dith8, job.lowest_scale, _bytes(c["own"], blocks)[first : first + count])
        return 0


def _record(address: int) -> Any:
    memory: Any = (ctypes.c_char * CODEC.itemsize).from_address(address)
    return np.frombuffer(memory, CODEC)[0]


def _bytes(address: Any, count: int) -> Bytes:
    memory: Any = (ctypes.c_uint8 * count).from_address(int(address))
    return np.frombuffer(memory, np.uint8)


def _agreed(c: Any) -> tuple[Bytes, Bytes]:
    """Scales and refinements."""
    blocks = int(c["blocks"])
    return _bytes(c["agreed"], blocks), _bytes(c["refinement"], blocks)
