"""How an engine says that its job cannot go on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inagg_wire.errors import Reason
from inagg_wire.scale import FloatType

from .operation import Operation
from .state import CODEC_FAILED, NO_MAXIMUM, OTHER_OP, OTHER_OPERATION, SWITCH_REFUSES

SAME_ORDER = (
    "all ranks must reduce tensors of the same sizes and types in the same order, and one that caught an error where "
    "it submitted a tensor has left that out"
)


class RanksDisagree(RuntimeError):
    """The ranks do not reduce the same things in the same order."""


class Refused(RuntimeError):
    """The switch refused a contribution; ``reason`` says why."""

    def __init__(self, reason: Reason, block: int) -> None:
        super().__init__(f"the switch refused block {block}: {reason.label}")
        self.reason = reason


class OutOfGenerations(RuntimeError):
    """Every slot has served its last generation: a new epoch must begin before anything else can be sent."""

    def __init__(self) -> None:
        super().__init__("every slot of the job has served its last generation, so a new epoch must begin")


def other_operation(elements: int, float_type: FloatType | None, divisor: int) -> RanksDisagree:
    """The exception where another rank's operation is not this one's. ``float_type`` None: maxima of bytes."""
    kind = "uint8" if float_type is None else float_type.name.lower()
    return RanksDisagree(
        f"another rank reduces something else than this one's {elements} elements of {kind} (divisor {divisor}): "
        f"{SAME_ORDER}"
    )


def why(job: Any, operations: Iterable[Operation]) -> RuntimeError:
    """An exception for the ``error`` of a `state.JOB`, of which ``operations`` are unfinished."""
    error, block, reason = int(job["error"]), int(job["error_block"]), int(job["error_reason"])
    if error == SWITCH_REFUSES:
        return Refused(Reason(reason), block)
    if error == OTHER_OP:
        return RanksDisagree(f"another rank sends scales where this one sends values, or the reverse: {SAME_ORDER}")
    if error == OTHER_OPERATION:
        operation = next(o for o in operations if block < o.first_block + o.shape.blocks)
        request = operation.request
        return other_operation(request.values.size, request.float_type, request.divisor)
    if error == CODEC_FAILED:
        codec = next(o for o in operations if block < o.first_block + o.shape.blocks).request.codec
        cause = None if codec is None else codec.error
        failure = RuntimeError(f"the device of a tensor failed: {str(cause) or type(cause).__name__}")
        failure.__cause__ = cause
        return failure
    if error == NO_MAXIMUM:
        return RuntimeError("the switch returned a smaller scale than this rank sent; it does not take maxima")
    return RuntimeError(
        f"values of block {block} exceed the scale that was agreed on: they were changed during the all-reduce, or "
        "the switch does not take maxima"
    )
