"""The ranks of one job: who has claimed them, who waits in the barrier, who is gone."""

from __future__ import annotations

from collections.abc import Container, Iterator

from .job_texts import given_up_text
from .members import JoinRequest, Member, Ticket
from .policy import HEARTBEATS_PER_LIMIT
from .refusals import Code, ControlError
from .states import WATCHED, MemberState, MemberTrigger


class Roster:
    """The members of the job that is called ``job``, by rank. Times in seconds."""

    def __init__(self, job: str, workers: int, heartbeat_limit_s: float) -> None:
        self.job = job
        self.workers = workers
        self.heartbeat_limit_s = heartbeat_limit_s
        self.heartbeat_interval_s = heartbeat_limit_s / HEARTBEATS_PER_LIMIT
        self.by_rank: dict[int, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        """The members in order of their ranks; members may be added and removed meanwhile."""
        return iter([self.by_rank[rank] for rank in sorted(self.by_rank)])

    # ---------------------------------------------------------------------------------- one of them

    def member(self, rank: int, identity: int) -> Member:
        """The member that is ``rank``. Raises `ControlError` if ``identity`` is not it."""
        member = self.by_rank.get(rank)
        if member is None or member.request.member != identity:
            who = "no process is" if member is None else "another process is"
            raise ControlError(
                Code.FAILED_PRECONDITION,
                f"this process is not rank {rank} of job {self.job!r} ({who}): join first",
            )
        return member

    def heartbeat(self, now: float, rank: int, identity: int, round_trip_s: float | None = None) -> None:
        """A sign of life. Raises `ControlError` if the member is not, or no longer, part of the job."""
        member = self.member(rank, identity)
        if not member.alive:
            limit_s = None if member.state is MemberState.LEFT else self.heartbeat_limit_s
            raise ControlError(Code.FAILED_PRECONDITION, given_up_text(self.job, rank, limit_s))
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
        member = self.by_rank.get(rank)
        there = member is not None and member.request.member == identity and member.state in WATCHED
        return member if there else None

    # ---------------------------------------------------------------------------------- into the epoch, and out of it

    def repeats(self, request: JoinRequest, epoch: int) -> bool:
        """Whether a call is the one that led to the running ``epoch``, made again because its reply was lost."""
        known = request.resume.epoch if request.resume is not None else 0
        member = self.by_rank.get(request.rank)
        return known < epoch and member is not None and member.request == request

    def enter(self, now: float, request: JoinRequest, ticket: Ticket) -> Ticket | None:
        """A process waits in the barrier. The result is the ticket of an earlier call of it that still waited."""
        member = self.by_rank.get(request.rank)
        if member is None or member.request.member != request.member:
            member = self.by_rank[request.rank] = Member(request, heard_at=now)
        member.go(MemberTrigger.JOIN)
        repeated, member.request, member.ticket = member.ticket, request, ticket
        member.heard(now)
        return repeated

    def take_tickets(self) -> list[Ticket]:
        """The tickets of all calls that still wait, which are answered now."""
        found = [member.ticket for member in self if member.ticket is not None]
        for member in self:
            member.ticket = None
        return found

    def admit(self, now: float) -> list[Ticket]:
        """The barrier opens: all are in the epoch. The result are the tickets of those that still wait."""
        for member in self:
            member.go(MemberTrigger.ADMIT)
            member.heard_at, member.was_in_epoch = now, True
        return self.take_tickets()

    def epoch_over(self) -> None:
        """The running epoch is over."""
        for member in self:
            if member.state is MemberState.ACTIVE:
                member.go(MemberTrigger.BREAK)

    def leave(self, member: Member) -> Ticket | None:
        """A member leaves the job; it is forgotten if it was in no epoch. The result is its ticket, if that waited."""
        waited, member.ticket = member.ticket, None
        if member.was_in_epoch:
            member.go(MemberTrigger.LEAVE)
        else:
            del self.by_rank[member.rank]
        return waited

    def out_of_barrier(self) -> None:
        """Members in the barrier that have no ticket wait no longer. They stay members only if they were before."""
        for member in self.waiting():
            if member.ticket is None and member.was_in_epoch:
                member.go(MemberTrigger.GIVE_UP)
            elif member.ticket is None:
                del self.by_rank[member.rank]

    # ---------------------------------------------------------------------------------- who is where

    def waiting(self) -> list[Member]:
        """Members in the barrier."""
        return [member for member in self if member.state is MemberState.WAITING]

    def missing(self) -> tuple[int, ...]:
        """Ranks that are not in the barrier."""
        waiting = {member.rank for member in self.waiting()}
        return tuple(rank for rank in range(self.workers) if rank not in waiting)

    def resumes(self) -> bool:
        """Whether members in the barrier bring what they have from an epoch of the job."""
        return any(member.request.resume is not None for member in self.waiting())

    def silent(self, now: float) -> list[Member]:
        """Members that must heart-beat, and have been silent for too long."""
        return [member for member in self if member.state in WATCHED and member.is_silent(now, self.heartbeat_limit_s)]

    def gone(self) -> tuple[int, ...]:
        """Ranks that no living process has."""
        here = {member.rank for member in self if member.alive}
        return tuple(rank for rank in range(self.workers) if rank not in here)

    def ended(self) -> list[Member]:
        """Members whose processes seem to have ended."""
        return [member for member in self if member.ended_at is not None]

    def ranks_at(self, switches: Container[str]) -> tuple[int, ...]:
        """The ranks that have joined through one of ``switches``."""
        return tuple(member.rank for member in self if member.request.switch in switches)

    @property
    def placed(self) -> dict[str, tuple[int, ...]]:
        """The ranks that have joined, by the switch through which they did."""
        found: dict[str, list[int]] = {}
        for member in self:
            found.setdefault(member.request.switch, []).append(member.rank)
        return {name: tuple(ranks) for name, ranks in found.items()}
