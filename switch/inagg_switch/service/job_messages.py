"""Conversion between the messages of `inagg.v1` and the values of the core. What a message says wrong is refused
here."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import asdict
from typing import Any

from inagg_proto import why_unlike
from inagg_proto.v1 import control_pb2 as pb

from ..binding import Address
from ..control import events as ev
from ..control.admission import JobSpec, check
from ..control.jobs import Job
from ..control.members import JoinRequest, Position, Resume
from ..control.past import Ended
from ..control.policy import BLOCK_MAX, REASON_CHARS_MAX
from ..control.refusals import Code, ControlError
from ..control.states import MemberState
from ..driver import BY_RANK, JobCounters, Limits, Shard
from ..text import printable
from .peers import peer_host

# ------------------------------------------------------------------------------------------ from messages


def spec_from(message: pb.JobSpec, limits: Limits, *, tree: bool) -> JobSpec:
    """The spec, admitted for a switch with ``limits``, or a ``tree`` of such. Raises `ControlError`."""
    return check(
        limits,
        name=message.name,
        workers=message.workers,
        format_name=message.format,
        lanes=message.lanes if message.HasField("lanes") else None,
        window=message.window if message.HasField("window") else None,
        seed=message.seed if message.HasField("seed") else None,
        heartbeat_limit_s=message.heartbeat_limit_s if message.HasField("heartbeat_limit_s") else None,
        rejoin_limit_s=message.rejoin_limit_s if message.HasField("rejoin_limit_s") else None,
        tree=tree,
    )


def join_request_from(message: pb.JoinRequest, shards: int, peer: str, switch: str) -> JoinRequest:
    """The claim of who wants to join. ``peer`` is gRPC's name of the caller, ``switch`` that of the switch that he
    called. Raises `ControlError`."""
    if (unlike := why_unlike(message.protocol, f"rank {message.rank}", "this switch")) is not None:
        raise ControlError(Code.FAILED_PRECONDITION, unlike)
    if message.member == 0:
        raise ControlError(
            Code.INVALID_ARGUMENT, "member is 0: choose a random number once per process and send it with all calls"
        )
    given = tuple(address_from(address, peer) for address in message.addresses)
    if len(given) == 1:
        given *= shards
    if len(given) != shards:
        raise ControlError(
            Code.INVALID_ARGUMENT,
            f"{len(given)} addresses: give one for all shards or one for each; this switch has {shards}",
        )
    resume = _resume_from(message.resume) if message.HasField("resume") else None
    return JoinRequest(message.rank, message.member, given, resume, message.multicast, switch)


def reason_from(text: str) -> str:
    """A reason that a member gives, `printable`. Raises `ControlError` if it is too long."""
    if len(text) > REASON_CHARS_MAX:
        raise ControlError(Code.INVALID_ARGUMENT, f"a reason of {len(text)} characters: use at most {REASON_CHARS_MAX}")
    return printable(text)


def round_trip_from(message: pb.HeartbeatRequest) -> float | None:
    """The round-trip time that a member has measured, None if it has none. Raises `ControlError`."""
    if not message.HasField("round_trip_s"):
        return None
    if not 0 <= message.round_trip_s < math.inf:
        raise ControlError(Code.INVALID_ARGUMENT, f"{message.round_trip_s} s is no round-trip time: give one, or none")
    return message.round_trip_s


def _resume_from(message: pb.Resume) -> Resume:
    shards = tuple(Position(p.slots, p.next_block) for p in message.shards)
    if any(position.next_block > BLOCK_MAX for position in shards):
        raise ControlError(Code.INVALID_ARGUMENT, f"what is brought cannot be: blocks end at {BLOCK_MAX}")
    return Resume(message.epoch, message.seed, shards, reason_from(message.reason), message.has_results)


def address_from(message: pb.Address, peer: str) -> Address:
    """Address from which a caller's datagrams come. ``peer`` is gRPC's name of him. Raises `ControlError`."""
    host = message.host or peer_host(peer)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ControlError(
            Code.INVALID_ARGUMENT,
            f"{host!r} is no IP address: give the address from which datagrams come, or none to have the one from "
            "which the call comes",
        ) from None
    if not 1 <= message.port <= 65535:
        raise ControlError(Code.INVALID_ARGUMENT, f"{message.port} is no UDP port: give 1 to 65535")
    if address.is_unspecified or address.is_multicast:
        raise ControlError(
            Code.INVALID_ARGUMENT,
            f"datagrams cannot come from {host}: give the caller's own address, or none to have the one from which "
            "the call comes",
        )
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address), message.port


# ------------------------------------------------------------------------------------------ to messages


def spec_message(spec: JobSpec) -> pb.JobSpec:
    """The spec of a job; all its optional fields are there if those of ``spec`` are."""
    return pb.JobSpec(
        name=spec.name,
        workers=spec.workers,
        format=spec.format.name,
        lanes=spec.lanes,
        window=spec.window,
        seed=spec.seed,
        heartbeat_limit_s=spec.heartbeat_limit_s,
        rejoin_limit_s=spec.rejoin_limit_s,
    )


def address_message(address: Address) -> pb.Address:
    """An address of datagrams."""
    host, port = address
    return pb.Address(host=host, port=port)


def shard_address(shard: Shard, anywhere: str = "") -> pb.Address:
    """Address to which a data plane's children send; its host is ``anywhere`` if that can be any of its machine."""
    host, port = shard.address
    return pb.Address(host=anywhere if shard.anywhere else host, port=port)


