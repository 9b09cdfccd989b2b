"""A bell that wakes a thread, from Python, from compiled code, and from a stream of a device."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.types import ExternalFunction

from inagg_link.jit import jit

from .calls import words_at

_write: Any = ExternalFunction("write", types.int64(types.int32, types.uintp, types.uint64))


class Bell:
    """Wakes a thread that waits; ringing it never blocks, and needs no Python."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pair = np.array([self.descriptor, 1], np.int64)
        self.address: int = self._pair.ctypes.data
        """Of the descriptor and of what is written to it, both int64: for `ring`."""

    def ring(self) -> None:
        """For any thread, until `close`."""
        os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """What has rung so far is heard."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Nobody rings any more."""
        os.close(self.descriptor)


@jit
def ring(bell: int) -> None:
    """As `Bell.ring`, of the bell at an address."""
    pair = words_at(bell, 2)
    _write(np.int32(pair[0]), np.uint64(bell + 8), np.uint64(8))


def _ring_c(bell: int) -> None:
    ring(bell)


@cache
def ring_address() -> int:
    """Of `ring`, as a function of C, ``void ring(bell)``: for threads that know no Python."""
    compiled: Any = numba.cfunc(types.void(types.int64), cache=True)(_ring_c)
    return int(compiled.address)
