"""The description of a job that an engine works for."""

from __future__ import annotations

from dataclasses import dataclass

from inagg_link.addresses import Address
from inagg_wire.formats import JobFormat
from inagg_wire.slots import Lease


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
    """The answer that all ranks get when they have joined: `inagg.v1.JoinResponse`."""

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
