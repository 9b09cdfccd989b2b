"""The control plane's numbers: what it waits for, and a bound on everything that callers can make it keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEARTBEATS_PER_LIMIT: Final = 4
"""Heartbeats a member is asked for in one heartbeat limit: three in a row can be lost."""

HEARTBEAT_LIMIT_MIN_S: Final = 0.2
LIMIT_MAX_S: Final = 24 * 3600.0
"""Bounds of what a job may ask for as its heartbeat limit and rejoin limit (which may be 0)."""

REASON_CHARS_MAX: Final = 200
"""Longest reason that a member may give, in characters."""

EPOCH_MAX: Final = 1 << 31
"""The largest epoch that a rank may bring: 2^31 further epochs still fit the 32-bit field."""

BLOCK_MAX: Final = (1 << 63) - 1
"""The largest block number that a rank may bring."""

JOB_NUMBER_MAX: Final = 0xFFFF
"""Jobs are numbered 1..65535, the packet header's 16 bits without 0."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits that an operator may set for a switch. Times in seconds."""

    heartbeat_limit_s: float = 10.0
    """Silence after which a member counts as failed, for jobs that do not say."""
    rejoin_limit_s: float = 60.0
    """Time that ranks that failed or left may be missing before their job is ended, for jobs that do not say."""
    join_timeout_s: float = 300.0
    """Longest wait in one Join, and how long a created job waits for its first rank."""
    stall_after_s: float = 5.0
    """Age of an incomplete sum at which subscribers are told of a stall."""
    tick_interval_s: float = 0.1
    """Time between two looks at limits: the error of every limit above."""
    poll_interval_s: float = 1.0
    """Time between two reads of the switch's counters."""
    read_interval_s: float = 0.05
    """Time for which one answer to the same question (Stats, Why, List) serves; who asks together shares."""
    reads_max: int = 256
    """Such questions in progress, until their answers have been taken: a client that does not read holds memory."""
    unbind_retry_s: float = 1.0
    """First wait before a failed unbinding is tried again; doubled up to 64 times this."""
    heartbeat_limit_max_s: float = LIMIT_MAX_S
    rejoin_limit_max_s: float = LIMIT_MAX_S
    """Most that a job may ask for of the limits of heartbeats and of rejoining: so long it keeps its slots when nobody
    is there."""
    jobs_max: int = 1024
    quota_jobs: int | None = None
    quota_slots: int | None = None
    quota_watches: int | None = None
    """Quotas of each principal (`service.security`): jobs, slots on each shard, and open watches; None: no more than
    there are."""
    ended_kept: int = 64
    """Ended jobs that are remembered, so that a late call can be told why."""
    watchers_per_job_max: int = 128
    """Open watches of one job, of those who are no ranks of it."""
    watches_per_rank: int = 4
    """Open watches of a job's ranks, times their number: a rank has one, and the switch may not know yet that others of
    it are broken."""
    watch_queue_max: int = 256
    """Events that a subscriber may lie behind before its stream is ended."""
    calls_max: int = 65536
    """Calls in progress, over all jobs: 1024 jobs of 32 ranks, each with a Join or a Watch open, twice."""

    def __post_init__(self) -> None:
        if not HEARTBEAT_LIMIT_MIN_S <= self.heartbeat_limit_s <= LIMIT_MAX_S:
            limits = f"{HEARTBEAT_LIMIT_MIN_S} to {LIMIT_MAX_S:.0f} s"
            raise ValueError(f"a heartbeat limit of {self.heartbeat_limit_s:g} s: choose {limits}")
        if not 0 <= self.rejoin_limit_s <= LIMIT_MAX_S:
            raise ValueError(f"a rejoin limit of {self.rejoin_limit_s:g} s: choose 0 to {LIMIT_MAX_S:.0f} s")
        for what, usual, most in (
            ("heartbeat limit", self.heartbeat_limit_s, self.heartbeat_limit_max_s),
            ("rejoin limit", self.rejoin_limit_s, self.rejoin_limit_max_s),
        ):
            if not usual <= most <= LIMIT_MAX_S:
                raise ValueError(
                    f"a longest {what} of {most:g} s: choose {usual:g} s, which is usual, to {LIMIT_MAX_S:.0f} s"
                )
        if any(quota is not None and quota < 1 for quota in (self.quota_jobs, self.quota_slots, self.quota_watches)):
            raise ValueError("a quota must be at least 1")
        times = (
            self.join_timeout_s, self.tick_interval_s, self.poll_interval_s, self.read_interval_s, self.unbind_retry_s,
            self.stall_after_s,
        )  # fmt: skip
        if not all(time_s > 0 for time_s in times):  # nor are they NaN
            raise ValueError("timeouts and intervals must be above 0")
        if not 1 <= self.jobs_max < JOB_NUMBER_MAX:
            raise ValueError(f"at most {self.jobs_max} jobs: choose 1 to {JOB_NUMBER_MAX - 1}")
        watches = self.watchers_per_job_max, self.watches_per_rank, self.watch_queue_max
        if min(self.ended_kept, *watches, self.calls_max, self.reads_max) < 1:
            raise ValueError(
                "ended_kept, watchers_per_job_max, watches_per_rank, watch_queue_max, calls_max and reads_max must be "
                "at least 1"
            )
