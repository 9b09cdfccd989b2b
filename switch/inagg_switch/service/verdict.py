"""Verdict on an answer to Why, in a word: for the exit status of `inagg why`, and for whoever else shows it."""

from __future__ import annotations

from enum import Enum
from typing import Final

from inagg_proto.v1 import control_pb2 as pb

from ..control.policy import HEARTBEATS_PER_LIMIT

IN_FLIGHT_S: Final = 1.0
"""Seconds that a slot may wait before that counts, unless somebody says otherwise: in a job that runs, some always wait
for a moment."""


class Verdict(Enum):
    """State of a job, in a word."""

    MOVES = "moves"
    WAITS = "waits"
    OVER = "over"


def verdict(reply: pb.WhyResponse, over_s: float = IN_FLIGHT_S) -> Verdict:
    """The verdict on the job. A slot that waits for less than ``over_s`` is in flight."""
    if reply.HasField("ended"):
        return Verdict.OVER
    if reply.job.state != pb.JOB_STATE_RUNNING or silent_ranks(reply.job) or reply.silent:
        return Verdict.WAITS
    return Verdict.WAITS if oldest_s(reply) >= over_s else Verdict.MOVES


def silent_ranks(job: pb.Job) -> list[int]:
    """Ranks that should heart-beat and have missed more than one of their heartbeats."""
    limit_s = 2 * job.spec.heartbeat_limit_s / HEARTBEATS_PER_LIMIT
    beating = (pb.MEMBER_STATE_ACTIVE, pb.MEMBER_STATE_BETWEEN)
    return [member.rank for member in job.members if member.state in beating and member.silent_s > limit_s]


def oldest_s(reply: pb.WhyResponse) -> float:
    """Seconds that the oldest slot has waited; 0 if none does."""
    return max((wait.waiting_s for wait in reply.slots), default=0.0)
