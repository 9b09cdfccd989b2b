"""Recent events of the jobs of a switch, in one row: for who begins to look late, or looks now and then."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from ..control import events as ev

EVENTS_KEPT: Final = 512


@dataclass(frozen=True, slots=True)
class Entry:
    """One event. Entries are numbered from 1."""

    number: int
    job: str
    at: float
    event: ev.Event


class EventLog:
    """The last `EVENTS_KEPT` events. On the controller's event loop."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the last entry; 0: there is none."""
        self._entries: deque[Entry] = deque(maxlen=EVENTS_KEPT)

    def add(self, emit: ev.Emit) -> None:
        """Keep what has happened."""
        self.last += 1
        self._entries.append(Entry(self.last, emit.name, emit.at, emit.event))

    def after(self, number: int) -> list[Entry]:
        """The entries after that number, as far as they are still there."""
        return [entry for entry in self._entries if entry.number > number]
