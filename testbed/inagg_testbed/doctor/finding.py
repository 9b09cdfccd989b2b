"""Findings of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How it is. The last two are what there is to do something about."""

    OK = "ok"
    NOTE = "note"
    """Something that not everybody needs is not there."""
    SLOW = "slow"
    """It works, and could be faster."""
    WRONG = "wrong"
    """Something does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``found``: what is so; ``do``: what to do, a command where there is one, empty if there is nothing to do."""

    check: str
    verdict: Verdict
    found: str
    do: str = ""

    @property
    def bad(self) -> bool:
        """Whether there is something to do about it."""
        return self.verdict in (Verdict.SLOW, Verdict.WRONG)
