"""Events of a job as sentences, and whether that is good news."""

from __future__ import annotations

from enum import Enum
from typing import Final

from ...control import events as ev
from ...control.events import Cause
from ...text import count_text, ranks_text, seconds_text


class Mood(Enum):
    """Mood of an event."""

    GOOD = "good"
    PLAIN = "plain"
    BAD = "bad"


AS_PLANNED: Final = frozenset((Cause.ALL_LEFT, Cause.ENDED_BY_MEMBER))
"""Causes for which a job ends that is done."""


def sentence(event: ev.Event) -> tuple[str, Mood]:
    """The sentence for an event, and its mood."""
    match event:
        case ev.EpochStarted(epoch):
            return f"epoch {epoch} began: all ranks are here", Mood.GOOD
        case ev.EpochEnded(epoch, cause, _, text):
            planned = cause in (*AS_PLANNED, Cause.NEW_EPOCH)
            return f"epoch {epoch} ended: {text}", Mood.PLAIN if planned else Mood.BAD
        case ev.MemberJoined(rank, missing):
            return f"rank {rank} joined{f', and waits for {ranks_text(missing)}' if missing else ''}", Mood.PLAIN
        case ev.MemberFailed():
            return event.text, Mood.BAD
        case ev.MemberLeft(rank, reason):
            return f"rank {rank} left{f': {reason}' if reason else ''}", Mood.PLAIN
        case ev.Stalled(0):
            return "it goes on: nothing waits any more", Mood.GOOD
        case ev.Stalled(slots, longest_s, ranks):
            waits = f"{count_text(slots, 'slot')} {'waits' if slots == 1 else 'wait'} for {ranks_text(ranks)}"
            return f"{waits}, the oldest for {seconds_text(longest_s)}", Mood.BAD
        case ev.JobEnded(cause, _, text):
            return text, Mood.PLAIN if cause in AS_PLANNED else Mood.BAD
