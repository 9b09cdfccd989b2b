"""Refusals of the control plane: a code and one sentence that says what to do."""

from __future__ import annotations

from enum import Enum


class Code(Enum):
    """The gRPC status codes that calls end with; the names are gRPC's own, so that the core needs no gRPC."""

    INVALID_ARGUMENT = "can never work as asked"
    NOT_FOUND = "no such job"
    ALREADY_EXISTS = "the name, or the rank, is taken"
    FAILED_PRECONDITION = "fits neither the job nor the other ranks"
    RESOURCE_EXHAUSTED = "no room now"
    DEADLINE_EXCEEDED = "others did not come in time"
    ABORTED = "is over"
    PERMISSION_DENIED = "for operators"
    UNAVAILABLE = "the switch is stopping"
    INTERNAL = "the switch failed"


class ControlError(Exception):
    """A call that is refused; nothing has changed. ``text`` is one sentence and says what to do."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
