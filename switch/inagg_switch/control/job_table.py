"""The jobs that a switch has: by name and by number, whose they are, those that it has still to drop, and what is
remembered of others. A number and slots go back only when the switch has said that it dropped the job."""

from __future__ import annotations

from collections.abc import Iterator

from ..text import seconds_text
from .admission import JobSpec
from .jobs import Job
from .leases import LeasePool
from .past import Ended, Past
from .policy import JOB_NUMBER_MAX, Policy
from .quarantine import Quarantine
from .refusals import Code, ControlError


class JobTable:
    """Iterates over the jobs that have not ended, oldest first; jobs may be added and end meanwhile."""

    def __init__(self, pool: LeasePool, policy: Policy) -> None:
        """``pool``: from which the jobs have their slots."""
        self.by_name: dict[str, Job] = {}
        """Jobs that have not ended, oldest first."""
        self.by_number: dict[int, Job] = {}
        """Jobs whose slots are not free yet, whether they have ended or not."""
        self.quarantine = Quarantine(policy.unbind_retry_s)
        self.past = Past(policy.ended_kept)
        self._pool = pool
        self._principals: dict[int, str] = {}
        self._last_number = 0

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self.by_name.values()))

    def __len__(self) -> int:
        """Number of jobs that have not ended."""
        return len(self.by_name)

    def find(self, now: float, name: str, member: int = 0) -> Job:
        """The job called ``name``, for process ``member``, if one asks that is in it. Raises `ControlError` (NOT_FOUND)
        that says how it ended, if that is known, or what `check_over` does."""
        job = self.by_name.get(name)
        if job is not None:
            return job
        self.check_over(name, member)
        last = self.past.last(name)
        if last is None:
            why = "it has had none of that name since it started; `inagg jobs` lists what it has"
        else:
            why = f"it ended {seconds_text(now - last.at)} ago: {last.text}"
        raise ControlError(Code.NOT_FOUND, f"this switch has no job {name!r}: {why}")

    def check_over(self, name: str, member: int, epoch: int | None = None) -> None:
        """Raises `ControlError` (ABORTED) that says why the job of process ``member`` is over for good, if it is; see
        `Past.over`."""
        if (ended := self.past.over(name, member, epoch)) is not None:
            raise ControlError(Code.ABORTED, ended.text)

    def specs_of(self, principal: str) -> list[JobSpec]:
        """The specs of all jobs that ``principal`` asked for and whose slots are not free yet."""
        return [self.by_number[number].spec for number, owner in self._principals.items() if owner == principal]

    def free_number(self) -> int:
        """The next free number after the last one, so that a number comes back as late as possible."""
        number = self._last_number
        while True:  # ends, as `Policy.jobs_max` is below JOB_NUMBER_MAX
            number = number % JOB_NUMBER_MAX + 1
            if number not in self.by_number:
                return number

    def add(self, job: Job, principal: str) -> None:
        """A new job, which has the `free_number`; ``principal`` asked for it."""
        self._last_number = job.number
        self._principals[job.number] = principal
        self.by_name[job.name] = self.by_number[job.number] = job

    def remove(self, job: Job) -> None:
        """Forget a job of which the switch was never told."""
        del self.by_name[job.name]
        self._free(job)

    def retire(self, now: float, job: Job) -> None:
        """Free the name of a job that has ended, and its slots as soon as the switch allows. Nothing happens if that
        was done, or the job goes on."""
        if job.ended is None or self.by_name.get(job.name) is not job:
            return
        cause, text = job.ended.cause, job.ended.text
        members = frozenset(member.request.member for member in job.roster if member.was_in_epoch)
        ended = Ended(job.name, job.number, job.epochs.number, job.created_at, now, cause, text, job.spec, members)
        self.past.add(ended)
        if job.epochs.switches:
            del self.by_name[job.name]
            self.quarantine.add(job)
        else:
            self.remove(job)

    def unbound(self, number: int) -> None:
        """The switch has done `Unbind`: the slots are free."""
        job = self.quarantine.release(number)
        if job is not None:
            self._free(job)

    def _free(self, job: Job) -> None:
        self._pool.release(job.leased)
        del self.by_number[job.number], self._principals[job.number]
