"""One job: its barrier, and what breaks its epochs and ends it. No input, no output, no clock.

A rank joins by a *ticket*, which waits. When every rank has one, the job orders the switch to bind a new epoch, and
when that is done all tickets are admitted. Whatever breaks an epoch leads back to the barrier; ranks that are gone
have a grace period to come back: `rejoin_limit_s`, less if their processes seem to have ended, and longer if it was
the switch that went away; then the job ends. `states` has the transitions.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from inagg_wire.slots import Lease

from ..text import ranks_text
from . import events as ev
from .admission import JobSpec
from .epochs import Epochs
from .events import Cause
from .grace_period import GracePeriod
from .job_texts import too_late_text
from .join_checks import check_addresses, check_claimant, check_history, check_together
from .leases import LeasePool
from .members import JoinRequest, Member, Ticket
from .policy import Policy
from .refusals import Code, ControlError
from .roster import Roster
from .stall_detector import Observation, StallDetector
from .states import JOB_TRANSITIONS, JobState, JobTrigger, MemberState, MemberTrigger
from .topology import Topology


class Job:
    """One job. ``implicit``: made by a Join, so it is gone when nobody waits and it has never run."""

    def __init__(
        self, now: float, number: int, spec: JobSpec, pool: LeasePool, policy: Policy, topology: Topology,
        draw_token: Callable[[], int], outputs: list[ev.Output], *, implicit: bool,
    ) -> None:  # fmt: skip
        """``spec``: `JobSpec.completed`. Leases the job's slots. Raises `NoRoom`."""
        assert spec.heartbeat_limit_s is not None and spec.rejoin_limit_s is not None
        self.number, self.name = number, spec.name
        self.spec = spec
        self.leased = pool.lease(spec.slots_leased)
        """The job's slots, by shard, the same on all switches."""
        self.state = JobState.JOINING
        self.roster = Roster(spec.name, spec.workers, spec.heartbeat_limit_s)
        self.epochs = Epochs(number, topology, draw_token)
        self.grace = GracePeriod(self.roster, self.epochs, spec.rejoin_limit_s, policy.join_timeout_s)
        self.watching = StallDetector(spec.workers, policy.stall_after_s)
        self.created_at = now
        self.ended: ev.JobEnded | None = None
        self._implicit = implicit
        self._topology = topology
        self._outputs = outputs
        if not implicit:
            self.grace.update(now, waits=True)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The slots that workers use, by shard, on whichever switch they are."""
        return tuple(Lease(lease.base, self.spec.slots) for lease in self.leased)

    @property
    def has_run(self) -> bool:
        """Whether an epoch of the job has run, here or, as ranks that wait say, on a switch that is gone: this one was
        started again, or has taken the place of another."""
        return self.epochs.ran or self.roster.resumes()

    def has_switch_of(self, member: Member) -> bool:
        """Whether the switch is there by which ``member`` has joined."""
        return self._topology.has(member.request.switch)

    # ---------------------------------------------------------------------------------- the barrier

    def join(self, now: float, request: JoinRequest, ticket: Ticket) -> None:
        """Put ``request`` into the barrier. Its ticket will be admitted or refused, perhaps at once.

        Raises `ControlError`, and then nothing has changed.
        """
        rank = request.rank
        check_claimant(self.spec, self.state, self.roster, request, now)
        running = self.epochs.running if self.state is JobState.RUNNING else None
        if running is not None and self.roster.repeats(request, running.epoch):
            self.roster.by_rank[rank].heard(now)
            self._outputs.append(ev.Admitted(ticket.number, running))
            return
        others = [member.request for member in self.roster.waiting() if member.rank != rank]
        # Once the switch was told of a seed, ranks bring that.
        adopt = not self.epochs.switches and all(other.resume is None for other in others)
        check_history(self.spec, self.epochs.number, len(self.leased), request, adopt=adopt)
        check_together(self.spec, request, others)
        check_addresses(self.spec, request, others)
        if self.spec.parts is not None:
            self._topology.check(self.spec, rank, request.switch, {other.rank: other.switch for other in others})

        # From here on nothing is refused.
        if adopt and request.resume is not None:
            self.spec = replace(self.spec, seed=request.resume.seed)
        if self.state is JobState.RUNNING:
            reason = f": {request.resume.reason}" if request.resume is not None and request.resume.reason else ""
            self._break(now, Cause.NEW_EPOCH, rank, f"rank {rank} asked for a new epoch{reason}")
        elif self.state is JobState.BINDING:
            self._unready()
        if (repeated := self.roster.enter(now, request, ticket)) is not None:
            self._refuse(repeated, Code.ABORTED, f"rank {rank} of job {self.name!r} called Join again")
        missing = self.roster.missing()
        self._emit(now, ev.MemberJoined(rank, missing))
        self._update_grace(now)
        if not missing:
            self._bind()

    def _bind(self) -> None:
        self._go(JobTrigger.FULL)
        self._outputs.append(self.epochs.prepare(self.spec, self.leases, [member.request for member in self.roster]))

    def bound(self, now: float, serial: int) -> None:
        """The switch has bound the epoch: open the barrier. An answer to an earlier order is ignored."""
        if not self.epochs.awaits(serial):
            return
        self._go(JobTrigger.BOUND)
        epoch = self.epochs.begin(now)
        self.watching.epoch_started()
        for ticket in self.roster.admit(now):
            self._outputs.append(ev.Admitted(ticket.number, epoch))
        self._emit(now, ev.EpochStarted(epoch.epoch))

    def bind_failed(self, now: float, serial: int, text: str) -> None:
        """The switch could not bind the epoch: the job ends. An answer to an earlier order is ignored."""
        if self.epochs.awaits(serial):
            sentence = f"job {self.name!r} ended, as the switch could not be set up for it: {text}"
            self.end(now, Cause.SWITCH_ERROR, None, sentence, Code.INTERNAL)

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
            self.roster.out_of_barrier()
            self._update_grace(now)

    def leave(self, now: float, rank: int, identity: int, *, end: bool, reason: str) -> None:
        """A member leaves, or (``end``) ends the job for all. Leaving twice changes nothing."""
        member = self.roster.member(rank, identity)
        if end:
            because = f": {reason}" if reason else ""
            self.end(now, Cause.ENDED_BY_MEMBER, rank, f"rank {rank} ended job {self.name!r}{because}")
            return
        if member.state is MemberState.LEFT:
            return
        if (waited := self.roster.leave(member)) is not None:
            self._refuse(waited, Code.ABORTED, f"rank {rank} has left job {self.name!r}")
        if self.state is JobState.BINDING:
            self._unready()
        self._emit(now, ev.MemberLeft(rank, reason))
        if self.epochs.ran and self.roster.by_rank and all(m.state is MemberState.LEFT for m in self.roster):
            self.end(now, Cause.ALL_LEFT, None, f"all ranks have left job {self.name!r}")
        else:
            self._update_grace(now)

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

    def paused(self, now: float, seconds: float) -> None:
        """Take the time for which the switch did not run out of what is silence, if it is much of what a member may be
        silent: less is for heartbeats to bridge, and a switch that is slow all the time must find who is gone."""
        if seconds > self.roster.heartbeat_limit_s / 2:
            for member in self.roster:
                member.paused(now, seconds)
            self.grace.paused(seconds)

    def tick(self, now: float) -> None:
        """Apply every limit that has passed."""
        if self.state is JobState.JOINING:
            missing = self.roster.missing()
            for member in self.roster.waiting():
                if (ticket := member.ticket) is not None and now >= ticket.deadline:
                    text = too_late_text(self.name, ticket.rank, now - ticket.since, missing, self.spec.workers)
                    self.give_up(now, ticket, ControlError(Code.DEADLINE_EXCEEDED, text))
        silent = self.roster.silent(now)
        for member in silent:
            self._fail(now, member)
        if silent:
            if self.state is JobState.RUNNING:
                text = f"{ranks_text(m.rank for m in silent)} of job {self.name!r} fell silent"
                self._break(now, Cause.MEMBER_FAILED, silent[0].rank, text)
            self._update_grace(now)
        if (over := self.grace.over(now)) is not None:
            cause, text = over
            self.end(now, cause, None, text)

    def _fail(self, now: float, member: Member) -> None:
        member.go(MemberTrigger.SILENCE)
        broke_off, silent_s = member.broke_off_at is not None, member.silent_s(now)
        lost = member.request.switch if member.lost_switch else None
        self._emit(now, self.watching.failed(now, self.name, member.rank, silent_s, broke_off=broke_off, lost=lost))
        if member.seems_ended:
            member.ended_at = now

    def _break(self, now: float, cause: Cause, rank: int | None, text: str) -> None:
        """The running epoch is over."""
        self._go(JobTrigger.BREAK)
        self.epochs.stop()
        self.epochs.last_end = text
        self.roster.epoch_over()
        self._emit(now, ev.EpochEnded(self.epochs.number, cause, rank, text))

    def switch_restarted(self, now: float, text: str, gone: Container[str] = ()) -> None:
        """A part of the switch has forgotten the job: its ranks need a new epoch. ``gone``: switches of the tree that
        are not there any more, so whoever waits to join through them does so in vain."""
        if self.state is JobState.RUNNING:
            self._break(now, Cause.SWITCH_ERROR, None, text)
            self._update_grace(now)
        elif self.state is JobState.BINDING:
            self._unready()
            self._send_elsewhere(now, gone, text)
            self._update_grace(now)
            if self.ended is None and not self.roster.missing():
                self._bind()

    def _unready(self) -> None:
        """Go back to the barrier with those who still wait: who joins has changed while the switch was being told."""
        self._go(JobTrigger.BREAK)
        self.epochs.stop()
        self.roster.out_of_barrier()

    def switch_gone(self, now: float, gone: Container[str], text: str) -> None:
        """Switches of the tree have gone."""
        if self.epochs.uses(gone):
            self.switch_restarted(now, text, gone)
        elif self.state is JobState.JOINING:
            self._send_elsewhere(now, gone, text)
        for member in self.roster:  # not before: who is sent elsewhere counts as heard
            if member.request.switch in gone:
                member.lost_switch = True

    def _send_elsewhere(self, now: float, gone: Container[str], text: str) -> None:
        for member in self.roster.waiting():
            if member.request.switch in gone and member.ticket is not None:
                self.give_up(now, member.ticket, ControlError(Code.UNAVAILABLE, f"{text}; join through another"))

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
        self.epochs.stop()
        self.grace.update(now, waits=False)
        for ticket in self.roster.take_tickets():
            self._refuse(ticket, code, ended.text)
        self._emit(now, ended)
        if self.epochs.switches:
            self._outputs.append(ev.Unbind(self.number, self.epochs.switches))

    def _update_grace(self, now: float) -> None:
        """Follow who is there; end the job if nobody is to come."""
        waits = self.state is JobState.JOINING
        if waits and self._implicit and not self.epochs.ran and not self.roster.by_rank:
            self.end(now, Cause.NEVER_STARTED, None, f"no rank of job {self.name!r} waits any more")
        else:
            self.grace.update(now, waits=waits)

    def _go(self, trigger: JobTrigger) -> None:
        self.state = JOB_TRANSITIONS[self.state, trigger]

    def _emit(self, now: float, event: ev.Event) -> None:
        self._outputs.append(ev.Emit(self.number, self.name, now, event))

    def _refuse(self, ticket: Ticket, code: Code, text: str) -> None:
        self._outputs.append(ev.Refused(ticket.number, ControlError(code, text)))
