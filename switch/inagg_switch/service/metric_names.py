"""The names, help texts and labels of the Prometheus metrics. Counters get `_total` besides; units stand in full.

Labels are bounded: a job and its ranks are there while it lives; reasons, states, causes and shards are few. ``switch``
is the name of a switch below; of this one it is empty, which for Prometheus is as if it were not there.
"""

from __future__ import annotations

from typing import Final

from ..control.events import Cause

Help = dict[str, tuple[str, str, tuple[str, ...]]]

OF_SHARD: Final = ("shard", "switch")

SHARD_METRICS: Final[Help] = {
    "inagg_shard_received_datagrams": ("counter", "Datagrams received.", OF_SHARD),
    "inagg_shard_received_bytes": ("counter", "Bytes received, of UDP payload.", OF_SHARD),
    "inagg_shard_sent_datagrams": (
        "counter",
        "Datagrams sent; one result to n workers counts n, or 1 if it is multicast.",
        OF_SHARD,
    ),
    "inagg_shard_sent_bytes": ("counter", "Bytes sent, of UDP payload.", OF_SHARD),
    "inagg_shard_dropped_datagrams": (
        "counter",
        "Received datagrams that were dropped, by reason (as in error notices; duplicate and stale are what loss "
        "looks like).",
        (*OF_SHARD, "reason"),
    ),
    "inagg_shard_notices": (
        "counter",
        "Error notices sent to workers whose datagrams were refused.",
        OF_SHARD,
    ),
    "inagg_shard_send_refused_datagrams": ("counter", "Datagrams that the kernel did not take.", OF_SHARD),
    "inagg_shard_kernel_drops": (
        "counter",
        "Buffers (a datagram, or with UDP_GRO a batch of them) that the kernel dropped as the socket's receive buffer "
        "was full: give it more (net.core.rmem_max), or the switch more shards.",
        OF_SHARD,
    ),
    "inagg_shard_injected_faults": (
        "counter",
        "Datagrams harmed on purpose (--loss and the like), by what was done to them.",
        (*OF_SHARD, "fault"),
    ),
    "inagg_shard_not_captured_datagrams": (
        "counter",
        "Datagrams that were not recorded, since the file of --capture is as large as it may be.",
        OF_SHARD,
    ),
    "inagg_shard_cpu_seconds": ("counter", "CPU time of the shard's process, user and system.", OF_SHARD),
    "inagg_shard_slots": ("gauge", "Slots that there are.", OF_SHARD),
    "inagg_shard_slots_leased": ("gauge", "Slots that jobs lease.", OF_SHARD),
}

JOB_METRICS: Final[Help] = {
    "inagg_job_contributions": ("counter", "Contributions that went into a sum.", ("job", "rank")),
    "inagg_job_duplicates": (
        "counter",
        "Contributions dropped since the sum had them and was not complete.",
        ("job", "rank"),
    ),
    "inagg_job_resends": (
        "counter",
        "Results sent again to one worker, since it repeated its contribution.",
        ("job", "rank"),
    ),
    "inagg_job_stale": ("counter", "Contributions dropped since their slot serves a later block.", ("job", "rank")),
    "inagg_job_received_bytes": ("counter", "Bytes received from a worker, of UDP payload.", ("job", "rank")),
    "inagg_job_round_trip_seconds": (
        "gauge",
        "Smoothed round-trip time (RFC 6298) as the rank measures it, from a contribution to its result; it includes "
        "the wait for the slowest rank.",
        ("job", "rank"),
    ),
    "inagg_job_results": ("counter", "Sums completed and sent to all workers.", ("job",)),
    "inagg_job_partials": (
        "counter",
        "Datagrams of partial sums that a switch below sent up for the first time.",
        ("job", "switch"),
    ),
    "inagg_job_partials_again": (
        "counter",
        "Datagrams of partial sums that a switch below sent up again, since a child repeated its contribution.",
        ("job", "switch"),
    ),
    "inagg_job_invalid_codes": ("counter", "Lanes whose code names no level; they count as zero.", ("job",)),
    "inagg_job_slots_leased": ("gauge", "Slots that the job leases, over all shards.", ("job",)),
    "inagg_job_slots_waiting": ("gauge", "Slots with an incomplete sum.", ("job",)),
    "inagg_job_longest_wait_seconds": ("gauge", "How long the oldest incomplete sum has waited.", ("job",)),
    "inagg_job_epoch": ("gauge", "Number of the running epoch, or of the last one; 0 before the first.", ("job",)),
    "inagg_job_members": ("gauge", "Ranks by what they do (missing: no process has joined).", ("job", "state")),
    "inagg_job_heartbeat_age_seconds": (
        "gauge",
        "Time since the switch heard of a rank on the control service; 0 while it waits in Join.",
        ("job", "rank"),
    ),
}

SWITCH_METRICS: Final[Help] = {
    "inagg_switch_healthy": ("gauge", "1 if all shards answered when they were looked at last, else 0.", ()),
    "inagg_switch_below_healthy": (
        "gauge",
        "1 if all shards of a switch below answered when it was looked at last, else 0.",
        ("switch",),
    ),
    "inagg_switch_draining": ("gauge", "1 if the switch takes no new jobs: it drains, or is to stop.", ()),
    "inagg_switch_uptime_seconds": ("gauge", "Time since the control service started.", ()),
    "inagg_switch_snapshot_age_seconds": ("gauge", "How old the counters of this scrape are.", ()),
    "inagg_switch_slots_quarantined": (
        "gauge",
        "Slots on each shard of ended jobs that the switch has failed to drop; they are not given out again until it "
        "has.",
        (),
    ),
    "inagg_switch_refused_callers": (
        "counter",
        "Calls of the control service without its secret, or with a wrong one, and requests of metrics and live view "
        "with a wrong one. Each switch has its own, a leaf too.",
        (),
    ),
    "inagg_switch_refused_tls_connections": (
        "counter",
        "Connections to metrics and live view that TLS refused; those to the control service are not known. Each "
        "switch has its own, a leaf too.",
        (),
    ),
    "inagg_jobs": ("gauge", "Jobs by what they do.", ("state",)),
    "inagg_jobs_ended": ("counter", "Jobs that ended, by cause.", ("cause",)),
}

ENDS: Final = tuple(cause for cause in Cause if cause not in (Cause.NEW_EPOCH, Cause.MEMBER_FAILED))
"""Causes for which a job ends; the others end an epoch."""

METRICS: Final[Help] = {**SWITCH_METRICS, **SHARD_METRICS, **JOB_METRICS}
