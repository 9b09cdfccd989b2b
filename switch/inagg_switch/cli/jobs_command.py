"""`inagg jobs`: what runs on a switch, and what has ended lately."""

from __future__ import annotations

import json
from typing import Final

from rich.console import Console

from inagg_proto.v1 import control_pb2 as pb

from ..service.control_client import ControlClient
from ..service.plain import plain
from .terminal_tables import NAME_COLUMNS, NARROW, columns_that_fit, console, table
from .words import age_text, cause_text, members_text, state_text

ENDED_SHOWN: Final = 5
"""Ended jobs in the table for people; JSON has all that the switch remembers."""


DRAINING: Final = "The switch takes no new jobs; those that run go on."

WIDE_COLUMNS: Final = 110
"""Width from which on all that there is of a job fits one line."""


def show_jobs(client: ControlClient, as_json: bool) -> None:
    """Print the jobs of a switch."""
    reply = client.list()
    if as_json:
        print(json.dumps(plain(reply)))
    else:
        with console() as out:  # in one write, so that `inagg jobs | head -1` is no error
            print_jobs(out, reply, client.address)


def print_jobs(out: Console, reply: pb.ListResponse, address: str) -> None:
    """The jobs as tables."""
    if reply.jobs:
        columns = ["JOB", "STATE", ">WORKERS", "FORMAT", ">LANES", ">WINDOW", ">EPOCH", ">AGE"]
        rows = [_row(job) for job in reply.jobs]
        members = [members_text(job.members) for job in reply.jobs]
        widths = {"JOB": NAME_COLUMNS}
        if out.width >= WIDE_COLUMNS:
            columns.append("MEMBERS")
            rows = [(*row, text) for row, text in zip(rows, members, strict=True)]
            out.print(table(columns, rows, fold=["JOB", "MEMBERS"], widths=widths))
        else:
            fit = columns_that_fit(columns, rows, out.width, widths)
            out.print(table(columns[:fit], [row[:fit] for row in rows], fold=["JOB"], widths=widths))
            out.print(NARROW if fit < len(columns) else "")
            short = [(row[0], text) for row, text in zip(rows, members, strict=True)]
            out.print(table(("JOB", "MEMBERS"), short, fold=["JOB", "MEMBERS"], widths=widths))
    else:
        out.print(f"No jobs on the switch at {address}.")
    if reply.draining:
        out.print(DRAINING)
    threatened = [job for job in reply.jobs if job.HasField("ends_in_s")]
    for job in threatened:
        out.print(f"{job.spec.name} ends in {age_text(job.ends_in_s)} unless its missing ranks come back.")
    if reply.ended:
        out.print()
        rows = [
            (ended.name, str(ended.epoch), f"{age_text(ended.ago_s)} ago", ended.text or cause_text(ended.cause))
            for ended in reply.ended[:ENDED_SHOWN]
        ]
        out.print(
            table(("ENDED", ">EPOCH", ">WHEN", "WHY"), rows, fold=["ENDED", "WHY"], widths={"ENDED": NAME_COLUMNS})
        )
        if len(reply.ended) > ENDED_SHOWN:
            out.print(f"... and {len(reply.ended) - ENDED_SHOWN} before these (--json lists them)")


def _row(job: pb.Job) -> tuple[str, ...]:
    spec = job.spec
    return (
        spec.name,
        state_text(job.state),
        str(spec.workers),
        spec.format,
        str(spec.lanes),
        str(spec.window),
        str(job.epoch),
        age_text(job.age_s),
    )
