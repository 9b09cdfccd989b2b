"""Course of a job over time, by the switch's counters: who contributes, and what waits for whom."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from ..driver import SlotWait
from .events import MemberFailed, Stalled
from .job_texts import failed_text

WAITS_POLLED: Final = 256
"""Waiting slots that are listed at each look, the oldest; the others are only counted."""

REPEATS_S: Final = 3.0
"""A rank that has no result sends its contributions again more often than this."""

LEFT_AFTER_S: Final = 0.5
"""Seconds after which whoever has left sends nothing more, and what waits for it waits for ever."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a job. ``contributions`` is by rank, summed over the shards, and so is ``bytes_in``, of all datagrams
    that were known as a rank's; ``waits`` are (shard, slot)."""

    contributions: tuple[int, ...]
    bytes_in: tuple[int, ...]
    slots_waiting: int = 0
    waits: tuple[tuple[int, SlotWait], ...] = ()


@dataclass(slots=True)
class Progress:
    """Counters of one rank, and when they grew."""

    contributions: int = 0
    last_count: int = 0
    """``contributions`` when they were last above 0. A switch of a tree that goes takes its counters with it."""
    grew_at: float | None = None
    """Time at which ``contributions`` was last seen to grow."""
    bytes_in: int = 0
    heard_at: float | None = None
    """Time at which ``bytes_in`` was last seen to grow."""

    def repeats(self, now: float) -> bool:
        """Whether datagrams came lately, and no contributions with them: they repeat some."""
        if self.heard_at is None or self.grew_at is None:
            return False
        return self.grew_at < self.heard_at >= now - REPEATS_S

    def since(self, now: float) -> float | None:
        """Seconds since the number last grew; None if it never did."""
        return None if self.grew_at is None else now - self.grew_at


class StallDetector:
    """The looks at one job, and whether it is stalled."""

    def __init__(self, workers: int, stall_after_s: float) -> None:
        self.progress = [Progress() for _ in range(workers)]
        self.last: Observation | None = None
        self._stall_after_s = stall_after_s
        self._report_at_s = stall_after_s
        self._left: Set[int] = frozenset()
        """Ranks that were told of as having left what waits for them."""

    def epoch_started(self) -> None:
        """The slots are cleared: nothing waits."""
        self.last = None
        self._report_at_s = self._stall_after_s
        self._left = frozenset()

    def failed(
        self, now: float, job: str, rank: int, silent_s: float, *, broke_off: bool, lost: str | None
    ) -> MemberFailed:
        """News of a member of ``job`` that fell silent, and what the switch saw of it: the slots are those that were
        listed at the last look. ``broke_off``, ``lost``: as for `failed_text`."""
        progress = self.progress[rank]
        contributions, last_s = progress.last_count, progress.since(now)
        slots = sum(rank in wait.missing for _, wait in self.last.waits) if self.last is not None else 0
        text = failed_text(job, rank, silent_s, contributions, last_s, slots, broke_off, lost)
        return MemberFailed(rank, silent_s, contributions, last_s, slots, text)

    def observe(self, now: float, seen: Observation, left: Set[int] = frozenset()) -> Stalled | None:
        """Take a look; the result is news of a stall, if there is any. ``left``: ranks that have left the job.

        A stall is told when it is `stall_after_s` old and then whenever it is twice as old as at the last time, so a
        stall of a day is told some 15 times. One for a rank that has left is told at once.
        """
        for progress, contributions, bytes_in in zip(self.progress, seen.contributions, seen.bytes_in, strict=True):
            if contributions > progress.contributions:
                progress.grew_at = now
            if bytes_in > progress.bytes_in:
                progress.heard_at = now
            progress.contributions, progress.bytes_in = contributions, bytes_in
            progress.last_count = contributions or progress.last_count
        self.last = seen
        longest_s = max((wait.waiting_s for _, wait in seen.waits), default=0.0)
        gone = left & {rank for _, wait in seen.waits if wait.waiting_s >= LEFT_AFTER_S for rank in wait.missing}
        if longest_s >= self._report_at_s or not gone <= self._left:
            self._left |= gone
            self._report_at_s = max(self._stall_after_s, 2 * longest_s)
            ranks = sorted({rank for _, wait in seen.waits for rank in wait.missing})
            return Stalled(seen.slots_waiting, longest_s, tuple(ranks))
        if longest_s < self._stall_after_s < self._report_at_s:
            self._report_at_s = self._stall_after_s
            return Stalled(0, 0.0, ())
        return None
