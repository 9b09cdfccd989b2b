"""How long a job waits for ranks that are not there: for the first to join, or for those to come back that are gone
from a job that has run. Then it ends."""

from __future__ import annotations

from typing import Final

from ..text import seconds_text
from .epochs import Epochs
from .events import Cause
from .job_texts import RAN_ELSEWHERE, deserted_text, ended_text
from .roster import Roster

ENDED_LIMIT_S: Final = 2.0
"""Seconds that the others wait for a member that has been given up and whose process seems to have ended: one that has
cannot come back."""
RECONNECT_S: Final = 30.0
"""Seconds that ranks try to reach a switch that went away, unless they were told otherwise (`reconnect_s`; the switch
is not): so much later than the first of them the last may come."""


class GracePeriod:
    """The limit of one job. Times in seconds."""

    def __init__(self, roster: Roster, epochs: Epochs, rejoin_limit_s: float, join_timeout_s: float) -> None:
        """``rejoin_limit_s``: for the ranks of a job that has run; ``join_timeout_s``: for the first rank."""
        self.ends_at: float | None = None
        """Time at which the job is ended unless the ranks that are missing come; None: nothing threatens it."""
        self._since: float | None = None
        """Time since when ranks are gone from a job that has run, here or elsewhere, and the others join again."""
        self._roster, self._epochs = roster, epochs
        self._rejoin_limit_s, self._join_timeout_s = rejoin_limit_s, join_timeout_s

    @property
    def _absence_limit_s(self) -> float:
        """Seconds that ranks may be missing from a job that has run."""
        return self._rejoin_limit_s if self._epochs.ran else RECONNECT_S + self._rejoin_limit_s

    def update(self, now: float, *, waits: bool) -> None:
        """Set `ends_at` by who is there. ``waits``: whether the job waits for ranks to join."""
        waits = waits and bool(self._roster.gone())
        if waits and (self._epochs.ran or self._roster.resumes()):
            self._since = now if self._since is None else self._since
            ended = (m.ended_at + ENDED_LIMIT_S for m in self._roster.ended() if m.ended_at is not None)
            self.ends_at = min((self._since + self._absence_limit_s, *ended))
        else:
            self._since = None
            self.ends_at = now + self._join_timeout_s if waits and not self._roster.by_rank else None

    def paused(self, seconds: float) -> None:
        """The switch did not run for so long, and nobody could join."""
        if self._since is not None:
            self._since += seconds
        if self.ends_at is not None:
            self.ends_at += seconds

    def over(self, now: float) -> tuple[Cause, str] | None:
        """Why the job is to end now, as a cause and a sentence; None: it is not."""
        if self.ends_at is None or now < self.ends_at:
            return None
        name = self._roster.job
        if self._since is None:
            text = f"job {name!r} ended: no rank joined within {seconds_text(self._join_timeout_s)}"
            return Cause.NEVER_STARTED, text
        ended = [member.rank for member in self._roster.ended()]
        if ended and now < self._since + self._absence_limit_s:
            return Cause.NOT_REJOINED, ended_text(name, ended)
        before = self._epochs.last_end or RAN_ELSEWHERE
        return Cause.NOT_REJOINED, deserted_text(name, self._roster.gone(), self._absence_limit_s, before)
