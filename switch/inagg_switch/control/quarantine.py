"""Jobs that ended and that the switch has still to drop. Until it has said that it did, their slots are nobody else's,
and the order is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .jobs import Job

BACKOFF_MAX = 64
"""The wait between attempts grows to this many times the first."""


@dataclass(slots=True)
class Retry:
    """Time of the next try, and the wait after that."""

    at: float
    wait_s: float


class Quarantine:
    """Jobs by number; ``retry_s`` is the first wait."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self.jobs: dict[int, Job] = {}
        self.retries: dict[int, Retry] = {}
        """Next tries, by number, for jobs that the switch has failed to drop."""

    def add(self, job: Job) -> None:
        """The switch was ordered to drop it."""
        self.jobs[job.number] = job

    def release(self, number: int) -> Job | None:
        """The switch has dropped it; None if it has before."""
        self.retries.pop(number, None)
        return self.jobs.pop(number, None)

    def failed(self, now: float, number: int) -> None:
        """The switch could not drop it."""
        if number in self.jobs:
            wait_s = self.retries[number].wait_s if number in self.retries else self._retry_s
            self.retries[number] = Retry(now + wait_s, min(2 * wait_s, BACKOFF_MAX * self._retry_s))

    def due(self, now: float) -> Iterator[Job]:
        """Jobs for which the order to drop them is to be repeated now."""
        for number, retry in self.retries.items():
            if now >= retry.at:
                retry.at = now + retry.wait_s  # in case that nobody answers
                yield self.jobs[number]

    def slots(self) -> int:
        """Slots on each shard of those that the switch has failed to drop."""
        return sum(self.jobs[number].spec.slots_leased for number in self.retries)
