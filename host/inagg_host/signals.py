"""Exceptions that come from handlers of signals: they are for whoever waits, and say nothing about the network."""

from __future__ import annotations

from types import FrameType
from typing import Any


def raised_by_handler(error: BaseException) -> bool:
    """Whether a handler that was set with `signal.signal` has raised ``error``, between any two steps of our own.

    Python calls a handler with the frame that it interrupts, so with that of its caller, which nothing else is given.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        caller, trace = trace.tb_frame, trace.tb_next
        if any(_is_or_has(value, caller) for value in trace.tb_frame.f_locals.values()):
            return True
    return False


def _is_or_has(value: Any, frame: FrameType) -> bool:
    """``value`` may be the tuple of a handler's ``*arguments``."""
    return value is frame or (type(value) is tuple and any(part is frame for part in value))
