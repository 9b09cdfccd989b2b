"""What an engine is told of the job that it works for, and how it says that the job cannot go on."""

from __future__ import annotations

from dataclasses import dataclass

from inagg_wire.errors import Reason
from inagg_wire.formats import JobFormat
from inagg_wire.slots import Lease

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ShardLease:
    """One shard of an epoch: where to send, which slots, the block to send from; and the multicast group to which the
    results for all ranks come, if they come to one."""

    address: Address
    lease: Lease
    resume_block: int = 0
    group: Address | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """What all ranks get when they have joined: `inagg.v1.JoinResponse`."""

    number: int
    job: int
    token: int
    format: JobFormat
    workers: int
    rank: int
    lanes: int
    seed: int
    shards: tuple[ShardLease, ...]
    credit: int | None = None
    """How many blocks of a shard the switch has room for now; None: as many as the window."""
    scatters: bool = False
    """Whether the switch can send a result to one rank alone."""


class RanksDisagree(RuntimeError):
    """The ranks do not reduce the same things in the same order."""


class Refused(RuntimeError):
    """The switch refused a contribution; ``reason`` says why."""

    def __init__(self, reason: Reason, block: int) -> None:
        super().__init__(f"the switch refused block {block}: {reason.label}")
        self.reason = reason


class OutOfGenerations(RuntimeError):
    """Every slot has served its last generation: a new epoch must begin before anything else can be sent."""

    def __init__(self) -> None:
        super().__init__("every slot of the job has served its last generation, so a new epoch must begin")
