"""Words that one thread writes and another reads, without a lock: what is compiled and never waits hands work over by
them. Terms are those of C++ (ISO/IEC 14882, [atomics.order]).

What was written before `store` is seen by whoever has seen what it stored with `load`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from inagg_link.jit import jit

_ir: Any = vars(cgutils)["ir"]
_WORD: Final = _ir.IntType(64)


def _load(_context: Any, _address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _WORD.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


def _store(_context: Any, _address: Any, _value: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], _WORD.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _exchange(_context: Any, _address: Any, _value: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("xchg", builder.inttoptr(args[0], _WORD.as_pointer()), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


load: Any = intrinsic(_load)
"""The int64 at an address; what comes after it is done after it."""
store: Any = intrinsic(_store)
"""Write an int64; what comes before it is done before it."""
exchange: Any = intrinsic(_exchange)
"""Write an int64, and what was there: for a lock."""


def offset_of(records: np.dtype[np.void], name: str) -> int:
    """Offset of a field in a record, in bytes."""
    fields = records.fields
    assert fields is not None
    return int(fields[name][1])


@jit
def load_word(address: int) -> int:
    """`load`, for Python."""
    return int(load(address))


@jit
def store_word(address: int, value: int) -> None:
    """`store`, for Python."""
    store(address, value)
