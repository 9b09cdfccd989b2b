"""Rates between two looks at a switch: differences of counters, divided by the time between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from inagg_proto.v1 import control_pb2 as pb

from .plain import plain


@dataclass(frozen=True, slots=True)
class ShardRates:
    """One shard, per second. ``cpu`` is a share of one core; ``drops`` are by reason."""

    now: pb.ShardStats
    datagrams_in: float
    datagrams_out: float
    bits_in: float
    bits_out: float
    kernel_drops: float
    send_refused: float
    cpu: float
    drops: dict[str, float]
    faults: dict[str, float]


@dataclass(frozen=True, slots=True)
class WorkerRates:
    """One rank of a job, per second."""

    now: pb.WorkerStats
    member: pb.Member
    contributions: float
    duplicates: float
    resends: float
    stale: float
    bits_in: float


@dataclass(frozen=True, slots=True)
class TrunkRates:
    """Rates of a job from a switch to the one above it: datagrams per second."""

    now: pb.TrunkStats
    partials: float
    partials_again: float


@dataclass(frozen=True, slots=True)
class JobRates:
    """One job, per second. ``elements`` are summed ones, each counted once however many workers it has: results times
    lanes, so that the few blocks of scales count as blocks of values."""

    now: pb.JobStats
    results: float
    elements: float
    bits_in: float
    duplicates: float
    resends: float
    stale: float
    workers: tuple[WorkerRates, ...]
    trunks: tuple[TrunkRates, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """The switch over ``interval_s`` seconds."""

    now: pb.StatsResponse
    interval_s: float
    shards: tuple[ShardRates, ...]
    jobs: tuple[JobRates, ...]

    @property
    def drops(self) -> Iterator[tuple[str, int, float]]:
        """Reason, count since the start, and rate, of all shards together; the most frequent first."""
        return _sum_by_name((dict(s.now.drops), s.drops) for s in self.shards)

    @property
    def faults(self) -> Iterator[tuple[str, int, float]]:
        """Name, count since the start, and rate, of faults that are injected on purpose."""
        return _sum_by_name((dict(s.now.faults), s.faults) for s in self.shards)


def _sum_by_name(shards: Iterator[tuple[dict[str, int], dict[str, float]]]) -> Iterator[tuple[str, int, float]]:
    totals: dict[str, int] = {}
    rates: dict[str, float] = {}
    for total, rate in shards:
        for name, count in total.items():
            totals[name] = totals.get(name, 0) + count
            rates[name] = rates.get(name, 0.0) + rate.get(name, 0.0)
    for name in sorted(totals, key=lambda name: (-rates[name], -totals[name], name)):
        yield name, totals[name], rates[name]


def rates(before: pb.StatsResponse | None, now: pb.StatsResponse) -> Rates:
    """Rates from ``before`` to ``now``. ``before`` None, or of another run of the switch: all rates are 0."""
    if before is not None and (now.at_s <= before.at_s or now.uptime_s < before.uptime_s):
        before = None
    interval_s = now.at_s - before.at_s if before is not None else 0.0
    shards_before = dict(_named(before)) if before is not None else {}
    jobs_before = {(job.job.spec.name, job.job.job): job for job in before.jobs} if before is not None else {}
    return Rates(
        now,
        interval_s,
        tuple(_shard(shards_before.get(name), shard, interval_s) for name, shard in _named(now)),
        tuple(_job(jobs_before.get((job.job.spec.name, job.job.job)), job, interval_s) for job in now.jobs),
    )


def _named(look: pb.StatsResponse) -> Iterator[tuple[tuple[str, int], pb.ShardStats]]:
    """Shards by their switch and their number there."""
    seen: dict[str, int] = {}
    for shard in look.shards:
        number = seen[shard.switch] = seen.get(shard.switch, -1) + 1
        yield (shard.switch, number), shard


def _per_s(before: object | None, now: object, interval_s: float) -> Callable[[str], float]:
    """Gives the rate of a field. What counts since the start and is smaller than it was has begun anew."""

    def rate(name: str) -> float:
        if before is None or interval_s <= 0:
            return 0.0
        was, value = float(getattr(before, name)), float(getattr(now, name))
        return (value - was if value >= was else value) / interval_s

    return rate


def _by_name(before: Mapping[str, int] | None, now: Mapping[str, int], interval_s: float) -> dict[str, float]:
    if before is None or interval_s <= 0:
        return dict.fromkeys(now, 0.0)
    return {name: max(0, count - before.get(name, 0)) / interval_s for name, count in now.items()}


def _shard(before: pb.ShardStats | None, now: pb.ShardStats, interval_s: float) -> ShardRates:
    rate = _per_s(before, now, interval_s)
    return ShardRates(
        now=now,
        **{name: rate(name) for name in ("datagrams_in", "datagrams_out", "kernel_drops", "send_refused")},
        bits_in=8 * rate("bytes_in"),
        bits_out=8 * rate("bytes_out"),
        cpu=rate("cpu_s"),
        drops=_by_name(before.drops if before is not None else None, now.drops, interval_s),
        faults=_by_name(before.faults if before is not None else None, now.faults, interval_s),
    )


def _job(before: pb.JobStats | None, now: pb.JobStats, interval_s: float) -> JobRates:
    # A job that is new since the last look has done all that it did in this interval.
    before = before if before is not None else pb.JobStats()
    workers_before = {worker.rank: worker for worker in before.workers}
    trunks_before = {trunk.switch: trunk for trunk in before.trunks}
    workers = tuple(
        _worker(workers_before.get(worker.rank, pb.WorkerStats()), worker, member, interval_s)
        for worker, member in zip(now.workers, now.job.members, strict=True)
    )
    results = _per_s(before, now, interval_s)("results")
    return JobRates(
        now=now,
        results=results,
        elements=results * now.job.spec.lanes,
        **{
            name: sum(getattr(worker, name) for worker in workers)
            for name in ("bits_in", "duplicates", "resends", "stale")
        },
        workers=workers,
        trunks=tuple(
            _trunk(trunks_before.get(trunk.switch, pb.TrunkStats()), trunk, interval_s) for trunk in now.trunks
        ),
    )


def _trunk(before: pb.TrunkStats, now: pb.TrunkStats, interval_s: float) -> TrunkRates:
    rate = _per_s(before, now, interval_s)
    return TrunkRates(now, rate("partials"), rate("partials_again"))


def _worker(before: pb.WorkerStats, now: pb.WorkerStats, member: pb.Member, interval_s: float) -> WorkerRates:
    rate = _per_s(before, now, interval_s)
    return WorkerRates(
        now=now,
        member=member,
        **{name: rate(name) for name in ("contributions", "duplicates", "resends", "stale")},
        bits_in=8 * rate("bytes_in"),
    )


def as_plain(look: Rates) -> dict[str, Any]:
    """Everything, for JSON: the counters as they are, and ``rates`` per second beside them."""
    return {
        "at_s": look.now.at_s,
        "uptime_s": look.now.uptime_s,
        "interval_s": look.interval_s,
        "driver": look.now.driver,
        "shards": [_with_rates(shard) for shard in look.shards],
        "jobs": [
            {
                **_with_rates(job),
                "workers": [_with_rates(worker) for worker in job.workers],
                "trunks": [_with_rates(trunk) for trunk in job.trunks],
            }
            for job in look.jobs
        ],
        "tree": [plain(switch) for switch in look.now.tree],
        "draining": look.now.draining,
        "silent": list(look.now.silent),
    }


def _with_rates(part: ShardRates | JobRates | WorkerRates | TrunkRates) -> dict[str, Any]:
    names = [field.name for field in fields(part) if field.name not in ("now", "member", "workers", "trunks")]
    return {**plain(part.now), "rates": {name: getattr(part, name) for name in names}}
