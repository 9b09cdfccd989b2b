"""Jobs that ended, as far as they are remembered: so that a late call can be told why."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

from ..driver import JobCounters
from .admission import JobSpec
from .events import Cause

FINAL: Final = (Cause.ENDED_BY_MEMBER, Cause.EVICTED)
"""Causes by which a job is over whoever comes back: somebody has decided it."""


@dataclass(slots=True)
class Ended:
    """Record of a job that ended."""

    name: str
    number: int
    epoch: int
    created_at: float
    at: float
    cause: Cause
    text: str
    spec: JobSpec
    members: frozenset[int]
    """Identities of the processes that were in epochs of it."""
    totals: JobCounters | None = None
    """Totals at its end; None: it never ran, or the switch has not said it."""


class Past:
    """The jobs that ended last, ``most`` of them."""

    def __init__(self, most: int) -> None:
        self.jobs: deque[Ended] = deque(maxlen=most)
        """Oldest first."""
        self.by_cause: Counter[Cause] = Counter()
        """Number of jobs that have ended since the switch started, by cause."""

    def add(self, ended: Ended) -> None:
        """One more."""
        self.jobs.append(ended)
        self.by_cause[ended.cause] += 1

    def last(self, name: str) -> Ended | None:
        """The latest of that name, if it is remembered."""
        return next((ended for ended in reversed(self.jobs) if ended.name == name), None)

    def over(self, name: str, member: int, epoch: int | None = None) -> Ended | None:
        """The job of that name in which process ``member`` was, if it is over for good, whoever has the name now. Not
        if the process brings a later ``epoch``: then the job has gone on elsewhere. (If it brings none, it has not
        heard that the job had begun.)"""
        for ended in reversed(self.jobs):
            if ended.name == name and member in ended.members and ended.cause in FINAL:
                return ended if epoch is None or epoch <= ended.epoch else None
        return None

    def count_last(self, number: int, totals: JobCounters) -> None:
        """Note what a job had done at its end, as the switch said before it dropped it."""
        ended = next((ended for ended in reversed(self.jobs) if ended.number == number), None)
        if ended is not None:
            ended.totals = totals
