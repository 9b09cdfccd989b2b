"""What an epoch is, from what all ranks bring."""

from __future__ import annotations

from collections.abc import Sequence

from inagg_wire.noise import seed_for_lease
from inagg_wire.slots import Lease

from ..binding import Address, Binding
from .admission import JobSpec
from .events import Epoch
from .members import JoinRequest


def prepare(
    job: int,
    spec: JobSpec,
    last_epoch: int,
    token: int,
    seed: int,
    leases: Sequence[Lease],
    claims: Sequence[JoinRequest],
    groups: Sequence[Address | None],
) -> Epoch:
    """The epoch after ``last_epoch`` of job number ``job``; ``claims`` has all ranks in order.

    Its number is above any that a rank brings: a switch that restarted has forgotten those. All ranks send from the
    smallest block that any of them still needs. Bindings have the ``seed`` that gives the same noise wherever the lease
    lies. ``groups``: where each shard may multicast the results to; it does if all ranks can listen.
    """
    listening = all(request.multicast for request in claims)
    brought = [request.resume.epoch for request in claims if request.resume is not None]
    bindings = tuple(
        Binding(
            job=job,
            token=token,
            format=spec.format,
            lanes=spec.lanes,
            lease=lease,
            seed=seed_for_lease(seed, lease.base),
            children=tuple(request.addresses[shard] for request in claims),
            resume_block=min(request.next_block(shard) for request in claims),
            group=groups[shard] if listening else None,
        )
        for shard, lease in enumerate(leases)
    )
    return Epoch(1 + max(last_epoch, *brought, 0), bindings)
