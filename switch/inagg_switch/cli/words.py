"""Words for numbers and states, for people."""

from __future__ import annotations

from collections.abc import Iterable

import humanize

from inagg_proto.v1 import control_pb2 as pb

from ..service.plain import enum_label
from ..text import ranks_text, seconds_text


def state_text(state: int) -> str:
    """A job's state."""
    return enum_label(pb.JobState.DESCRIPTOR, state)


def member_text(state: int) -> str:
    """A member's state; ``missing`` if no process has joined as that rank."""
    return enum_label(pb.MemberState.DESCRIPTOR, state) if state else "missing"


def cause_text(cause: int) -> str:
    """The cause of the end of a job, in a word or three."""
    return enum_label(pb.Cause.DESCRIPTOR, cause).replace("_", " ")


def members_text(members: Iterable[pb.Member]) -> str:
    """``ranks 0-2 active, rank 3 failed``; in a tree of switches ``ranks 0-2 active at rack3``."""
    by_state: dict[str, list[int]] = {}
    for member in members:
        where = f" at {member.switch}" if member.switch else ""
        by_state.setdefault(member_text(member.state) + where, []).append(member.rank)
    return ", ".join(f"{ranks_text(ranks)} {state}" for state, ranks in by_state.items())


def age_text(seconds: float) -> str:
    """``7.3 s``, ``2m 08s``, ``3h 20m``, ``2d 03h``."""
    if seconds < 60:
        return seconds_text(seconds)
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    return f"{days}d {h:02}h" if days else f"{hours}h {m:02}m" if hours else f"{m}m {s:02}s"


def rate_text(value: float) -> str:
    """Three digits and a prefix of the SI: ``0``, ``7.25``, ``842``, ``1.45k``, ``23.1M``."""
    return humanize.metric(value).replace(" ", "") if value >= 1 else f"{value:.2g}"


def number_text(value: float) -> str:
    """A number for programs: three digits, but all of a whole part: ``0``, ``0.25``, ``7.25``, ``842``,
    ``13300412``."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def bytes_text(count: int) -> str:
    """``100 Bytes``, ``208 KiB``, ``64 MiB``."""
    return humanize.naturalsize(count, binary=True, format="%.3g")
