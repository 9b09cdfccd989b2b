"""Errors that users catch."""

from __future__ import annotations

from typing import Any, Final

import numpy.typing as npt

CLOSED_JOINING: Final = "closed while joining"
CLOSED_SUMMING: Final = "closed before the sums were there"
FORKED: Final = "this process was forked from one that has joined: only that one is a rank of the job"
CLOSED: Final = "this job was closed, and sums nothing any more"


class AllReduceError(RuntimeError):
    """The sums cannot be had: the switch or a rank is gone, or refuses. Every rank that waits gets one."""


def again(failure: AllReduceError) -> AllReduceError:
    """The same error, for one more who is told. To raise an exception adds the frames of who raises it, and these keep
    all that is theirs, tensors too, as long as the exception is there."""
    same = type(failure)(*failure.args)
    same.__cause__ = failure.__cause__
    return same


BRIEF_CHARS: Final = 200
"""The most of an error that the switch and the other ranks are told."""


def brief(text: str) -> str:
    """The part of an error that others are told: its first line, and the second if that is announced. PyTorch's go on
    for many, about how to look further on the rank that has it."""
    lines = [stripped for line in text.splitlines() if (stripped := line.strip())]
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return said if len(said) <= BRIEF_CHARS else f"{said[: BRIEF_CHARS - 4]} ..."


def array_text(array: npt.NDArray[Any]) -> str:
    """An array as an error names it."""
    return f"{array.dtype} of shape {array.shape} with strides of {array.strides} bytes"


def over_text(job: str, cause: str = "") -> str:
    """The error of a job that is over, or how it begins."""
    return cause if cause.startswith(f"job {job!r} ") else f"job {job!r} is over: {cause}"
