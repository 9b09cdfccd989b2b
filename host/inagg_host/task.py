"""One call of the all-reduce, from the caller's array to its future."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_wire.scale import FloatType

from .core.operation import Request
from .errors import array_text
from .io.futures import Work

FLOAT_TYPES = {t.dtype: t for t in FloatType if t is not FloatType.BFLOAT16}


@dataclass(slots=True, eq=False, kw_only=True)
class Task(Request):
    """A `Request` of one call, and the future of who waits for it."""

    target: npt.NDArray[Any]
    """``out`` in the shape of the caller's."""
    work: Work = field(default_factory=Work)


def make_task(
    values: npt.NDArray[Any],
    out: npt.NDArray[Any] | None,
    float_type: FloatType | None = None,
    divisor: int = 1,
    contributed: npt.NDArray[Any] | None = None,
    pieces: int | None = None,
    rank: int = 0,
) -> Task:
    """The task to sum ``values``, of any shape, into ``out`` or in place. With ``pieces``, equal ones for as many
    ranks, it scatters: ``out`` gets the sums of number ``rank``, and may be the same memory there. Raises ValueError if
    that cannot be."""
    if type(values) is not np.ndarray or (out is not None and type(out) is not np.ndarray):
        _check_plain(values=values, out=out)
    target = values if out is None else out
    float_type = float_type or FLOAT_TYPES.get(values.dtype)
    if float_type is None or values.dtype != float_type.dtype:
        raise ValueError(
            f"{values.dtype} cannot be summed in the network: give float16, float32 or float64, or bits of bfloat16 as "
            "uint16, with float_type=FloatType.BFLOAT16"
        )
    _check_contiguous("values", values)
    if out is not None:
        _check_contiguous("out", out)
    if not target.flags.writeable:
        raise ValueError(_read_only("values" if out is None else "out", target))
    if not hasattr(divisor, "__index__") or not 1 <= divisor < 1 << 31:
        raise ValueError(f"divisor {divisor!r}: give 1, or the number of workers for their mean")
    if pieces is not None:
        _check_piece(values, target, pieces, rank)
    elif target.shape != values.shape or target.dtype != values.dtype:
        raise ValueError(f"out is {target.dtype} {target.shape}, the values are {values.dtype} {values.shape}")
    if contributed is not None:
        if pieces is not None:
            raise ValueError("what a rank contributes to a reduce-scatter is not known: give no contributed")
        _check_plain(contributed=contributed)
        _check_contiguous("contributed", contributed)
        if not contributed.flags.writeable:
            raise ValueError(_read_only("contributed", contributed))
        if (contributed.shape, contributed.dtype) != (values.shape, values.dtype):
            raise ValueError(
                f"contributed is {contributed.dtype} {contributed.shape}, the values are {values.dtype} {values.shape}"
            )
        if np.shares_memory(contributed, values) or np.shares_memory(contributed, target):
            raise ValueError("the array for what is contributed must be memory of its own")
    task = _flat(values, target, float_type, divisor)
    task.contributed, task.scatters = None if contributed is None else contributed.reshape(-1), pieces is not None
    return task


def _flat(values: npt.NDArray[Any], target: npt.NDArray[Any], float_type: FloatType | None, divisor: int = 1) -> Task:
    flat = values.reshape(-1)
    out = flat if target is values else target.reshape(-1)  # in place: one array to look at
    return Task(flat, out, float_type, divisor, target=target)


def _check_plain(**arrays: Any) -> None:
    """Raise ValueError unless those of ``arrays`` that are there are numpy's, and all their elements count."""
    for name, array in arrays.items():
        if array is not None and (not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray)):
            what = type(array).__name__
            raise ValueError(f"{name}: {what} cannot be summed; give a numpy array, as np.asarray makes one")


def _check_contiguous(name: str, array: npt.NDArray[Any]) -> None:
    """Raise ValueError unless the elements of ``array``, the argument ``name``, lie one after the other."""
    if not array.flags.c_contiguous:
        what = f"np.ascontiguousarray({name}) is a copy that is" if name == "values" else "np.empty makes one that is"
        raise ValueError(f"{name} is {array_text(array)}, which is not contiguous: {what}")


def _read_only(name: str, array: npt.NDArray[Any]) -> str:
    return f"{name} is {array_text(array)}, which is read-only: give an array that is writable, as a copy is"


def _check_piece(values: npt.NDArray[Any], out: npt.NDArray[Any], pieces: int, rank: int) -> None:
    """Raise ValueError unless ``out`` can take piece number ``rank`` of ``values``."""
    if out.dtype != values.dtype or out.size * pieces != values.size:
        raise ValueError(
            f"out has {out.size} elements of {out.dtype}, the values are {values.size} of {values.dtype}: {pieces} "
            f"ranks need {pieces} times as many"
        )
    piece = values.reshape(-1)[rank * out.size : (rank + 1) * out.size]
    in_place = piece.size and piece.ctypes.data == out.ctypes.data
    if not in_place and np.shares_memory(out, values):
        raise ValueError(f"out shares memory with the values, other than piece {rank}, which is this rank's")


def make_staged_task(elements: int, float_type: FloatType, divisor: int, pieces: int = 1) -> Task:
    """The task to sum ``elements`` values that are on a device; with more than one of ``pieces``, for as many
    ranks, it scatters."""
    values = np.broadcast_to(np.zeros(1, float_type.dtype), elements)  # of no memory
    sums = values[: elements // pieces]
    return Task(values, sums, float_type, divisor, scatters=pieces > 1, target=sums)


def make_max_task(values: npt.NDArray[Any], out: npt.NDArray[Any] | None) -> Task:
    """The task to take the maxima of bytes over all ranks, into ``out`` or in place. Raises as `make_task`."""
    _check_plain(values=values, out=out)
    target = values if out is None else out
    for name, array in (("values", values), ("out", target)):
        if array.dtype != np.uint8 or array.shape != values.shape:
            raise ValueError(f"{name} is {array_text(array)}: maxima are of bytes, in arrays of one shape")
        _check_contiguous(name, array)
    if not target.flags.writeable:
        raise ValueError(_read_only("values" if out is None else "out", target))
    return _flat(values, target, None)
