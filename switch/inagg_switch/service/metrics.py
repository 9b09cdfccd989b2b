"""Prometheus metrics: what `inagg top` shows, for a monitoring system; `metrics_server` serves them.

A scrape runs in a thread of its own. It reads the last snapshot that the control plane took at the switch, at most
`poll_interval_s` ago, and never asks the switch itself: so no number of scrapers costs the data planes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..control.events import ROOT, Cause
from ..control.states import JobState, MemberState
from ..driver import Counters, JobCounters
from ..p4 import TARGETS
from .controller import Controller
from .driver_threads import SwitchSnapshot, Trunk, Waits
from .metric_names import ENDS, METRICS
from .refused_callers import RefusedCallers

SNAPSHOT_S: Final = 5.0
"""Seconds that a scrape waits for the event loop."""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """Figures of one job for a scrape. ``members`` are (rank, state, seconds since it was heard, round trip)."""

    name: str
    state: JobState
    workers: int
    epoch: int
    slots: int
    members: tuple[tuple[int, MemberState, float, float | None], ...]
    counters: JobCounters | None
    trunks: tuple[Trunk, ...]
    waits: Waits | None
    """Slots of the job that wait; None: the switch does not tell."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Figures for a scrape, taken at one moment on the event loop; nothing in it changes any more."""

    healthy: bool
    draining: bool
    uptime_s: float
    snapshot_age_s: float
    slots_quarantined: int
    ended: dict[Cause, int]
    shards: dict[str, tuple[tuple[int, int], ...]]
    """Slots, and slots leased, by switch."""
    elsewhere: bool
    """Whether the switch runs elsewhere, so that nothing is known of its processes and sockets."""
    switch: SwitchSnapshot | None
    jobs: tuple[JobSnapshot, ...]


def take(controller: Controller) -> Snapshot:
    """A snapshot. On the controller's event loop; copies references and small tuples only."""
    now, snapshot, registry = controller.now(), controller.last_snapshot, controller.registry
    leased = [buddies.slots_leased for buddies in registry.pool.shards]
    jobs = tuple(
        JobSnapshot(
            name=job.name,
            state=job.state,
            workers=job.spec.workers,
            epoch=job.epochs.number,
            slots=sum(lease.slots for lease in job.leases),
            members=tuple(
                (member.rank, member.state, member.silent_s(now), member.round_trip_s) for member in job.roster
            ),
            counters=snapshot.job(job.number, job.spec.workers) if snapshot is not None and job.epochs.ran else None,
            trunks=tuple(snapshot.trunks(job.number)) if snapshot is not None else (),
            waits=snapshot.waits.get(job.number, None if job.epochs.ran else Waits(0, ()))
            if snapshot is not None
            else None,
        )
        for job in registry.jobs
    )
    return Snapshot(
        healthy=controller.healthy,
        draining=registry.draining,
        uptime_s=now - controller.started_at,
        snapshot_age_s=now - snapshot.at if snapshot is not None else 0.0,
        slots_quarantined=registry.jobs.quarantine.slots(),
        ended=dict(registry.jobs.past.by_cause),
        shards={
            name: tuple((shard.slots, used) for shard, used in zip(registry.topology.shards(name), leased, strict=True))
            for name in (ROOT, *registry.topology.switches)
        },
        elsewhere=controller.driver.name in TARGETS,
        switch=snapshot,
        jobs=jobs,
    )


