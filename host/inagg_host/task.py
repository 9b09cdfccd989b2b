"""One call of the all-reduce, from the caller's array to its future."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_wire.scale import FloatType

from .codec.callbacks import MakeCodec
from .io.futures import Work

FLOAT_TYPES = {t.dtype: t for t in FloatType if t is not FloatType.BFLOAT16}


@dataclass(slots=True, eq=False)
class Task:
    """Sum ``values`` over all ranks into ``target`` and divide by ``divisor``; both may be the same array.

    ``float_type`` None: take the maxima of bytes. ``contributed``: where to write what this rank adds to the sum.
    """

    values: npt.NDArray[Any]
    target: npt.NDArray[Any]
    float_type: FloatType | None
    divisor: int
    contributed: npt.NDArray[Any] | None = None
    codec: MakeCodec | None = None
    """What encodes and decodes the values, if they are elsewhere: then the arrays only tell how many there are."""
    tag: int = 0
    """32 bits, the same on all ranks: it tells tasks apart that are alike otherwise."""
    work: Work = field(default_factory=Work)


def make_task(
    values: npt.NDArray[Any],
    out: npt.NDArray[Any] | None,
    float_type: FloatType | None,
    divisor: int,
    contributed: npt.NDArray[Any] | None = None,
) -> Task:
    """The task to sum ``values``, of any shape, into ``out`` or in place. Raises ValueError if that cannot be."""
    float_type = float_type or FLOAT_TYPES.get(values.dtype)
    if float_type is None or values.dtype != float_type.dtype:
        raise ValueError(f"{values.dtype} cannot be summed in the network: give float16, float32 or float64")
    target = values if out is None else out
    if not (values.flags.c_contiguous and target.flags.c_contiguous and target.flags.writeable):
        raise ValueError("the arrays must be contiguous, and the one for the sums writable")
    if target.shape != values.shape or target.dtype != values.dtype:
        raise ValueError(f"out is {target.dtype} {target.shape}, the values are {values.dtype} {values.shape}")
    if divisor < 1:
        raise ValueError(f"divisor {divisor}: give 1, or the number of workers for their mean")
    if contributed is not None:
        if not (contributed.flags.c_contiguous and contributed.flags.writeable):
            raise ValueError("the array for what is contributed must be contiguous and writable")
        if (contributed.shape, contributed.dtype) != (values.shape, values.dtype):
            raise ValueError(
                f"contributed is {contributed.dtype} {contributed.shape}, the values are {values.dtype} {values.shape}"
            )
        if np.shares_memory(contributed, values) or np.shares_memory(contributed, target):
            raise ValueError("the array for what is contributed must be memory of its own")
    return Task(values, target, float_type, divisor, contributed)


def make_codec_task(codec: MakeCodec, elements: int, float_type: FloatType, divisor: int) -> Task:
    """The task to sum ``elements`` values that only ``codec`` knows."""
    values = np.broadcast_to(np.zeros(1, float_type.dtype), elements)  # of no memory
    return Task(values, values, float_type, divisor, codec=codec)


def make_max_task(values: npt.NDArray[Any], out: npt.NDArray[Any] | None) -> Task:
    """The task to take the maxima of bytes over all ranks, into ``out`` or in place. Raises as `make_task`."""
    target = values if out is None else out
    for array in (values, target):
        if array.dtype != np.uint8 or array.shape != values.shape or not array.flags.c_contiguous:
            raise ValueError(
                f"{array.dtype} of shape {array.shape}: maxima are of bytes, in contiguous arrays of one shape"
            )
    if not target.flags.writeable:
        raise ValueError("the array for the maxima must be writable")
    return Task(values, target, None, 1)
