"""One job: its barrier, its epochs, its members. No input, no output, no clock.

A rank joins by a *ticket*, which waits. When every rank has one, the job orders the switch to bind a new epoch, and
when that is done all tickets are admitted. Whatever breaks an epoch leads back to the barrier; ranks that are gone
have `rejoin_limit_s` to come back, less if their processes seem to have ended, and longer if it was the switch that
went away; then the job ends. `states` has the transitions.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from inagg_wire.slots import Lease

from ..text import ranks_text, seconds_text
from . import events as ev
from .admission import JobSpec
from .epochs import prepare
from .events import Cause
from .job_texts import RAN_ELSEWHERE, deserted_text, ended_text, failed_text, given_up_text, too_late_text
from .join_checks import check_addresses, check_claimant, check_history, check_together
from .leases import LeasePool, NoRoom
from .members import ENDED_LIMIT_S, RECONNECT_S, JoinRequest, Member, Roster, Ticket
from .policy import HEARTBEATS_PER_LIMIT, Policy
from .refusals import Code, ControlError
from .stall_detector import Observation, StallDetector
from .states import JOB_TRANSITIONS, WATCHED, JobState, JobTrigger, MemberState, MemberTrigger
from .topology import Topology


class Job:
    """One job. ``implicit``: made by a Join, so it is gone when nobody waits and it has never run."""

    def __init__(
        self,
        now: float,
        number: int,
        spec: JobSpec,
        seed: int,
        pool: LeasePool,
        policy: Policy,
        draw_token: Callable[[], int],
        outputs: list[ev.Output],
        *,
        implicit: bool,
        topology: Topology,
    ) -> None:
        """Leases the job's slots. Raises `NoRoom`."""
        self.number = number
        self.spec = spec
        self.seed = seed
        self.leased = pool.lease(spec.slots_leased)
        """The job's slots, by shard, the same on all switches."""
        self.implicit = implicit
        self.heartbeat_limit_s = spec.heartbeat_limit_s or policy.heartbeat_limit_s
        self.heartbeat_interval_s = self.heartbeat_limit_s / HEARTBEATS_PER_LIMIT
        self.rejoin_limit_s = policy.rejoin_limit_s if spec.rejoin_limit_s is None else spec.rejoin_limit_s
        self.unjoined_limit_s = policy.join_timeout_s
        self.state = JobState.JOINING
        self.roster = Roster(spec.workers)
        self.watching = StallDetector(spec.workers, policy.stall_after_s)
        self.created_at = now
        self.ends_at = None if implicit else now + self.unjoined_limit_s
        """Time at which the job is ended unless the ranks that are missing come; None: nothing threatens it."""
        self.incomplete_since: float | None = None
        """Time since when ranks are gone from a job that has run, here or elsewhere, and the others join again."""
        self.epoch = 0
        """Number of the running epoch, the one that is prepared, or the last one."""
        self.ran = False
        """Whether an epoch has ever run."""
        self.epoch_started_at: float | None = None
        self.last_epoch_end = ""
        self.ended: ev.JobEnded | None = None
        self.serial = 0
        """Counts the orders to bind, so that an answer to an earlier one is known."""
        self.running: ev.Epoch | None = None
        """The epoch that runs, or is prepared."""
        self._token = 0
        self._pool = pool
        self._draw_token = draw_token
        self._outputs = outputs
        self._topology = topology
        self.switches: frozenset[str] = frozenset()
        """The switches that were ever bound for the job."""

    @property
    def name(self) -> str:
        """The name that the user gave."""
        return self.spec.name

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The slots that workers use, by shard, on whichever switch they are."""
        return tuple(Lease(lease.base, self.spec.slots) for lease in self.leased)

    @property
    def ran_elsewhere(self) -> bool:
        """Whether ranks wait that were in an epoch of the job, and none has run here: this switch was started again, or
        has taken the place of another."""
        return not self.ran and any(member.request.resume is not None for member in self.roster.waiting())

    @property
    def absence_limit_s(self) -> float:
        """Seconds that ranks may be missing from a job that has run."""
        return self.rejoin_limit_s if self.ran else RECONNECT_S + self.rejoin_limit_s

    @property
    def ever_bound(self) -> bool:
        """Whether the switch was ever ordered to bind the job, so that it must be told to drop it."""
        return self.serial > 0

    @property
    def full_spec(self) -> JobSpec:
        """The spec, with the switch's choices where the user left them to it."""
        return replace(
            self.spec,
            seed=self.seed,
            heartbeat_limit_s=self.heartbeat_limit_s,
            rejoin_limit_s=self.rejoin_limit_s,
        )

    def member(self, rank: int, identity: int) -> Member:
        """The member that is ``rank``. Raises `ControlError` if ``identity`` is not it."""
        member = self.roster.by_rank.get(rank)
        if member is None or member.request.member != identity:
            who = "no process is" if member is None else "another process is"
            raise ControlError(
                Code.FAILED_PRECONDITION,
                f"this process is not rank {rank} of job {self.name!r} ({who}): join first",
            )
        return member

    # ---------------------------------------------------------------------------------- the barrier

    def has_switch_of(self, member: Member) -> bool:
        """Whether the switch is there by which ``member`` has joined."""
        return self._topology.has(member.request.switch)

    def join(self, now: float, request: JoinRequest, ticket: Ticket) -> None:
        """Put ``request`` into the barrier. Its ticket will be admitted or refused, perhaps at once.

        Raises `ControlError`, and then nothing has changed.
        """
        rank = request.rank
        check_claimant(self.spec, self.state, self.roster, request, now, self.heartbeat_limit_s)
        if self.running is not None and self._repeats_the_last(request):
            self.roster.by_rank[rank].heard(now)
            self._outputs.append(ev.Admitted(ticket.number, self.running))
            return
        others = [member.request for member in self.roster.waiting() if member.rank != rank]
        # Once the switch was told of slots they must not change: another job could get them while it still uses them.
        adopt = not self.ever_bound and all(other.resume is None for other in others)
        check_history(self.spec, self.epoch if self.ran else 0, self.seed, self.leases, request, adopt=adopt)
        check_together(self.spec, request, others)
        check_addresses(self.spec, request, others)
        if self.spec.parts is not None:
            self._topology.check(self.spec, rank, request.switch, {other.rank: other.switch for other in others})
        if adopt:
            self._adopt(request)

        # From here on nothing is refused.
        if self.state is JobState.RUNNING:
            reason = f": {request.resume.reason}" if request.resume is not None and request.resume.reason else ""
            self._break(now, Cause.NEW_EPOCH, rank, f"rank {rank} asked for a new epoch{reason}")
        elif self.state is JobState.BINDING:
            self._unready()
        member = self.roster.by_rank.get(rank)
        if member is None or member.request.member != request.member:
            member = self.roster.by_rank[rank] = Member(request, heard_at=now)
        elif member.ticket is not None:
            self._refuse(member, Code.ABORTED, f"rank {rank} of job {self.name!r} called Join again")
        member.go(MemberTrigger.JOIN)
        member.request, member.ticket = request, ticket
        member.heard(now)
        missing = self.roster.missing()
        self._emit(now, ev.MemberJoined(rank, missing))
        self._update_deadline(now)
        if not missing:
            self._bind()

    def _repeats_the_last(self, request: JoinRequest) -> bool:
        """Whether a call is the one that led to the running epoch, made again because its reply was lost."""
        known = request.resume.epoch if request.resume is not None else 0
        member = self.roster.by_rank.get(request.rank)
        return (
            self.state is JobState.RUNNING and known < self.epoch and member is not None and member.request == request
        )

    def _adopt(self, request: JoinRequest) -> None:
        """Take over the seed and the slots that a rank had before this switch (re)started."""
        if request.resume is None:
            return
        bases = [position.lease.base for position in request.resume.shards]
        try:
            self.leased = self._pool.move(self.leased, bases)
        except NoRoom as error:
            raise ControlError(
                Code.FAILED_PRECONDITION,
                f"rank {request.rank} cannot go on with job {self.name!r}: {error}, and with other slots "
                "results would be rounded otherwise; end the job that has them (`inagg jobs`), or start all ranks anew",
            ) from None
        self.seed = request.resume.seed

    def _bind(self) -> None:
        self._go(JobTrigger.FULL)
        # Not twice the same, so that a datagram of the last epoch cannot count in this one.
        last = self._token
        while self._token in (0, last):
            self._token = self._draw_token()
        claims = [member.request for member in self.roster]
        self.running = prepare(
            self.number, self.spec, self.epoch, self._token, self.seed, self.leases, claims, self._topology
        )
        self.epoch = self.running.epoch
        self.serial += 1
        self.switches |= self.running.by_switch.keys()
        self._outputs.append(ev.Bind(self.number, self.serial, self.running.by_switch))

    def bound(self, now: float, serial: int) -> None:
        """The switch has bound the epoch: open the barrier. An answer to an earlier order is ignored."""
        if not self._waits_for(serial):
            return
        assert self.running is not None
        self._go(JobTrigger.BOUND)
        self.epoch_started_at, self.ran = now, True
        self.watching.epoch_started()
        for member in self.roster:
            member.go(MemberTrigger.ADMIT)
            member.heard_at, member.was_in_epoch = now, True
            if member.ticket is not None:
                self._outputs.append(ev.Admitted(member.ticket.number, self.running))
                member.ticket = None
        self._emit(now, ev.EpochStarted(self.epoch))

    def bind_failed(self, now: float, serial: int, text: str) -> None:
        """The switch could not bind the epoch: the job ends. An answer to an earlier order is ignored."""
        if self._waits_for(serial):
            sentence = f"job {self.name!r} ended, as the switch could not be set up for it: {text}"
            self.end(now, Cause.SWITCH_ERROR, None, sentence, Code.INTERNAL)

    def _waits_for(self, serial: int) -> bool:
        """Whether that order to bind is the last one, and still to be answered."""
        return self.state is JobState.BINDING and serial == self.serial

    def give_up(self, now: float, ticket: Ticket, error: ControlError | None = None) -> None:
        """A Join was cancelled, or (``error``) is refused. Nothing happens if it no longer waits."""
        member = self.roster.by_rank.get(ticket.rank)
        if member is None or member.ticket != ticket:
            return
        if error is not None:
            self._outputs.append(ev.Refused(ticket.number, error))
        member.ticket = None
        member.heard(now)
        # While the switch is being told it is too late: the member has joined, and may repeat its call.
        if self.state is JobState.JOINING:
            self.roster.out_of_barrier(member)
            self._update_deadline(now)

    # ---------------------------------------------------------------------------------- membership

    def heartbeat(self, now: float, rank: int, identity: int, round_trip_s: float | None = None) -> None:
        """A sign of life. Raises `ControlError` if the member is not, or no longer, part of the job."""
        member = self.member(rank, identity)
        if not member.alive:
            left = member.state is MemberState.LEFT
            raise ControlError(
                Code.FAILED_PRECONDITION, given_up_text(self.name, rank, None if left else self.heartbeat_limit_s)
            )
        member.heard(now)
        member.round_trip_s = round_trip_s

    def watched(self, now: float, rank: int, identity: int) -> None:
        """A member watches the job now, which is a sign of life. No error if it is none any more."""
        if (member := self._watched_member(rank, identity)) is not None:
            member.heard(now)

    def break_off(self, now: float, rank: int, identity: int) -> None:
        """The connection of a member, by which it watched, broke off. No error if it is none any more."""
        if (member := self._watched_member(rank, identity)) is not None:
            member.broke_off_at = now

    def _watched_member(self, rank: int, identity: int) -> Member | None:
        member = self.roster.by_rank.get(rank)
        there = member is not None and member.request.member == identity and member.state in WATCHED
        return member if there else None

    def leave(self, now: float, rank: int, identity: int, *, end: bool, reason: str) -> None:
        """A member leaves, or (``end``) ends the job for all. Leaving twice changes nothing."""
        member = self.member(rank, identity)
        if end:
            because = f": {reason}" if reason else ""
            self.end(now, Cause.ENDED_BY_MEMBER, rank, f"rank {rank} ended job {self.name!r}{because}")
            return
        if member.state is MemberState.LEFT:
            return
        if member.ticket is not None:
            self._refuse(member, Code.ABORTED, f"rank {rank} has left job {self.name!r}")
        if self.state is JobState.BINDING:
            self._unready()
        if member.was_in_epoch:
            member.go(MemberTrigger.LEAVE)
        else:
            self.roster.by_rank.pop(rank, None)
        self._emit(now, ev.MemberLeft(rank, reason))
        if self.ran and self.roster.by_rank and all(m.state is MemberState.LEFT for m in self.roster):
            self.end(now, Cause.ALL_LEFT, None, f"all ranks have left job {self.name!r}")
        else:
            self._update_deadline(now)

    def observe(self, now: float, seen: Observation) -> None:
        """Take note of what the switch shows of the job. A datagram is a sign of life as good as a heartbeat: a worker
        that sends is not given up because the control connection is slow, nor one that waits for another, and so
        repeats what it sent, while a thread of it keeps the interpreter's lock."""
        stall = self.watching.observe(now, seen, {m.rank for m in self.roster if m.state is MemberState.LEFT})
        for rank, progress in enumerate(self.watching.progress):
            member = self.roster.by_rank.get(rank)
            if progress.heard_at == now and member is not None and member.state is MemberState.ACTIVE:
                member.heard_at = now
        if stall is not None and self.state is JobState.RUNNING:
            self._emit(now, stall)

    # ---------------------------------------------------------------------------------- limits and ends

    def tick(self, now: float) -> None:
        """Apply every limit that has passed."""
        if self.state is JobState.JOINING:
            missing = self.roster.missing()
            for member in self.roster.waiting():
                if (ticket := member.ticket) is not None and now >= ticket.deadline:
                    text = too_late_text(self.name, ticket.rank, now - ticket.since, missing, self.spec.workers)
                    self.give_up(now, ticket, ControlError(Code.DEADLINE_EXCEEDED, text))
        silent = [m for m in self.roster if m.state in WATCHED and m.is_silent(now, self.heartbeat_limit_s)]
        for member in silent:
            self._fail(now, member)
        if silent:
            if self.state is JobState.RUNNING:
                text = f"{ranks_text(m.rank for m in silent)} of job {self.name!r} fell silent"
                self._break(now, Cause.MEMBER_FAILED, silent[0].rank, text)
            self._update_deadline(now)
        if self.ends_at is not None and now >= self.ends_at:
            self._end_deserted(now)

    def _fail(self, now: float, member: Member) -> None:
        rank, silent_s = member.rank, member.silent_s(now)
        member.go(MemberTrigger.SILENCE)
        progress, slots = self.watching.progress[rank], self.watching.slots_waiting_for(rank)
        last_s = progress.since(now)
        broke_off = member.broke_off_at is not None
        if member.seems_ended and self.has_switch_of(member):  # it was not the switch that ended
            member.ended_at = now
        text = failed_text(self.name, rank, silent_s, progress.contributions, last_s, slots, broke_off)
        self._emit(now, ev.MemberFailed(rank, silent_s, progress.contributions, last_s, slots, text))

    def _break(self, now: float, cause: Cause, rank: int | None, text: str) -> None:
        """The running epoch is over."""
        self._go(JobTrigger.BREAK)
        self.epoch_started_at, self.running, self.last_epoch_end = None, None, text
        for member in self.roster:
            if member.state is MemberState.ACTIVE:
                member.go(MemberTrigger.BREAK)
        self._emit(now, ev.EpochEnded(self.epoch, cause, rank, text))

    def switch_restarted(self, now: float, text: str, gone: Container[str] = ()) -> None:
        """A part of the switch has forgotten the job: its ranks need a new epoch. ``gone``: switches of the tree that
        are not there any more, so whoever waits to join through them does so in vain."""
        if self.state is JobState.RUNNING:
            self._break(now, Cause.SWITCH_ERROR, None, text)
            self._update_deadline(now)
        elif self.state is JobState.BINDING:
            self._unready()
            self._send_elsewhere(now, gone, text)
            self._update_deadline(now)
            if self.ended is None and not self.roster.missing():
                self._bind()

    def _unready(self) -> None:
        """Go back to the barrier with those who still wait: who joins has changed while the switch was being told."""
        self._go(JobTrigger.BREAK)
        self.running = None
        for member in self.roster.waiting():
            if member.ticket is None:
                self.roster.out_of_barrier(member)

    def switch_gone(self, now: float, gone: Container[str], text: str) -> None:
        """Switches of the tree have gone."""
        if self.uses(gone):
            self.switch_restarted(now, text, gone)
        elif self.state is JobState.JOINING:
            self._send_elsewhere(now, gone, text)

    def _send_elsewhere(self, now: float, gone: Container[str], text: str) -> None:
        for member in self.roster.waiting():
            if member.request.switch in gone and member.ticket is not None:
                self.give_up(now, member.ticket, ControlError(Code.UNAVAILABLE, f"{text}; join through another"))

    def uses(self, switches: Container[str]) -> bool:
        """Whether the running epoch, or the one that is prepared, needs one of ``switches``."""
        return self.running is not None and any(name in switches for name in self.running.by_switch)

    def _end_deserted(self, now: float) -> None:
        if self.incomplete_since is not None:
            ended = [member.rank for member in self.roster.ended()]
            if ended and now < self.incomplete_since + self.absence_limit_s:
                text = ended_text(self.name, ended)
            else:
                before = self.last_epoch_end or ("ranks left" if self.ran else RAN_ELSEWHERE)
                text = deserted_text(self.name, self.roster.gone(), self.absence_limit_s, before)
            self.end(now, Cause.NOT_REJOINED, None, text)
        else:
            text = f"job {self.name!r} ended: no rank joined within {seconds_text(self.unjoined_limit_s)}"
            self.end(now, Cause.NEVER_STARTED, None, text)

    def end(self, now: float, cause: Cause, rank: int | None, text: str, code: Code = Code.ABORTED) -> None:
        """End the job: refuse who waits (with ``code``), and have the switch drop it."""
        self._go(JobTrigger.END)
        self._over(now, ev.JobEnded(cause, rank, text), code)

    def abandon(self, now: float, text: str) -> None:
        """End the job whatever state it is in: a mistake of ours met it."""
        if self.ended is None:
            self.state = JobState.ENDING
            self._over(now, ev.JobEnded(Cause.SWITCH_ERROR, None, text), Code.INTERNAL)

    def _over(self, now: float, ended: ev.JobEnded, code: Code) -> None:
        self.ended = ended
        self.ends_at = self.epoch_started_at = self.running = None
        for member in self.roster:
            if member.ticket is not None:
                self._refuse(member, code, ended.text)
        self._emit(now, ended)
        if self.ever_bound:
            self._outputs.append(ev.Unbind(self.number, self.switches))

    def _update_deadline(self, now: float) -> None:
        """Set `ends_at` by who is there; end the job if nobody is to come."""
        if self.state is not JobState.JOINING or not self.roster.gone():
            self.ends_at = self.incomplete_since = None
        elif self.ran or self.ran_elsewhere:
            self.incomplete_since = now if self.incomplete_since is None else self.incomplete_since
            ended = (m.ended_at + ENDED_LIMIT_S for m in self.roster.ended() if m.ended_at is not None)
            self.ends_at = min((self.incomplete_since + self.absence_limit_s, *ended))
        elif self.roster.by_rank:
            self.ends_at = self.incomplete_since = None
        elif self.implicit:
            self.end(now, Cause.NEVER_STARTED, None, f"no rank of job {self.name!r} waits any more")
        else:
            self.ends_at, self.incomplete_since = now + self.unjoined_limit_s, None

    # ---------------------------------------------------------------------------------- small change

    def _go(self, trigger: JobTrigger) -> None:
        self.state = JOB_TRANSITIONS[self.state, trigger]

    def _emit(self, now: float, event: ev.Event) -> None:
        self._outputs.append(ev.Emit(self.number, self.name, now, event))

    def _refuse(self, member: Member, code: Code, text: str) -> None:
        assert member.ticket is not None
        self._outputs.append(ev.Refused(member.ticket.number, ControlError(code, text)))
        member.ticket = None