def lease_messages(job: Job, shards: tuple[Shard, ...]) -> list[pb.Lease]:
    """The leases of a job, one per shard."""
    return [
        pb.Lease(address=shard_address(shard), base=lease.base, slots=lease.slots)
        for lease, shard in zip(job.leases, shards, strict=True)
    ]


def job_message(job: Job, now: float, shards: tuple[Shard, ...]) -> pb.Job:
    """The job as it is now."""
    members = []
    for rank in range(job.spec.workers):
        member = job.roster.by_rank.get(rank)
        if member is None:
            members.append(pb.Member(rank=rank))
        else:
            members.append(
                pb.Member(
                    rank=rank,
                    state=pb.MemberState.ValueType(member.state),
                    addresses=[address_message(address) for address in member.request.addresses],
                    silent_s=0.0 if member.state is MemberState.WAITING else member.silent_s(now),
                    switch=member.request.switch,
                )
            )
    return pb.Job(
        spec=spec_message(job.spec),
        job=job.number,
        state=pb.JobState.ValueType(job.state),
        epoch=job.epochs.number,
        leases=lease_messages(job, shards),
        members=members,
        age_s=now - job.created_at,
        epoch_age_s=now - job.epochs.started_at if job.epochs.started_at is not None else 0.0,
        last_epoch_end=job.epochs.last_end,
        ends_in_s=max(0.0, job.grace.ends_at - now) if job.grace.ends_at is not None else None,
    )


def ended_message(ended: Ended, now: float) -> pb.EndedJob:
    """A job that ended."""
    return pb.EndedJob(
        name=ended.name,
        job=ended.number,
        epoch=ended.epoch,
        ago_s=now - ended.at,
        cause=pb.Cause.ValueType(ended.cause),
        text=ended.text,
        spec=spec_message(ended.spec),
        age_s=ended.at - ended.created_at,
        totals=totals_message(ended.totals) if ended.totals is not None else None,
    )


def totals_message(counts: JobCounters) -> pb.JobTotals:
    """Totals of a job, over all its ranks."""
    return pb.JobTotals(results=counts.results, **{name: sum(getattr(counts, name)) for name in BY_RANK})


def event_message(at: float, event: ev.Event) -> pb.Event:
    """News of a job."""
    message: Any = getattr(pb, type(event).__name__)
    return pb.Event(at_s=at, **{ev.name_of(event): message(**asdict(event))})


def epoch_message(job: Job, epoch: ev.Epoch, switch: str, shards: tuple[Shard, ...], credit: int) -> pb.JoinResponse:
    """The reply to a Join through ``switch``, which has these ``shards``."""
    bindings = epoch.by_switch[switch]
    return pb.JoinResponse(
        job=job.number,
        epoch=epoch.epoch,
        token=bindings[0].token,
        spec=spec_message(job.spec),
        shards=[
            pb.ShardEpoch(
                lease=lease,
                resume_block=binding.resume_block,
                group=address_message(binding.group) if binding.group is not None else None,
            )
            for lease, binding in zip(lease_messages(job, shards), bindings, strict=True)
        ],
        heartbeat_interval_s=job.roster.heartbeat_interval_s,
        credit=credit,
        scatters=bindings[0].scatters,
    )
