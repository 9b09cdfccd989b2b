"""Whole sentences on a job and its ranks, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..text import count_text, ranks_text, seconds_text


def failed_text(
    job: str, rank: int, silent_s: float, contributions: int, last_contribution_s: float | None, slots_waiting: int,
    broke_off: bool, lost: str | None = None,
) -> str:  # fmt: skip
    """One sentence on a member that fell silent. ``broke_off``: its connection did; ``lost``: the switch of the tree by
    which it had joined, if that has gone."""
    saw = "the switch has taken no contribution of it"
    if last_contribution_s is not None:
        took = count_text(contributions, "contribution")
        saw = f"the switch last took a contribution of it {seconds_text(last_contribution_s)} ago ({took} in all)"
    verb = "waits" if slots_waiting == 1 else "wait"
    waits = f"; {count_text(slots_waiting, 'slot')} {verb} for it" if slots_waiting else ""
    broke = "; its connection broke off, as that of a process does that ends" if broke_off else ""
    if lost is not None:
        broke = f"; it joined at switch {lost!r}, which has gone"
    return f"rank {rank} of job {job!r} has been silent for {seconds_text(silent_s)}{broke}; {saw}{waits}"


def too_late_text(job: str, rank: int, waited_s: float, missing: Iterable[int], workers: int) -> str:
    """Sentence for a rank that waited too long for the others."""
    return (
        f"rank {rank} waited {seconds_text(waited_s)} in job {job!r} for {ranks_text(missing)} of {workers}: start "
        "what is missing, or see why it does not reach this switch"
    )


def given_up_text(job: str, rank: int, heartbeat_limit_s: float | None) -> str:
    """Sentence for a late heartbeat; ``heartbeat_limit_s`` None: the rank has left."""
    if heartbeat_limit_s is None:
        return f"rank {rank} of job {job!r} has left: join again to take part"
    return (
        f"rank {rank} of job {job!r} was silent for more than {seconds_text(heartbeat_limit_s)} and has been given up: "
        "join again, bringing what it had"
    )


def draining_text(job: str) -> str:
    """Sentence for a job that has not begun when the switch drains: before it stops, or until that is undone."""
    return (
        f"job {job!r} cannot begin here: the switch drains, so it takes no new jobs now and lets only running jobs "
        "finish; try again later, or use another switch"
    )


def deserted_text(job: str, gone: Iterable[int], rejoin_limit_s: float, before: str) -> str:
    """Sentence on the end of a job whose ranks did not come back."""
    return (
        f"job {job!r} ended: {ranks_text(gone)} did not come back within {seconds_text(rejoin_limit_s)}; "
        f"before that: {before}"
    )


RAN_ELSEWHERE: Final = "the switch was started again, or has taken the place of another"
"""Clause of `deserted_text` for ranks that did not come back to a switch on which their job has not run."""


def ended_text(job: str, ended: Iterable[int]) -> str:
    """Sentence on the end of a job of which processes seem to have ended."""
    return (
        f"job {job!r} ended: the connection of {ranks_text(ended)} broke off, as that of a process does that ends, and "
        "nothing more came of it"
    )
