"""How loops are compiled: one place for what host and switch have in common. It needs Numba; `inagg_wire` itself does
not, so only what is compiled imports this."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])

# Without Numba's run-time a loop counts no references, which costs two atomic instructions each time an array is
# named (numba issue 2350; measured: 0.3 us per datagram), and cannot allocate: what would need to does not compile.
_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "boundscheck": False, "_nrt": False}


def jit(function: Function) -> Function:
    """Compile ``function`` when it is first called, or take it from Numba's cache."""
    return cast(Function, numba.njit(**_OPTIONS)(function))


def inline(function: Function) -> Function:
    """The same, for what is to become part of its callers."""
    return cast(Function, numba.njit(**_OPTIONS, inline="always")(function))


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """While processes start together and need the same loops, one compiles them, and the others wait for it and load
    them from the cache: with few processors that is several times as fast. The lock is on this file, so nothing is
    left behind; where files cannot be locked (some network file systems), each compiles for itself."""
    with Path(__file__).open("rb") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