class _Families:
    """Metric families by name, made when a value comes."""

    def __init__(self) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}

    def add(self, name: str, value: float, *labels: str | int) -> None:
        family = self._families.get(name)
        if family is None:
            kind, text, label_names = METRICS[name]
            make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = self._families[name] = make(name, text, labels=label_names)
        family.add_metric([str(label) for label in labels], value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


def families(snapshot: Snapshot) -> Iterable[Metric]:
    """The metrics of a snapshot."""
    out = _Families()
    out.add("inagg_switch_healthy", snapshot.healthy)
    out.add("inagg_switch_draining", snapshot.draining)
    out.add("inagg_switch_uptime_seconds", snapshot.uptime_s)
    out.add("inagg_switch_snapshot_age_seconds", snapshot.snapshot_age_s)
    out.add("inagg_switch_slots_quarantined", snapshot.slots_quarantined)
    for state in JobState:
        out.add("inagg_jobs", sum(job.state is state for job in snapshot.jobs), state.name.lower())
    for cause in ENDS:
        out.add("inagg_jobs_ended", snapshot.ended.get(cause, 0), cause.name.lower())
    for name, shards in snapshot.shards.items():
        for shard, (slots, leased) in enumerate(shards):
            out.add("inagg_shard_slots", slots, shard, name)
            out.add("inagg_shard_slots_leased", leased, shard, name)
    if snapshot.switch is not None:
        silent = snapshot.switch.silent_below
        for name in dict.fromkeys((*snapshot.switch.shards, *silent)):
            if name != ROOT:
                out.add("inagg_switch_below_healthy", name not in silent, name)
        for name, counted in snapshot.switch.shards.items():
            _add_shards(out, name, counted)
            if name != ROOT or not snapshot.elsewhere:
                _add_processes(out, name, counted)
    for job in snapshot.jobs:
        _add_job(out, job)
    return out


def _add_shards(out: _Families, switch: str, shards: Sequence[Counters]) -> None:
    for shard, counters in enumerate(shards):
        out.add("inagg_shard_received_datagrams", counters.datagrams_in, shard, switch)
        out.add("inagg_shard_received_bytes", counters.bytes_in, shard, switch)
        out.add("inagg_shard_sent_datagrams", counters.datagrams_out, shard, switch)
        out.add("inagg_shard_sent_bytes", counters.bytes_out, shard, switch)
        for reason, count in counters.drops_by_label.items():
            out.add("inagg_shard_dropped_datagrams", count, shard, switch, reason)
        out.add("inagg_shard_notices", counters.notices, shard, switch)


def _add_processes(out: _Families, switch: str, shards: Sequence[Counters]) -> None:
    for shard, counters in enumerate(shards):
        out.add("inagg_shard_send_refused_datagrams", counters.send_refused, shard, switch)
        out.add("inagg_shard_kernel_drops", counters.kernel_drops, shard, switch)
        for fault, count in counters.faults.items():
            out.add("inagg_shard_injected_faults", count, shard, switch, fault)
        out.add("inagg_shard_cpu_seconds", counters.cpu_s, shard, switch)
        out.add("inagg_shard_not_captured_datagrams", counters.not_captured, shard, switch)


def _add_job(out: _Families, job: JobSnapshot) -> None:
    out.add("inagg_job_slots_leased", job.slots, job.name)
    if job.waits is not None:
        out.add("inagg_job_slots_waiting", job.waits.count, job.name)
        longest = max((wait.waiting_s for _, wait in job.waits.longest), default=0.0)
        out.add("inagg_job_longest_wait_seconds", longest, job.name)
    out.add("inagg_job_epoch", job.epoch, job.name)
    for state in MemberState:
        count = sum(member_state is state for _, member_state, _, _ in job.members)
        out.add("inagg_job_members", count, job.name, state.name.lower())
    out.add("inagg_job_members", job.workers - len(job.members), job.name, "missing")
    for rank, _, silent_s, round_trip_s in job.members:
        out.add("inagg_job_heartbeat_age_seconds", silent_s, job.name, rank)
        if round_trip_s is not None:
            out.add("inagg_job_round_trip_seconds", round_trip_s, job.name, rank)
    for trunk in job.trunks:
        out.add("inagg_job_partials", trunk.partials, job.name, trunk.switch)
        out.add("inagg_job_partials_again", trunk.partials_again, job.name, trunk.switch)
    if job.counters is not None:
        out.add("inagg_job_results", job.counters.results, job.name)
        out.add("inagg_job_invalid_codes", job.counters.invalid_codes, job.name)
        for name, by_rank in (
            ("inagg_job_contributions", job.counters.contributions),
            ("inagg_job_duplicates", job.counters.duplicates),
            ("inagg_job_resends", job.counters.resends),
            ("inagg_job_stale", job.counters.stale),
            ("inagg_job_received_bytes", job.counters.bytes_in),
        ):
            for rank, count in enumerate(by_rank):
                out.add(name, count, job.name, rank)


class SwitchCollector(Collector):
    """Collects from a controller that runs on ``loop``; to be called from other threads."""

    def __init__(self, controller: Controller, loop: asyncio.AbstractEventLoop) -> None:
        self._controller = controller
        self._loop = loop

    def collect(self) -> Iterable[Metric]:
        """Called by `prometheus_client` at each scrape. Raises TimeoutError if the event loop does not answer."""

        async def on_loop() -> Snapshot:
            return take(self._controller)

        return families(asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(SNAPSHOT_S))


class RefusedCollector(Collector):
    """Collects what was refused, at a root or a leaf; to be called from any thread."""

    def __init__(self, refused: RefusedCallers) -> None:
        self._refused = refused

    def collect(self) -> Iterable[Metric]:
        """Called by `prometheus_client` at each scrape."""
        out = _Families()
        out.add("inagg_switch_refused_callers", self._refused.callers)
        out.add("inagg_switch_refused_tls_connections", self._refused.connections)
        return out
