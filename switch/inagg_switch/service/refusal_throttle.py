"""Waits for callers who are refused again and again: else a caller that does nothing right costs more than those that
do.

A refusal is cheap to ask for and takes the control process about as long as a call that does something, on processors
that the data planes need, too. A caller who waits for answers, as gRPC's clients do, asks less often if they come
later. Who does not wait for them is bounded by what he can send; nothing here helps against that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

BURST: Final = 200
"""Refusals of one caller that come at once: all ranks of some jobs that come too early, or too late."""
RATE_PER_S: Final = 50.0
"""Refusals of one caller that come at once in each second after `BURST`."""
DELAY_MAX_S: Final = 0.5
"""Seconds that the others take: less than any client's patience."""
WAITING_MAX: Final = 1024
"""Refusals that wait, of all callers: each holds a call. Others come at once."""
CALLERS_MAX: Final = 1024
"""Callers of whom something is known; the one that was first refused is forgotten first."""


class RefusalThrottle:
    """Counts refusals by caller, as the generic cell rate algorithm does (ITU-T I.371)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s: dict[str, float] = {}
        """Time, by caller, at which the refusals so far would have come at an even rate."""
        self._waiting = 0

    def delay_s(self, caller: str) -> float:
        """Count a refusal of ``caller``; how long it should take."""
        now = self._clock()
        due = max(self._due_s.get(caller, now - BURST / RATE_PER_S), now - BURST / RATE_PER_S) + 1 / RATE_PER_S
        due = min(due, now + DELAY_MAX_S)
        if caller not in self._due_s and len(self._due_s) >= CALLERS_MAX:
            del self._due_s[next(iter(self._due_s))]
        self._due_s[caller] = due
        return max(0.0, due - now)

    async def wait(self, caller: str) -> float:
        """Wait before ``caller`` is refused. Returns how long that took, in seconds."""
        delay_s = self.delay_s(caller)
        if delay_s == 0.0 or self._waiting >= WAITING_MAX:
            return 0.0
        self._waiting += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._waiting -= 1
        return delay_s
