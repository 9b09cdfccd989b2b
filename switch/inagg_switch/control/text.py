"""Words that sentences for people are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

TEXT_CHARS_MAX: Final = 1000
"""Of an error: gRPC sends it in metadata, which are 8 KB at most, and a character of plain English is a byte there."""


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3`` or ``ranks 0-2, 5``; ``no rank`` if there are none."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    if not runs:
        return "no rank"
    words = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {words}" if runs[0][0] == runs[-1][1] else f"ranks {words}"


def seconds_text(seconds: float) -> str:
    """A duration with as many digits as one wants to read: ``0.42 s``, ``7.3 s``, ``128 s``."""
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 60 else f"{seconds:.0f} s"


def count_text(count: int, noun: str) -> str:
    """``1 slot``, ``5 slots``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def failed_text(
    job: str, rank: int, silent_s: float, contributions: int, last_contribution_s: float | None, slots_waiting: int,
    broke_off: bool,
) -> str:  # fmt: skip
    """What is known of a member that fell silent, as one sentence. ``broke_off``: its connection did."""
    saw = "the switch has taken no contribution of it"
    if last_contribution_s is not None:
        saw = f"the switch last took a contribution of it {seconds_text(last_contribution_s)} ago"
        if contributions:  # else they were counted by a switch that has gone
            saw += f" ({count_text(contributions, 'contribution')} in all)"
    verb = "waits" if slots_waiting == 1 else "wait"
    waits = f"; {count_text(slots_waiting, 'slot')} {verb} for it" if slots_waiting else ""
    broke = "; its connection broke off, as that of a process does that ends" if broke_off else ""
    return f"rank {rank} of job {job!r} has been silent for {seconds_text(silent_s)}{broke}; {saw}{waits}"


def too_late_text(job: str, rank: int, waited_s: float, missing: Iterable[int], workers: int) -> str:
    """What a rank is told that waited too long for the others."""
    return (
        f"rank {rank} waited {seconds_text(waited_s)} in job {job!r} for {ranks_text(missing)} of {workers}: start "
        "what is missing, or see why it does not reach this switch"
    )


def given_up_text(job: str, rank: int, heartbeat_limit_s: float | None) -> str:
    """What a late heartbeat is told; ``heartbeat_limit_s`` None: the rank has left."""
    if heartbeat_limit_s is None:
        return f"rank {rank} of job {job!r} has left: join again to take part"
    return (
        f"rank {rank} of job {job!r} was silent for more than {seconds_text(heartbeat_limit_s)} and has been given up: "
        "join again, bringing what it had"
    )


def printable(text: str) -> str:
    """``text`` of somebody else, which may do nothing to a terminal or a log: line ends and control characters are
    written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def bounded(text: str) -> str:
    """The same, and no longer than `TEXT_CHARS_MAX`; what is not ASCII, which takes up to 12 bytes, is escaped too."""
    half = TEXT_CHARS_MAX // 2
    if len(text) > TEXT_CHARS_MAX:  # before the rest is looked at: whoever makes it long pays for little
        text = f"{text[:half]} ... {text[-half:]}"
    text = printable(text).encode("ascii", "backslashreplace").decode("ascii")
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:half]} ... {text[-half:]}"


def draining_text(job: str) -> str:
    """What a job is told that has not begun when the switch is to stop."""
    return (
        f"job {job!r} cannot begin here: the switch is about to stop and lets only running jobs finish; try again when "
        "it is back, or use another switch"
    )


def deserted_text(job: str, gone: Iterable[int], rejoin_limit_s: float, before: str) -> str:
    """Why a job ended whose ranks did not come back."""
    return (
        f"job {job!r} ended: {ranks_text(gone)} did not come back within {seconds_text(rejoin_limit_s)}; "
        f"before that: {before}"
    )


RAN_ELSEWHERE: Final = "the switch was started again, or has taken the place of another"
"""What came before ranks did not come back to a switch on which their job has not run."""


def ended_text(job: str, ended: Iterable[int]) -> str:
    """Why a job ended of which processes seem to have ended."""
    return (
        f"job {job!r} ended: the connection of {ranks_text(ended)} broke off, as that of a process does that ends, and "
        "nothing more came of it"
    )
