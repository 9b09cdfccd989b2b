"""What users catch."""

from __future__ import annotations

from typing import Final

CLOSED_JOINING: Final = "closed while joining"
CLOSED_SUMMING: Final = "closed before the sums were there"
CLOSED: Final = "this job was closed, and sums nothing any more"


class AllReduceError(RuntimeError):
    """The sums cannot be had: the switch or a rank is gone, or refuses. Every rank that waits gets one."""


def over_text(job: str, cause: str = "") -> str:
    """The error of a job that is over, or how it begins."""
    return cause if cause.startswith(f"job {job!r} ") else f"job {job!r} is over: {cause}"
