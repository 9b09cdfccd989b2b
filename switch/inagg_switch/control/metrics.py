"""Prometheus metrics: what `inagg top` shows, for a monitoring system.

A scrape runs in a thread of its own. It reads the last look that the control plane took at the switch, at most
`poll_interval_s` ago, and never asks the switch itself: so no number of scrapers costs the data planes anything.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..driver import JobCounters
from ..p4 import TARGETS
from .driving import Look, Waits
from .engine import Engine
from .events import Cause
from .metric_names import ENDS, METRICS
from .security import Security, SecurityError, is_local
from .states import JobState, MemberState

METRICS_PORT: Final = 47099
DEFAULT_METRICS_ADDRESS: Final = f"127.0.0.1:{METRICS_PORT}"

SNAPSHOT_S: Final = 5.0
"""How long a scrape waits for the event loop."""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """What a scrape needs of one job. ``members`` are (rank, state, seconds since it was heard)."""

    name: str
    state: JobState
    workers: int
    epoch: int
    slots: int
    members: tuple[tuple[int, MemberState, float], ...]
    counters: JobCounters | None
    waits: Waits | None
    """None: the switch does not tell."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a scrape needs, taken at one moment on the event loop; nothing in it changes any more."""

    healthy: bool
    draining: bool
    uptime_s: float
    look_age_s: float
    slots_quarantined: int
    ended: dict[Cause, int]
    shards: tuple[tuple[int, int], ...]
    """Slots, and slots leased."""
    elsewhere: bool
    """Whether the switch runs elsewhere, so that nothing is known of its processes and sockets."""
    look: Look | None
    jobs: tuple[JobSnapshot, ...]


def take(engine: Engine) -> Snapshot:
    """A snapshot. On the engine's event loop; copies references and small tuples only."""
    now, look, registry = engine.now(), engine.last_look, engine.registry
    jobs = tuple(
        JobSnapshot(
            name=job.name,
            state=job.state,
            workers=job.spec.workers,
            epoch=job.epoch if job.ran else 0,
            slots=sum(lease.slots for lease in job.leases),
            members=tuple((member.rank, member.state, member.silent_s(now)) for member in job.roster),
            counters=look.job(job.number, job.spec.workers) if look is not None and job.ran else None,
            waits=look.waits.get(job.number, None if job.ran else Waits(0, ())) if look is not None else None,
        )
        for job in registry.jobs()
    )
    return Snapshot(
        healthy=engine.healthy,
        draining=registry.draining,
        uptime_s=now - engine.started_at,
        look_age_s=now - look.at if look is not None else 0.0,
        slots_quarantined=registry.slots_quarantined(),
        ended=dict(registry.ended_by_cause),
        shards=tuple(
            (shard.slots, buddies.slots_leased)
            for shard, buddies in zip(registry.shards, registry.pool.shards, strict=True)
        ),
        elsewhere=engine.driver.name in TARGETS,
        look=look,
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
    out.add("inagg_switch_look_age_seconds", snapshot.look_age_s)
    out.add("inagg_switch_slots_quarantined", snapshot.slots_quarantined)
    for state in JobState:
        out.add("inagg_jobs", sum(job.state is state for job in snapshot.jobs), state.name.lower())
    for cause in ENDS:
        out.add("inagg_jobs_ended", snapshot.ended.get(cause, 0), cause.name.lower())
    for shard, (slots, leased) in enumerate(snapshot.shards):
        out.add("inagg_shard_slots", slots, shard)
        out.add("inagg_shard_slots_leased", leased, shard)
    if snapshot.look is not None:
        _add_shards(out, snapshot.look)
        if not snapshot.elsewhere:
            _add_processes(out, snapshot.look)
    for job in snapshot.jobs:
        _add_job(out, job)
    return out


def _add_shards(out: _Families, look: Look) -> None:
    for shard, counters in enumerate(look.shards):
        out.add("inagg_shard_received_datagrams", counters.datagrams_in, shard)
        out.add("inagg_shard_received_bytes", counters.bytes_in, shard)
        out.add("inagg_shard_sent_datagrams", counters.datagrams_out, shard)
        out.add("inagg_shard_sent_bytes", counters.bytes_out, shard)
        for reason, count in counters.drops.items():
            out.add("inagg_shard_dropped_datagrams", count, shard, reason.label)
        out.add("inagg_shard_notices", counters.notices, shard)


def _add_processes(out: _Families, look: Look) -> None:
    for shard, counters in enumerate(look.shards):
        out.add("inagg_shard_send_refused_datagrams", counters.send_refused, shard)
        out.add("inagg_shard_kernel_drops", counters.kernel_drops, shard)
        for fault, count in counters.faults.items():
            out.add("inagg_shard_injected_faults", count, shard, fault)
        out.add("inagg_shard_cpu_seconds", counters.cpu_s, shard)
        out.add("inagg_shard_not_captured_datagrams", counters.not_captured, shard)


def _add_job(out: _Families, job: JobSnapshot) -> None:
    out.add("inagg_job_slots_leased", job.slots, job.name)
    if job.waits is not None:
        out.add("inagg_job_slots_waiting", job.waits.count, job.name)
        longest = max((wait.waiting_s for _, wait in job.waits.longest), default=0.0)
        out.add("inagg_job_longest_wait_seconds", longest, job.name)
    out.add("inagg_job_epoch", job.epoch, job.name)
    for state in MemberState:
        count = sum(member_state is state for _, member_state, _ in job.members)
        out.add("inagg_job_members", count, job.name, state.name.lower())
    out.add("inagg_job_members", job.workers - len(job.members), job.name, "missing")
    for rank, _, silent_s in job.members:
        out.add("inagg_job_heartbeat_age_seconds", silent_s, job.name, rank)
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
    """Collects from an engine that runs on ``loop``; to be called from other threads."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop

    def collect(self) -> Iterable[Metric]:
        """Called by `prometheus_client` at each scrape. Raises TimeoutError if the event loop does not answer."""

        async def on_loop() -> Snapshot:
            return take(self._engine)

        return families(asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(SNAPSHOT_S))


def check_metrics_address(address: str, security: Security) -> None:
    """Raises `SecurityError` if it is not safe to serve metrics on ``address`` and nobody asked for that by name."""
    if not (security.tls or security.insecure_anywhere or is_local(address)):
        raise SecurityError(
            f"other machines could read the metrics at {address}: give --tls-cert and --tls-key, or serve them on "
            "127.0.0.1, or ask for it by name with --insecure"
        )


class MetricsServer:
    """Serves ``http://ADDRESS/metrics``, guarded like the control service: with its certificate if it has one."""

    def __init__(self, address: str, engine: Engine, security: Security) -> None:
        """``address``: host:port, port 0 for any free one. On the engine's event loop. Raises `SecurityError`, and
        OSError if it cannot listen."""
        check_metrics_address(address, security)
        host, _, port = address.rpartition(":")
        registry = CollectorRegistry()
        registry.register(SwitchCollector(engine, asyncio.get_running_loop()))
        self._server: WSGIServer
        self._thread: threading.Thread
        self._server, self._thread = start_http_server(
            int(port),
            host.strip("[]"),
            registry,
            certfile=_text(security.certificate),
            keyfile=_text(security.key),
            client_cafile=_text(security.client_ca),
            client_auth_required=security.client_ca is not None,
        )
        scheme = "https" if security.tls else "http"
        self.url = f"{scheme}://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _text(path: object) -> str | None:
    return None if path is None else str(path)
