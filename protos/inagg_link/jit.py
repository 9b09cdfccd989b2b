"""Compilation of loops: one place for what host and switch have in common. It needs Numba; `inagg_wire` itself does
not."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numba
from numba.core import types
from numba.extending import intrinsic, overload

from . import first_start as compiling  # noqa: F401  # finds where compiled code can be kept
from .jit_off import require_jit

require_jit()

Function = TypeVar("Function", bound=Callable[..., object])

# Without Numba's run-time a loop counts no references, which costs two atomic instructions each time an array is
# named (numba issue 2350; measured: 0.3 us per datagram), and cannot allocate: what would need to does not compile.
# Divisions follow IEEE 754 instead of raising. C calls what `numba.cfunc` makes alone, so there are no wrappers for C:
# they were a twentieth of what there is to compile.
_OPTIONS: dict[str, Any] = {
    "nogil": True, "cache": True, "boundscheck": False, "_nrt": False, "error_model": "numpy", "no_cfunc_wrapper": True,
}  # fmt: skip


def jit(function: Function) -> Function:
    """Compile ``function`` when it is first called, or take it from Numba's cache."""
    return cast(Function, _once(numba.njit(**_OPTIONS)(function)))


def inline(function: Function) -> Function:
    """Compile as `jit` what is to become part of its callers."""
    return cast(Function, _once(numba.njit(**_OPTIONS, inline="always")(function)))


def fused(function: Function) -> Function:
    """Compile what is called for each block, as `jit` first, and then as part of its callers: to pass a dozen arrays
    takes longer than to work on the codes of a small block."""
    return cast(Function, _once(numba.njit(**_OPTIONS, forceinline=True)(function)))


_unliteral: Any = types.unliteral  # without types


def _once(dispatcher: Any) -> Any:
    """Compile it once for all integers, not anew for each constant that compiled code calls it with: that is a sixth of
    what there is to compile."""
    template = dispatcher.get_call_template

    def for_types(args: Any, kws: Any) -> Any:
        return template([_unliteral(arg) for arg in args], {k: _unliteral(v) for k, v in kws.items()})

    dispatcher.get_call_template = for_types
    return dispatcher


def by_types(choose: Function, **options: Any) -> Function:
    """A function for compiled code alone, which ``choose`` returns for the types of the arguments: one of the same
    arguments."""

    @wraps(choose)
    def stub(*_arguments: object) -> object:
        raise NotImplementedError("for use in compiled code")

    overload(stub, jit_options=cast(Any, options), strict=False)(choose)
    return cast(Function, stub)


def _shift_right(_context: Any, value: Any, by: Any) -> Any:
    """``value >> by`` of two uint32, undefined unless ``by`` < 32. Numba's own shifts are of 64 bits, which halves the
    lanes of a vector; and where a guard is needed it costs nothing, as the vector instruction gives 0 there."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.lshr(args[0], args[1])

    return (types.uint32(types.uint32, types.uint32), generate) if value == by == types.uint32 else None


def _shift_left(_context: Any, value: Any, by: Any) -> Any:
    """``value << by``, as `shift_right`."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.shl(args[0], args[1])

    return (types.uint32(types.uint32, types.uint32), generate) if value == by == types.uint32 else None


shift_right: Any = intrinsic(_shift_right)
shift_left: Any = intrinsic(_shift_left)
