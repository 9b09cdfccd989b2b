"""How loops are compiled: one place for what host and switch have in common. It needs Numba; `inagg_wire` itself does
not, so only what is compiled imports this."""

from __future__ import annotations

from collections.abc import Callable
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
