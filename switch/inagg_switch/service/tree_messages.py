"""Messages between switches of a tree, between `inagg.v1` and the values of the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from inagg_proto import PROTOCOL, why_unlike
from inagg_proto.v1 import control_pb2 as pb
from inagg_wire.errors import Reason
from inagg_wire.formats import CHILDREN_MAX, job_format
from inagg_wire.noise_keys import BlockKey
from inagg_wire.slots import Lease

from ..binding import Address, Binding, Place, Uplink
from ..control.refusals import Code, ControlError
from ..control.topology import AttachedSwitch
from ..driver import BY_RANK, COUNTED, TOTALS, Counters, JobCounters, Limits, Shard, SlotWait
from .job_messages import address_from, address_message, shard_address

SWITCH_METADATA = "inagg-switch"
"""Metadata key of the name of a switch that passes a call on."""
PEER_METADATA = "inagg-peer"
"""Metadata key, with such a call, of gRPC's name of who made it."""
CALLERS_METADATA = "inagg-callers"
"""Metadata key, with such a call, of the names in the certificates on its way so far, quoted as in URLs, with commas
between: first that of who made it, then those of the switches that have passed it on before; empty where no certificate
was shown."""
HERE_METADATA = "inagg-here"
"""Metadata key, with such a call that asks where data goes, of what `own_host` says on the machine of the switch that
passes it on."""

REASONS = {reason.label: reason for reason in Reason}


# --- who a switch is ---


def hello_message(name: str, shards: Sequence[Shard], limits: Limits, host: str) -> pb.AttachedSwitch:
    """The first message of a switch. ``host``: literal, from where those of ``shards`` send to the parent that may send
    from any address."""
    return pb.AttachedSwitch(
        name=name,
        shards=[
            pb.DataPlane(
                address=shard_address(shard, host), slots=shard.slots, groups=shard.groups, anywhere=shard.anywhere
            )
            for shard in shards
        ],
        formats=sorted(limits.formats),
        lanes=limits.lanes,
        datagram_bytes=limits.datagram_bytes,
        receive_bytes=limits.receive_bytes,
        scatters=limits.scatters,
        window=limits.window,
        protocol=PROTOCOL,
    )


def switch_from(message: pb.AttachedSwitch, parent: str, peer: str) -> AttachedSwitch:
    """The switch that has said it. ``peer`` is gRPC's name of who called. Raises `ControlError`."""
    if (unlike := why_unlike(message.protocol, f"switch {message.name!r}", "its parent")) is not None:
        raise ControlError(Code.FAILED_PRECONDITION, unlike)
    shards = tuple(
        Shard(
            address_from(shard.address, peer),
            shard.slots,
            shard.groups if shard.HasField("groups") else None,
            shard.anywhere,
        )
        for shard in message.shards
    )
    slots = min((shard.slots for shard in shards), default=0)
    limits = Limits(
        frozenset(message.formats),
        CHILDREN_MAX,
        message.lanes,
        message.datagram_bytes,
        slots,
        scatters=message.scatters,
        window=message.window if message.HasField("window") else None,
        receive_bytes=message.receive_bytes if message.HasField("receive_bytes") else None,
    )
    return AttachedSwitch(message.name, parent, shards, limits)


# --- bindings ---


def binding_message(binding: Binding) -> pb.Binding:
    """An order's part for one shard."""
    up, place = binding.uplink, binding.place
    return pb.Binding(
        job=binding.job,
        token=binding.token,
        format=binding.format.name,
        lanes=binding.lanes,
        base=binding.lease.base,
        slots=binding.lease.slots,
        seed=binding.seed,
        children=[pb.Address(host=host, port=port) for host, port in binding.children],
        resume_block=binding.resume_block,
        group=address_message(binding.group) if binding.group is not None else None,
        world=binding.world,
        from_switches=place is not None and place.from_switches,
        parts=binding.parts,
        # Without the address, which the child knows.
        uplink=pb.Uplink(base=up.base, parts=up.parts, key_0=up.key.k0, key_1=up.key.k1) if up is not None else None,
        scatters=binding.scatters,
        child_of=place.child_of if place is not None else (),
    )


def binding_from(message: pb.Binding, parent: Address) -> Binding:
    """The binding of a message. ``parent``: the parent's data plane. Raises ValueError or `AdmissionError`."""
    up = message.uplink
    uplink = None
    if message.HasField("uplink"):
        uplink = Uplink(parent, up.base, up.parts, BlockKey(up.key_0, up.key_1))
    return Binding(
        job=message.job,
        token=message.token,
        format=job_format(message.format),
        lanes=message.lanes,
        lease=Lease(message.base, message.slots),
        seed=message.seed,
        children=tuple((child.host, child.port) for child in message.children),
        resume_block=message.resume_block,
        group=(message.group.host, message.group.port) if message.HasField("group") else None,
        scatters=message.scatters,
        place=Place(message.world, message.from_switches, message.parts, uplink, tuple(message.child_of)),
    )


# --- what a switch shows ---


def shard_stats(shard: Shard, counts: Counters) -> pb.ShardStats:
    """Counters of a data plane."""
    return pb.ShardStats(
        address=shard_address(shard),
        slots=shard.slots,
        **{name: getattr(counts, name) for name in COUNTED},
        drops=counts.drops_by_label,
        faults=counts.faults,
    )


def look_message(shard: Shard, counts: Counters, waits: dict[int, tuple[int, list[SlotWait]]]) -> pb.ShardLook:
    """All that one shard shows; ``waits`` by job."""
    jobs = []
    for number, job in counts.jobs.items():
        count, longest = waits.get(number, (0, []))
        jobs.append(
            pb.JobLook(
                job=number,
                **{name: getattr(job, name) for name in (*BY_RANK, *TOTALS)},
                slots_waiting=count,
                slots=[pb.SlotWait(**asdict(wait)) for wait in longest],
            )
        )
    return pb.ShardLook(stats=shard_stats(shard, counts), jobs=jobs)


def look_from(message: pb.ShardLook) -> tuple[Counters, dict[int, tuple[int, list[SlotWait]]]]:
    """The counters and waits of a message."""
    stats, counts = message.stats, Counters()
    for name in COUNTED:
        setattr(counts, name, getattr(stats, name))
    counts.drops = {REASONS[label]: count for label, count in stats.drops.items() if label in REASONS}
    counts.link_drops = {label: count for label, count in stats.drops.items() if label not in REASONS}
    counts.faults = dict(stats.faults)
    waits = {}
    for job in message.jobs:
        lists: dict[str, Any] = {name: list(getattr(job, name)) for name in BY_RANK}
        counts.jobs[job.job] = JobCounters(**lists, **{name: getattr(job, name) for name in TOTALS})
        slots = [SlotWait(w.slot, w.generation, tuple(w.missing), w.waiting_s) for w in job.slots]
        waits[job.job] = (job.slots_waiting, slots)
    return counts, waits
