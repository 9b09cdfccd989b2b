"""Messages of a switch, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inagg_proto.v1 import control_pb2 as pb

RUNNING, JOINING = pb.JOB_STATE_RUNNING, pb.JOB_STATE_JOINING
ACTIVE, WAITING, FAILED = pb.MEMBER_STATE_ACTIVE, pb.MEMBER_STATE_WAITING, pb.MEMBER_STATE_FAILED
MISSING = pb.MEMBER_STATE_UNSPECIFIED


def job(
    name: str = "train",
    members: Sequence[pb.MemberState.ValueType] = (ACTIVE, ACTIVE),
    *,
    state: pb.JobState.ValueType = RUNNING,
    silent_s: Sequence[float] = (),
    **fields: Any,
) -> pb.Job:
    """A job with members in these states."""
    silent = [*silent_s, *[0.1] * len(members)]
    return pb.Job(
        spec=pb.JobSpec(
            name=name, workers=len(members), format="nat8", lanes=1448, window=128, seed=1, heartbeat_limit_s=10
        ),
        job=1,
        state=state,
        epoch=1,
        members=[pb.Member(rank=i, state=s, silent_s=silent[i] if s else 0.0) for i, s in enumerate(members)],
        age_s=65,
        epoch_age_s=64,
        **fields,
    )


def job_stats(
    results: int = 0, contributions: Sequence[int] = (0, 0), name: str = "train", **fields: Any
) -> pb.JobStats:
    """Counters of a job."""
    workers = [
        pb.WorkerStats(rank=rank, contributions=count, bytes_in=1472 * count)
        for rank, count in enumerate(contributions)
    ]
    described = job(name, [ACTIVE] * len(contributions))
    return pb.JobStats(job=described, workers=workers, results=results, **fields)


def shard_stats(**fields: Any) -> pb.ShardStats:
    """Counters of a shard."""
    return pb.ShardStats(
        address=pb.Address(host="127.0.0.1", port=47101), slots=4096, **{"slots_leased": 256, **fields}
    )


def stats(
    at_s: float, jobs: Sequence[pb.JobStats] = (), shards: Sequence[pb.ShardStats] = (), uptime_s: float | None = None
) -> pb.StatsResponse:
    """A look at a switch that started at 0."""
    return pb.StatsResponse(
        at_s=at_s, uptime_s=at_s if uptime_s is None else uptime_s, driver="software", shards=shards, jobs=jobs
    )
