"""Recent events of the jobs of a switch, in one row: for who begins to look late, or looks now and then."""

from __future__ import annotations

from collections import deque
from typing import Final

from ..control import events as ev

EVENTS_KEPT: Final = 512


class EventLog:
    """The last `EVENTS_KEPT` events, numbered from 1. On the controller's event loop."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the last event; 0: there is none."""
        self._events: deque[ev.Emit] = deque(maxlen=EVENTS_KEPT)

    def add(self, emit: ev.Emit) -> None:
        """Keep what has happened."""
        self.last += 1
        self._events.append(emit)

    def after(self, number: int) -> list[tuple[int, ev.Emit]]:
        """The events after that number, as far as they are still there, each with its own."""
        first = self.last - len(self._events) + 1
        return [(n, emit) for n, emit in enumerate(self._events, first) if n > number]
