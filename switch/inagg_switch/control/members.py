"""One rank of a job: who it is, what it brings, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..binding import Address
from .states import ALIVE, MEMBER_TRANSITIONS, MemberState, MemberTrigger

BROKEN_OFF_LIMIT_S = 2.0
"""Seconds that a member whose connection broke off may take to come back. Hosts watch again after `RETRY_S`, a tenth of
it; what lets them wait longer is a processor that they do not get."""
HEARD_LATELY_S = 5.0
"""Seconds after a member was last heard within which its connection may break off because its process ends. One that
breaks because the network is gone does so when gRPC's keepalive has had no answer, 15 s later
(`service.server.OPTIONS`)."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a rank on one shard: the slots that it had there, and the smallest block whose result it lacks."""

    slots: int
    next_block: int


@dataclass(frozen=True, slots=True)
class Resume:
    """State that a rank brings from the epoch that it was in: ``shards`` has one position per shard; ``has_results``:
    it has the result of some block, which may be a later one than those that it lacks."""

    epoch: int
    seed: int
    shards: tuple[Position, ...]
    reason: str = field(default="", compare=False)
    has_results: bool = False


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A process that wants to be a rank. ``addresses`` has one per shard; ``resume`` None: it starts at block 0.
    ``multicast``: it can take results from a group. ``switch``: the switch of the tree that it talks to."""

    rank: int
    member: int
    addresses: tuple[Address, ...]
    resume: Resume | None
    multicast: bool = False
    switch: str = ""

    def next_block(self, shard: int) -> int:
        """The smallest block of ``shard`` whose result it lacks."""
        return self.resume.shards[shard].next_block if self.resume is not None else 0

    @property
    def starts_anew(self) -> bool:
        """Whether it has no result yet, on any shard."""
        if self.resume is None:
            return True
        return not self.resume.has_results and all(position.next_block == 0 for position in self.resume.shards)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A Join that waits until ``deadline``."""

    number: int
    job: int
    rank: int
    since: float
    deadline: float


@dataclass(slots=True)
class Member:
    """The process that is a rank, since it claimed it."""

    request: JoinRequest
    heard_at: float
    state: MemberState = MemberState.WAITING
    ticket: Ticket | None = None
    broke_off_at: float | None = None
    """Time at which the connection by which it watched the job broke off, unless it has been heard since."""
    ended_at: float | None = None
    """Time at which it was given up as one whose process has ended, unless it has been heard since."""
    lost_switch: bool = False
    """Whether the switch of the tree by which it joined has gone, and it has not been heard since. That may be back
    already."""
    round_trip_s: float | None = None
    """Round trip that the member measured (RFC 6298), as its last heartbeat said; None: it has none."""
    was_in_epoch: bool = False
    """Whether it has ever been in an epoch of this job on this switch."""

    @property
    def rank(self) -> int:
        """The rank."""
        return self.request.rank

    @property
    def alive(self) -> bool:
        """Whether its process is taken to be there."""
        return self.state in ALIVE

    def go(self, trigger: MemberTrigger) -> None:
        """Move on. Raises KeyError if the table has no such transition."""
        self.state = MEMBER_TRANSITIONS[self.state, trigger]

    def silent_s(self, now: float) -> float:
        """Seconds since its last sign of life; 0 while its Join is open."""
        return 0.0 if self.ticket is not None else now - self.heard_at

    def heard(self, now: float) -> None:
        """Note that the member's process is there."""
        self.heard_at, self.broke_off_at, self.ended_at, self.lost_switch = now, None, None, False

    def paused(self, now: float, seconds: float) -> None:
        """Nobody listened for so long until ``now``."""
        self.heard_at = min(now, self.heard_at + seconds)
        if self.broke_off_at is not None:
            self.broke_off_at = min(now, self.broke_off_at + seconds)
        if self.ended_at is not None:
            self.ended_at = min(now, self.ended_at + seconds)

    def is_silent(self, now: float, limit_s: float) -> bool:
        """Whether it has been silent for longer than ``limit_s``; or than `BROKEN_OFF_LIMIT_S`, if its connection broke
        off: that of a process that was killed does at once, and one that lives comes back at once, or still sends."""
        if self.broke_off_at is not None and now - max(self.broke_off_at, self.heard_at) > BROKEN_OFF_LIMIT_S:
            return True
        return self.silent_s(now) > limit_s

    @property
    def seems_ended(self) -> bool:
        """Whether its connection broke off while it was heard, as that of a process does that ends, and not for the
        end of its switch."""
        if self.broke_off_at is None or self.lost_switch:
            return False
        return self.broke_off_at - self.heard_at < HEARD_LATELY_S
