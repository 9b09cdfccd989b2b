"""Calls for the jobs of a switch, and what the shell has to do about them.

The shell calls a method with the time, then takes what came of it from `drain`, in order: answers, news, and orders
to the switch, whose outcome it tells by `bound`, `bind_failed`, `JobTable.unbound` and `Quarantine.failed`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..binding import Address
from ..driver import Limits, Shard
from ..text import ranks_text
from . import events as ev
from .admission import JobSpec, check_quota, check_room, check_same, no_room
from .credit import Credit
from .events import Cause
from .job_table import JobTable
from .job_texts import draining_text
from .jobs import Job
from .join_checks import check_rank, check_served
from .leases import LeasePool, NoRoom
from .members import JoinRequest, Ticket
from .policy import Policy
from .refusals import Code, ControlError
from .stall_detector import Observation
from .states import JobState
from .topology import Topology


class Registry:
    """The jobs of one switch. ``draw`` gives 32 random bits that nobody can guess, for tokens and seeds."""

    def __init__(
        self,
        shards: Sequence[Shard],
        limits: Limits,
        policy: Policy,
        draw: Callable[[], int] = lambda: secrets.randbits(32),
        admit: Callable[[Sequence[tuple[Address, ...]]], str | None] = lambda workers: None,
    ) -> None:
        """``admit``: as `Driver.admit`. Raises ValueError for a switch on which no job could ever run."""
        if not shards or any(shard.slots < 2 for shard in shards):
            raise ValueError("a switch needs at least one shard, and two slots on each")
        self.shards = tuple(shards)
        self.limits = limits
        self.policy = policy
        self.pool = LeasePool([shard.slots for shard in shards])
        self.jobs = JobTable(self.pool, policy)
        self.draining = False
        """Whether new jobs are refused: the switch is to stop, or an operator has it drain."""
        self._draw = draw
        self._admit = admit
        self.topology = Topology(shards, limits)
        self._credit = Credit(self.topology.receive_bytes)
        self._outputs: list[ev.Output] = []
        self._last_ticket = 0

    def drain(self) -> list[ev.Output]:
        """Outputs since the last call, in order."""
        outputs = self._outputs.copy()
        self._outputs.clear()  # the list itself is shared with the jobs
        return outputs

    # ---------------------------------------------------------------------------------- calls

    def create(self, now: float, spec: JobSpec, principal: str = "", *, implicit: bool = False) -> tuple[Job, bool]:
        """The job that ``spec`` describes, and whether it is new; ``principal`` is who asks for it, and has a quota.
        ``implicit``: by a Join, so it is gone when nobody waits and it has never run. Raises `ControlError`; then
        nothing has changed."""
        jobs = self.jobs
        if (found := jobs.by_name.get(spec.name)) is not None:
            check_same(spec, found.spec)
            return found, False
        check_quota(spec, principal, jobs.specs_of(principal), self.policy)
        if self.draining:
            raise ControlError(Code.UNAVAILABLE, draining_text(spec.name))
        check_room(spec, len(jobs.by_number), min(self.policy.jobs_max, self.limits.jobs))
        spec = spec.completed(self.policy, self._draw() if spec.seed is None else spec.seed)
        try:
            job = Job(
                now, jobs.free_number(), spec, self.pool, self.policy, self.topology, self._draw, self._outputs,
                implicit=implicit,
            )  # fmt: skip
        except NoRoom:
            raise no_room(spec, self.pool, len(jobs.by_number)) from None
        jobs.add(job, principal)
        return job, True

    def limits_for(self, *, tree: bool) -> Limits:
        """Limits of a job on this switch alone, or on the ``tree``."""
        return self.topology.limits if tree else self.limits

    def join(
        self, now: float, job: JobSpec | str, request: JoinRequest, deadline: float, principal: str = ""
    ) -> Ticket:
        """Let ``request`` join the job of that spec (which is created if need be) or name; the ticket waits.

        Raises `ControlError`; then nothing has changed.
        """
        epoch = request.resume.epoch if request.resume is not None else None
        self.jobs.check_over(job if isinstance(job, str) else job.name, request.member, epoch)
        if isinstance(job, str):
            found, is_new = self.jobs.find(now, job), False
            check_rank(found.spec, request)
        else:
            check_rank(job, request)
            found, is_new = self.create(now, job, principal, implicit=True)
        self._last_ticket += 1
        ticket = Ticket(self._last_ticket, found.number, request.rank, now, deadline)
        try:
            with self._one_job(now, found, called=True):
                check_served(found.spec, found.roster, request, self._admit)
                found.join(now, request, ticket)
        except ControlError:
            if is_new and found.ended is None:
                self.jobs.remove(found)
            raise
        return ticket

    def abandon(self, now: float, ticket: Ticket) -> None:
        """The Join of ``ticket`` was cancelled. Nothing happens if it no longer waits."""
        self._with(now, ticket.job, lambda job: job.give_up(now, ticket))

    def heartbeat(self, now: float, name: str, rank: int, member: int, round_trip_s: float | None = None) -> Job:
        """A sign of life; the result is the job. ``round_trip_s`` is what the member measures. Raises
        `ControlError`."""
        job = self.jobs.find(now, name, member)
        with self._one_job(now, job, called=True):
            job.roster.heartbeat(now, rank, member, round_trip_s)
        return job

    def watched(self, now: float, job: Job, rank: int, member: int) -> None:
        """A member watches ``job`` now."""
        with self._one_job(now, job):
            job.roster.watched(now, rank, member)

    def break_off(self, now: float, job: Job, rank: int, member: int) -> None:
        """The connection by which a member watched ``job`` broke off."""
        with self._one_job(now, job):
            job.roster.break_off(now, rank, member)

    def credit(self, job: Job, epoch: ev.Epoch | None = None) -> int:
        """Number of blocks that a rank of ``job`` may have out in ``epoch``, by default the one that runs."""
        epoch = epoch or job.epochs.running
        return self._credit.blocks(epoch, job.spec.window) if epoch is not None else job.spec.window

    def leave(self, now: float, name: str, rank: int, member: int, *, end: bool = False, reason: str = "") -> Job:
        """A rank leaves; the result is the job, which may have ended by it. Raises `ControlError`."""
        job = self.jobs.find(now, name)
        with self._one_job(now, job, called=True):
            job.leave(now, rank, member, end=end, reason=reason)
        return job

    # ---------------------------------------------------------------------------------- time and the switch

    def paused(self, now: float, seconds: float) -> None:
        """Note that this process did not run for so long, until ``now``, as on a machine that was stopped or moved: it
        has heard nobody, and silence while nobody listens is none."""
        for job in self.jobs:
            with self._one_job(now, job):
                job.paused(now, seconds)

    def tick(self, now: float) -> None:
        """Apply every limit that has passed."""
        for job in self.jobs:
            with self._one_job(now, job):
                job.tick(now)
        self._outputs += [ev.Unbind(job.number, job.epochs.switches) for job in self.jobs.quarantine.due(now)]

    def refuse_new(self, now: float) -> None:
        """Refuse new jobs from now on, and end those that wait for their ranks to join for the first time: they have
        lost nothing yet. Jobs that have run, here or before this switch was started, go on, and their ranks may come
        back: an end would be final for them, and what they have is in no other place."""
        self.draining = True
        for job in self.jobs:
            if job.state is JobState.JOINING and not job.has_run:
                with self._one_job(now, job):
                    job.end(now, Cause.NEVER_STARTED, None, draining_text(job.name), Code.UNAVAILABLE)

    def evict(self, now: float, name: str, reason: str) -> None:
        """An operator ends a job. Raises `ControlError`."""
        job = self.jobs.find(now, name)
        because = f": {reason}" if reason else ""
        with self._one_job(now, job, called=True):
            job.end(now, Cause.EVICTED, None, f"an operator of the switch ended job {name!r}{because}")

    def observe(self, now: float, number: int, seen: Observation) -> None:
        """Note what the switch shows of a job. Ignored for one that has ended since."""
        self._with(now, number, lambda job: job.observe(now, seen))

    def shard_restarted(self, now: float, shard: int) -> None:
        """A shard has died and was started again: it knows no job any more, so each needs a new epoch."""
        for job in self.jobs:
            with self._one_job(now, job):
                job.switch_restarted(now, f"shard {shard} of the switch had to be started again")

    def detach(self, now: float, name: str, why: str) -> tuple[str, ...]:
        """A switch has gone: jobs that use it, or one below it, need a new epoch. The names of all that have gone."""
        gone = self.topology.detach(name)
        for job in self.jobs:
            ranks = job.roster.ranks_at(gone)
            whose = f", where {ranks_text(ranks)} joined," if ranks else ""
            text = f"switch {name!r}{whose} has gone: {why}"
            with self._one_job(now, job):
                job.switch_gone(now, gone, text)
        return gone

    def bound(self, now: float, number: int, serial: int) -> None:
        """The switch has done `Bind`."""
        self._with(now, number, lambda job: job.bound(now, serial))

    def bind_failed(self, now: float, number: int, serial: int, text: str) -> None:
        """The switch could not do `Bind`: this job ends, and no other is touched."""
        self._with(now, number, lambda job: job.bind_failed(now, serial, text))

    @contextmanager
    def _one_job(self, now: float, job: Job, *, called: bool = False) -> Iterator[None]:
        """Around what is done with a job; if that has ended it, it is cleared away. A mistake of ours in there ends
        this job and no other; who ``called`` gets it as a `ControlError`."""
        try:
            yield
        except ControlError:
            raise
        except Exception as error:
            self._outputs.append(ev.Bug(job.number, job.name, error))
            text = f"job {job.name!r} ended by a mistake in the switch's control plane; its log has the details"
            job.abandon(now, text)
            if called:
                raise ControlError(Code.INTERNAL, text) from error
        finally:
            self._credit.update(job.number, job.epochs.running)
            self.jobs.retire(now, job)

    def _with(self, now: float, number: int, do: Callable[[Job], None]) -> None:
        """``do`` something to the job of that number, unless it has ended."""
        job = self.jobs.by_number.get(number)
        if job is not None and job.ended is None:
            with self._one_job(now, job):
                do(job)
