"""`inagg why JOB`: which slots wait for which ranks and for how long, who is missing and who is silent."""

from __future__ import annotations

import json
import time
from typing import Final

from rich.console import Console

from inagg_proto.v1 import control_pb2 as pb

from ..control.policy import HEARTBEATS_PER_LIMIT
from ..control.text import count_text, ranks_text
from ..service.control_client import ControlClient
from .plain import plain
from .terminal_tables import console, table
from .words import age_text, members_text, state_text

EXIT_MOVES: Final = 0
EXIT_WAITS: Final = 1
EXIT_OVER: Final = 3
"""Exit status: the job runs and nothing waits; something waits; the job is over. 2: the switch cannot be asked."""


def show_why(
    client: ControlClient, job: str, *, as_json: bool, slots: int, over_s: float, watch: bool, interval_s: float
) -> int:
    """Print what ``job`` waits for; the exit status. ``watch``: again and again, until the job is over or Ctrl-C."""
    out = console()
    status = EXIT_MOVES
    try:
        while True:
            reply = client.why(job, slots)
            status = verdict(reply, over_s)
            if as_json:
                print(json.dumps({**plain(reply), "status": status, "verdict": VERDICTS[status]}), flush=True)
            else:
                if watch and out.is_terminal:
                    out.clear()
                print_why(out, reply, over_s)
            if not watch or status == EXIT_OVER:
                return status
            time.sleep(interval_s)
            if not as_json and not out.is_terminal:
                out.print()
    except KeyboardInterrupt:
        if watch:
            return status
        raise


VERDICTS: Final = {EXIT_MOVES: "moves", EXIT_WAITS: "waits", EXIT_OVER: "over"}


def verdict(reply: pb.WhyResponse, over_s: float) -> int:
    """The exit status. A slot that waits for less than ``over_s`` is in flight: in a job that runs, some always are."""
    if reply.HasField("ended"):
        return EXIT_OVER
    if reply.job.state != pb.JOB_STATE_RUNNING or silent_ranks(reply.job):
        return EXIT_WAITS
    return EXIT_WAITS if oldest_s(reply) >= over_s else EXIT_MOVES


def silent_ranks(job: pb.Job) -> list[int]:
    """Ranks that should heart-beat and have missed more than one of their heartbeats."""
    limit_s = 2 * job.spec.heartbeat_limit_s / HEARTBEATS_PER_LIMIT
    beating = (pb.MEMBER_STATE_ACTIVE, pb.MEMBER_STATE_BETWEEN)
    return [member.rank for member in job.members if member.state in beating and member.silent_s > limit_s]


def oldest_s(reply: pb.WhyResponse) -> float:
    """How long the oldest slot waits; 0 if none does."""
    return max((wait.waiting_s for wait in reply.slots), default=0.0)


def print_why(out: Console, reply: pb.WhyResponse, over_s: float) -> None:
    """The answer for people."""
    status = verdict(reply, over_s)
    if reply.HasField("ended"):
        ended = reply.ended
        out.print(f"Job {ended.name} is over, since {age_text(ended.ago_s)}: {ended.text}.", soft_wrap=True)
        return
    job = reply.job
    epoch = f", epoch {job.epoch} for {age_text(job.epoch_age_s)}" if job.state == pb.JOB_STATE_RUNNING else ""
    out.print(
        f"Job {job.spec.name}: {state_text(job.state)}{epoch}; {job.spec.workers} workers "
        f"({members_text(job.members)}), {job.spec.format}"
    )
    oldest = oldest_s(reply)
    if status == EXIT_MOVES:
        if reply.slots_waiting:
            slots = count_text(reply.slots_waiting, "slot")
            out.print(f"Nothing waits; {slots} in flight, the oldest for {age_text(oldest)}.")
            return
        for sentence in reply.text:
            out.print(sentence, soft_wrap=not out.is_terminal)
        return
    for sentence in reply.text:
        out.print(f"- {sentence}", soft_wrap=not out.is_terminal)
    if reply.ranks and oldest >= over_s:
        out.print()
        out.print(table(("RANK", ">SLOTS", ">OLDEST", ">LAST CONTRIBUTION", ">LAST HEARD"), _rank_rows(reply)))
    if reply.slots and oldest >= over_s:
        out.print()
        rows = [
            (str(w.shard), str(w.slot), str(w.generation), age_text(w.waiting_s), ranks_text(w.missing))
            for w in reply.slots
        ]
        out.print(table(("SHARD", ">SLOT", ">GENERATION", ">WAITS", "FOR"), rows, fold=["FOR"]))
        more = reply.slots_waiting - len(reply.slots)
        if more > 0:
            out.print(f"... and {count_text(more, 'slot')} that wait for less long (--slots N lists N)")


def _rank_rows(reply: pb.WhyResponse) -> list[tuple[str, ...]]:
    return [
        (
            str(wait.rank),
            str(wait.slots),
            age_text(wait.longest_s),
            f"{age_text(wait.last_contribution_s)} ago" if wait.HasField("last_contribution_s") else "never",
            f"{age_text(wait.silent_s)} ago",
        )
        for wait in reply.ranks
    ]
