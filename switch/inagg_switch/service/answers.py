"""Answers about a switch and its jobs, as messages of `inagg.v1`: for the calls of the control service, and for whoever
else shows it.

On the controller's event loop. None of it asks the switch: a snapshot comes from `Controller`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from inagg_proto.v1 import control_pb2 as pb

from ..control.drops import drop_sentences
from ..control.events import ROOT
from ..control.explain import explain
from ..control.jobs import Job
from ..driver import BY_RANK, TOTALS, JobCounters
from .controller import Controller
from .driver_threads import SwitchSnapshot
from .job_messages import ended_message, job_message
from .tree_messages import shard_stats


def job_now(controller: Controller, job: Job) -> pb.Job:
    """A job as it is now."""
    return job_message(job, controller.now(), controller.registry.shards)


def list_answer(controller: Controller) -> pb.ListResponse:
    """The jobs, and those that ended lately."""
    registry, now = controller.registry, controller.now()
    ended = [ended_message(ended, now) for ended in reversed(registry.jobs.past.jobs)]
    jobs = [job_now(controller, job) for job in registry.jobs]
    return pb.ListResponse(jobs=jobs, ended=ended, draining=registry.draining)


def stats_answer(
    controller: Controller, snapshot: SwitchSnapshot, jobs: Sequence[Job], everywhere: bool = True
) -> pb.StatsResponse:
    """The counters of the switch and of ``jobs``. Not ``everywhere``: switches below that ``jobs`` do not use may be
    silent."""
    used = {name for job in jobs for name in job.roster.placed}
    below = [trouble for name, trouble in snapshot.silent_below.items() if everywhere or name in used]
    return pb.StatsResponse(
        at_s=snapshot.at,
        uptime_s=snapshot.at - controller.started_at,
        driver=controller.driver.name,
        shards=_shards(controller, snapshot),
        jobs=[_job_stats(controller, snapshot, job) for job in jobs],
        tree=[
            pb.TreeSwitch(name=switch.name, parent=switch.parent)
            for switch in controller.registry.topology.switches.values()
        ],
        draining=controller.registry.draining,
        silent=[*snapshot.silent, *below],
    )


def _shards(controller: Controller, snapshot: SwitchSnapshot) -> Iterator[pb.ShardStats]:
    registry = controller.registry
    for name, counted in snapshot.shards.items():
        if registry.topology.has(name):
            for shard, counts, leased in zip(
                registry.topology.shards(name), counted, registry.pool.shards, strict=True
            ):
                stats = shard_stats(shard, counts)
                stats.switch, stats.slots_leased = name, leased.slots_leased
                stats.slots_quarantined = registry.jobs.quarantine.slots() if name == ROOT else 0
                yield stats


def _job_stats(controller: Controller, snapshot: SwitchSnapshot, job: Job) -> pb.JobStats:
    counts = snapshot.job(job.number, job.spec.workers)
    waits = snapshot.waits.get(job.number)
    return pb.JobStats(
        job=job_now(controller, job),
        workers=_workers(counts, job),
        **{name: getattr(counts, name) for name in TOTALS},
        trunks=[pb.TrunkStats(**asdict(trunk)) for trunk in snapshot.trunks(job.number)],
        slots_waiting=waits.count if waits is not None else 0,
    )


def _workers(counts: JobCounters, job: Job) -> Iterator[pb.WorkerStats]:
    for rank in range(job.spec.workers):
        member = job.roster.by_rank.get(rank)
        yield pb.WorkerStats(
            rank=rank,
            **{name: getattr(counts, name)[rank] for name in BY_RANK},
            round_trip_s=member.round_trip_s if member is not None else None,
        )


def why_answer(controller: Controller, snapshot: SwitchSnapshot, job: Job, slots: int) -> pb.WhyResponse:
    """The answer to what ``job`` waits for, with the ``slots`` that wait longest."""
    now, waits = controller.now(), snapshot.waits.get(job.number)
    longest = waits.longest if waits is not None else ()
    count = waits.count if waits is not None else None if job.epochs.ran else 0
    below = [trouble for name, trouble in snapshot.silent_below.items() if name in job.roster.placed]
    silent = [*(snapshot.silent if job.epochs.ran else ()), *below]
    why = explain(
        job,
        now,
        count,
        longest,
        snapshot.unanswered.get(job.number, {}),
        window=controller.registry.limits.window,
        refusals=drop_sentences(*controller.drops.grown()),
        silent=silent,
    )
    return pb.WhyResponse(
        job=job_now(controller, job),
        text=why.text,
        silent=silent,
        missing=job.roster.missing() if job.epochs.started_at is None else (),
        slots_waiting=count or 0,
        slots=[pb.SlotWait(shard=shard, **asdict(wait)) for shard, wait in longest[:slots]],
        ranks=[pb.RankWait(**asdict(wait)) for wait in why.ranks],
    )
