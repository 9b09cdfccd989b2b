"""The jobs that one process group has on the switch: one for each number format that it sums in."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import reduce
from operator import add

from inagg_host.allreduce import AllReduceError
from inagg_host.stats import Counters

from .formats import in_force
from .inner_work import Names
from .job import GroupJob


class GroupJobs:
    """One process group's jobs. That in the group's own format is there from the beginning."""

    def __init__(self, make: Callable[[str | None], GroupJob]) -> None:
        """``make`` a job in a format, None: that of the group; all ranks must do that at once. Raises as it does."""
        self.own = make(None)
        self._make = make
        self._making = threading.Lock()
        """Held while a job is made, for which all ranks must come."""
        self._lock = threading.Lock()
        self._jobs = {self.own.settings.config.format: self.own}
        self._closed = False
        self._timeout: timedelta | None = None
        """Limit that was set; None: that of the beginning."""
        self.names = Names(self)
        """Words of the switch on the ranks, for errors of the inner group."""

    @property
    def inner(self) -> Counter[str]:
        """Operations that went to the inner group, by reason."""
        return self.own.inner

    def current(self, scatters: bool = False) -> GroupJob:
        """The job for what is summed now: in the format of the block that the thread is in (`formats.exact`), or else
        the group's, for reduce-scatters (``scatters``) or for the rest. The same on all ranks."""
        own = self.own.settings
        name = in_force() or (own.reduce_scatter_format if scatters else own.config.format)
        with self._making:
            if name not in self._jobs:
                made = self._make(name)
                with self._lock:
                    self._jobs[name], closed, timeout = made, self._closed, self._timeout
                if timeout is not None:
                    made.set_timeout(timeout)
                if closed:
                    made.close()
            return self._jobs[name]

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long sums may take, as `GroupJob.set_timeout`, also in jobs that are made later."""
        with self._lock:
            self._timeout = timeout
        for job in self._all():
            job.set_timeout(timeout)

    @property
    def failure(self) -> AllReduceError | None:
        """Why nothing more can be summed in one of them, if that is so."""
        return next((job.failure for job in self._all() if job.failure is not None), None)

    @property
    def listening(self) -> bool:
        """Whether the switch would tell if a rank is gone, and `failure` then says so."""
        return any(job.listening for job in self._all())

    @property
    def counters(self) -> Counters:
        """Counters of what this rank has done in all of them, brought up to date."""
        return reduce(add, [job.counters for job in self._all()])

    def close(self) -> None:
        """Leave them. As `GroupJob.close`."""
        for job in self._all(closed=True):
            job.close()

    def abort(self) -> None:
        """End them for all ranks. As `GroupJob.abort`."""
        for job in self._all(closed=True):
            job.abort()

    def _all(self, closed: bool = False) -> list[GroupJob]:
        """The jobs; ``closed``: what is made after this is closed at once."""
        with self._lock:
            self._closed |= closed
            return list(self._jobs.values())
