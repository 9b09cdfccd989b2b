"""`inagg why JOB`: which slots wait for which ranks and for how long, who is missing and who is silent."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from inagg_proto.v1 import control_pb2 as pb

from ..service.control_client import ControlCallError, ControlClient
from ..service.plain import plain
from ..service.verdict import Verdict, oldest_s, verdict
from ..text import count_text, ranks_text
from .outage import Outage
from .terminal_tables import console, table
from .words import age_text, members_text, state_text

EXITS: Final = {Verdict.MOVES: 0, Verdict.OVER: 3, Verdict.WAITS: 4}
"""Exit status: the job runs and nothing waits; the job is over; something waits. 1: the switch cannot be asked."""


def show_why(
    client: ControlClient, job: str, *, as_json: bool, slots: int, over_s: float, watch: bool, interval_s: float
) -> int:
    """Print what ``job`` waits for, "": each job that waits (as JSON, each job); the exit status, that of the worst.
    ``watch``: again and again, until the job is over or Ctrl-C, also where the switch does not answer for a while."""
    out, outage, answered = console(), Outage(), False
    status = EXITS[Verdict.MOVES]
    try:
        while True:
            try:
                replies = [client.why(name, slots) for name in ([job] if job else _names(client))]
            except ControlCallError as error:
                if not (watch and answered):
                    raise
                outage.missed(error)
                time.sleep(interval_s)
                continue
            outage.over()
            answered = True
            found = [(reply, verdict(reply, over_s)) for reply in replies]
            status = max((EXITS[of_job] for _, of_job in found), default=EXITS[Verdict.MOVES])
            if as_json:
                for reply, of_job in found:
                    print(json.dumps({**plain(reply), "exit_code": EXITS[of_job], "verdict": of_job.value}), flush=True)
            else:
                with out:  # in one write, as for `inagg jobs`
                    if watch and out.is_terminal:
                        out.clear()
                    print_all(out, found, client.address, over_s)
            if not watch or (job and status == EXITS[Verdict.OVER]):
                return status
            time.sleep(interval_s)
            if not as_json and not out.is_terminal:
                out.print()
    except KeyboardInterrupt:
        if watch:
            return status
        raise


def _names(client: ControlClient) -> list[str]:
    return sorted(job.spec.name for job in client.list().jobs)


def print_all(out: Console, found: Sequence[tuple[pb.WhyResponse, Verdict]], address: str, over_s: float) -> None:
    """The answers of several jobs: only those that wait, but the only one whatever it does."""
    if not found:
        out.print(f"No jobs on the switch at {address}.")
    shown = [reply for reply, of_job in found if of_job is not Verdict.MOVES or len(found) == 1]
    for number, reply in enumerate(shown):
        if number:
            out.print()
        print_why(out, reply, over_s)
    if (well := len(found) - len(shown)) > 0:
        out.print(
            f"{'Nothing waits: ' if not shown else 'In '}{count_text(well, 'job')} "
            f"{'run.' if not shown else 'nothing waits.'}"
        )


def print_why(out: Console, reply: pb.WhyResponse, over_s: float) -> None:
    """The answer for people."""
    if reply.HasField("ended"):
        ended = reply.ended
        out.print(f"Job {ended.name} ended {age_text(ended.ago_s)} ago: {ended.text}.", soft_wrap=True)
        return
    job = reply.job
    epoch = f", epoch {job.epoch} for {age_text(job.epoch_age_s)}" if job.state == pb.JOB_STATE_RUNNING else ""
    out.print(
        f"Job {job.spec.name}: {state_text(job.state)}{epoch}; {job.spec.workers} workers "
        f"({members_text(job.members)}), {job.spec.format}"
    )
    oldest = oldest_s(reply)
    if verdict(reply, over_s) is Verdict.MOVES:
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
