"""One call of the all-reduce, from the caller's array to its future."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from inagg_wire.scale import FloatType

from .completion import Work

FLOAT_TYPES = {t.dtype: t for t in FloatType if t is not FloatType.BFLOAT16}


@dataclass(slots=True, eq=False)
class Task:
    """Sum ``values`` over all ranks into ``target`` and divide by ``divisor``; both may be the same array."""

    values: npt.NDArray[Any]
    target: npt.NDArray[Any]
    float_type: FloatType
    divisor: int
    work: Work = field(default_factory=Work)


def make_task(
    values: npt.NDArray[Any], out: npt.NDArray[Any] | None, float_type: FloatType | None, divisor: int
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
    return Task(values, target, float_type, divisor)
