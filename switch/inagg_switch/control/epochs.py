"""An epoch, made from what all ranks bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inagg_wire.noise import seed_for_lease
from inagg_wire.slots import Lease

from ..binding import Binding
from .admission import JobSpec
from .events import ROOT, Epoch
from .members import JoinRequest
from .topology import Topology


def prepare(
    job: int,
    spec: JobSpec,
    last_epoch: int,
    token: int,
    seed: int,
    leases: Sequence[Lease],
    claims: Sequence[JoinRequest],
    topology: Topology,
) -> Epoch:
    """The epoch after ``last_epoch`` of job number ``job``; ``claims`` has all ranks in order.

    Its number is above any that a rank brings: a switch that restarted has forgotten those. All ranks send from the
    smallest block that any of them still needs. Bindings have the ``seed`` that gives the same noise wherever the lease
    lies. A switch may multicast results to its ranks if all of them can listen.
    """
    brought = [request.resume.epoch for request in claims if request.resume is not None]
    flat = tuple(
        Binding(
            job=job,
            token=token,
            format=spec.format,
            lanes=spec.lanes,
            lease=lease,
            seed=seed,
            children=tuple(request.addresses[shard] for request in claims),
            resume_block=min(request.next_block(shard) for request in claims),
            scatters=topology.limits.scatters,
        )
        for shard, lease in enumerate(leases)
    )
    deaf = {request.switch for request in claims if not request.multicast}
    if spec.parts is not None:
        leaf_of = [request.switch for request in claims]
        bindings = topology.bindings(flat, leaf_of, spec.parts, set(leaf_of) - deaf)
    else:
        groups = topology.groups(ROOT, job) if not deaf else (None,) * len(flat)
        bindings = {
            ROOT: tuple(
                replace(binding, seed=seed_for_lease(seed, binding.lease.base), group=group)
                for binding, group in zip(flat, groups, strict=True)
            )
        }
    return Epoch(1 + max(last_epoch, *brought, 0), bindings)
