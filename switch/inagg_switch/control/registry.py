"""All jobs of a switch: names, numbers, room, and what the shell has to do about them.

The shell calls a method with the time, then takes what came of it from `drain`, in order: answers, news, and orders
to the switch, whose outcome it tells by `bound`, `bind_failed`, `unbound` and `unbind_failed`. Slots go back only
when the switch has said that it dropped the job: until then they are in `quarantine`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..binding import Address
from ..driver import Limits, Shard
from ..text import ranks_text, seconds_text
from . import events as ev
from .admission import JobSpec, check_quota, check_room, check_same, no_room
from .credit import Credit
from .events import Cause
from .job_texts import draining_text
from .jobs import Job
from .join_checks import check_rank, check_served
from .leases import LeasePool, NoRoom
from .members import JoinRequest, Ticket
from .past import Ended, Past
from .policy import JOB_NUMBER_MAX, Policy
from .quarantine import Quarantine
from .refusals import Code, ControlError
from .stall_detector import Observation
from .states import JobState
from .topology import AttachedSwitch, Topology


def draw_32_bits() -> int:
    """A random number of 32 bits that nobody can guess."""
    return secrets.randbits(32)


class Registry:
    """The jobs of one switch. ``draw`` gives 32 random bits, for tokens and seeds."""

    def __init__(
        self,
        shards: Sequence[Shard],
        limits: Limits,
        policy: Policy,
        draw: Callable[[], int] = draw_32_bits,
        admit: Callable[[Sequence[tuple[Address, ...]]], str | None] = lambda workers: None,
    ) -> None:
        """``admit``: as `Driver.admit`. Raises ValueError for a switch on which no job could ever run."""
        if not shards or any(shard.slots < 2 for shard in shards):
            raise ValueError("a switch needs at least one shard, and two slots on each")
        self.shards = tuple(shards)
        self.limits = limits
        self.policy = policy
        self.pool = LeasePool([shard.slots for shard in shards])
        self.by_name: dict[str, Job] = {}
        self.quarantine = Quarantine(policy.unbind_retry_s)
        self.past = Past(policy.ended_kept)
        self.principals: dict[int, str] = {}
        """The principal who asked for each job, by its number."""
        self.draining = False
        """Whether new jobs are refused: the switch is to stop, or an operator has it drain."""
        self._by_number: dict[int, Job] = {}
        self._draw = draw
        self._admit = admit
        self.topology = Topology(shards, limits)
        self._credit = Credit(self.topology.receive_bytes)
        self._outputs: list[ev.Output] = []
        self._last_number = 0
        self._last_ticket = 0

    def drain(self) -> list[ev.Output]:
        """Outputs since the last call, in order."""
        outputs = self._outputs.copy()
        self._outputs.clear()  # the list itself is shared with the jobs
        return outputs

    def jobs(self) -> list[Job]:
        """The jobs that have not ended, oldest first."""
        return list(self.by_name.values())

    def find(self, now: float, name: str) -> Job:
        """The job called ``name``. Raises `ControlError` (NOT_FOUND) that says how it ended, if that is known."""
        job = self.by_name.get(name)
        if job is not None:
            return job
        last = self.past.last(name)
        if last is None:
            why = "it has had none of that name since it started; `inagg jobs` lists what it has"
        else:
            why = f"it ended {seconds_text(now - last.at)} ago: {last.text}"
        raise ControlError(Code.NOT_FOUND, f"this switch has no job {name!r}: {why}")

    # ---------------------------------------------------------------------------------- calls

    def create(self, now: float, spec: JobSpec, principal: str = "") -> tuple[Job, bool]:
        """The job that ``spec`` describes, and whether it is new; ``principal`` is who asks for it, and has a quota.
        Raises `ControlError`; then nothing has changed."""
        job = self.by_name.get(spec.name)
        if job is None:
            return self._create(now, spec, principal, implicit=False), True
        check_same(spec, job.full_spec)
        return job, False

    def limits_for(self, *, tree: bool) -> Limits:
        """Limits of a job on this switch alone, or on the ``tree``."""
        return self.topology.limits if tree else self.limits

    def join(
        self, now: float, job: JobSpec | str, request: JoinRequest, deadline: float, principal: str = ""
    ) -> Ticket:
        """Let ``request`` join the job of that spec (which is created if need be) or name; the ticket waits.

        Raises `ControlError`; then nothing has changed.
        """
        if isinstance(job, str):
            found, is_new = self.find(now, job), False
            check_rank(found.spec, request)
        else:
            check_rank(job, request)
            is_new = job.name not in self.by_name
            if is_new:
                found = self._create(now, job, principal, implicit=True)
            else:
                found = self.by_name[job.name]
                check_same(job, found.full_spec)
        self._last_ticket += 1
        ticket = Ticket(self._last_ticket, found.number, request.rank, now, deadline)
        try:
            with self._one_job(now, found, called=True):
                check_served(found.spec, found.roster, request, self._admit)
                found.join(now, request, ticket)
        except ControlError:
            if is_new and found.ended is None:
                del self.by_name[found.name]
                self._free(found)
            raise
        return ticket

    def abandon(self, now: float, ticket: Ticket) -> None:
        """The Join of ``ticket`` was cancelled. Nothing happens if it no longer waits."""
        self._with(now, ticket.job, lambda job: job.give_up(now, ticket))

    def heartbeat(self, now: float, name: str, rank: int, member: int, round_trip_s: float | None = None) -> Job:
        """A sign of life; the result is the job. ``round_trip_s`` is what the member measures. Raises
        `ControlError`."""
        job = self.find(now, name)
        with self._one_job(now, job, called=True):
            job.heartbeat(now, rank, member, round_trip_s)
        return job

    def watched(self, now: float, job: Job, rank: int, member: int) -> None:
        """A member watches ``job`` now."""
        with self._one_job(now, job):
            job.watched(now, rank, member)

    def break_off(self, now: float, job: Job, rank: int, member: int) -> None:
        """The connection by which a member watched ``job`` broke off."""
        with self._one_job(now, job):
            job.break_off(now, rank, member)

    def credit(self, job: Job, epoch: ev.Epoch | None = None) -> int:
        """Number of blocks that a rank of ``job`` may have out in ``epoch``, by default the one that runs."""
        epoch = epoch or job.running
        return self._credit.blocks(epoch, job.spec.window) if epoch is not None else job.spec.window

    def leave(self, now: float, name: str, rank: int, member: int, *, end: bool = False, reason: str = "") -> Job:
        """A rank leaves; the result is the job, which may have ended by it. Raises `ControlError`."""
        job = self.find(now, name)
        with self._one_job(now, job, called=True):
            job.leave(now, rank, member, end=end, reason=reason)
        return job

    # ---------------------------------------------------------------------------------- time and the switch

    def tick(self, now: float) -> None:
        """Apply every limit that has passed."""
        for job in self.jobs():
            with self._one_job(now, job):
                job.tick(now)
        self._outputs += [ev.Unbind(job.number, job.switches) for job in self.quarantine.due(now)]

    def refuse_new(self, now: float) -> None:
        """Refuse new jobs from now on, and end those that wait for their ranks to join for the first time: they have
        lost nothing yet. Jobs that have run, here or before this switch was started, go on, and their ranks may come
        back: an end would be final for them, and what they have is in no other place."""
        self.draining = True
        for job in self.jobs():
            has_run = job.ran or any(member.request.resume is not None for member in job.roster)
            if job.state is JobState.JOINING and not has_run:
                with self._one_job(now, job):
                    job.end(now, Cause.NEVER_STARTED, None, draining_text(job.name), Code.UNAVAILABLE)

    def accept_new(self) -> None:
        """Take new jobs again."""
        self.draining = False

    def evict(self, now: float, name: str, reason: str) -> None:
        """An operator ends a job. Raises `ControlError`."""
        job = self.find(now, name)
        because = f": {reason}" if reason else ""
        with self._one_job(now, job, called=True):
            job.end(now, Cause.EVICTED, None, f"an operator of the switch ended job {name!r}{because}")

    def observe(self, now: float, number: int, seen: Observation) -> None:
        """Note what the switch shows of a job. Ignored for one that has ended since."""
        self._with(now, number, lambda job: job.observe(now, seen))

    def shard_restarted(self, now: float, shard: int) -> None:
        """A shard has died and was started again: it knows no job any more, so each needs a new epoch."""
        for job in self.jobs():
            with self._one_job(now, job):
                job.switch_restarted(now, f"shard {shard} of the switch had to be started again")

    def attach(self, switch: AttachedSwitch) -> None:
        """A switch below this one has come. Raises `ControlError`."""
        self.topology.attach(switch)

    def detach(self, now: float, name: str, why: str) -> tuple[str, ...]:
        """A switch has gone: jobs that use it, or one below it, need a new epoch. The names of all that have gone."""
        gone = self.topology.detach(name)
        for job in self.jobs():
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

    def unbound(self, number: int) -> None:
        """The switch has done `Unbind`: the slots are free."""
        job = self.quarantine.release(number)
        if job is not None:
            self._free(job)

    def unbind_failed(self, now: float, number: int) -> None:
        """The switch could not do `Unbind`: its slots stay in quarantine, and the order will be repeated."""
        self.quarantine.failed(now, number)

    # ---------------------------------------------------------------------------------- small change

    def _create(self, now: float, spec: JobSpec, principal: str, *, implicit: bool) -> Job:
        mine = [self._by_number[number].spec for number, owner in self.principals.items() if owner == principal]
        check_quota(spec, principal, mine, self.policy)
        if self.draining:
            raise ControlError(Code.UNAVAILABLE, draining_text(spec.name))
        check_room(spec, len(self._by_number), min(self.policy.jobs_max, self.limits.jobs))
        number = self._free_number()
        seed = spec.seed if spec.seed is not None else self._draw()
        outputs = self._outputs
        try:
            job = Job(
                now, number, spec, seed, self.pool, self.policy, self._draw, outputs, implicit=implicit,
                topology=self.topology,
            )  # fmt: skip
        except NoRoom:
            raise no_room(spec, self.pool, len(self._by_number)) from None
        self._last_number = number
        self.principals[number] = principal
        self.by_name[spec.name] = self._by_number[number] = job
        return job

    def _free_number(self) -> int:
        """The next free number after the last one, so that a number comes back as late as possible."""
        number = self._last_number
        while True:  # ends, as jobs_max < JOB_NUMBER_MAX
            number = number % JOB_NUMBER_MAX + 1
            if number not in self._by_number:
                return number

    def _reap(self, now: float, job: Job) -> None:
        """If the job has ended, free its name, and its slots as soon as the switch allows."""
        if job.ended is None or self.by_name.get(job.name) is not job:
            return
        epoch = job.epoch if job.ran else 0
        cause, text = job.ended.cause, job.ended.text
        self.past.add(Ended(job.name, job.number, epoch, job.created_at, now, cause, text, job.full_spec))
        del self.by_name[job.name]
        if job.ever_bound:
            self.quarantine.add(job)
        else:
            self._free(job)

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
            self._credit.update(job.number, job.running)
            self._reap(now, job)

    def _with(self, now: float, number: int, do: Callable[[Job], None]) -> None:
        """``do`` something to the job of that number, unless it has ended."""
        job = self._by_number.get(number)
        if job is not None and job.ended is None:
            with self._one_job(now, job):
                do(job)

    def _free(self, job: Job) -> None:
        self.pool.release(job.leased)
        del self._by_number[job.number], self.principals[job.number]
