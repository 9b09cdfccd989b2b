"""Jobs as people name them: by as much of the name as is unique, and completed by the shell."""

from __future__ import annotations

import difflib
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from inagg_proto.v1 import control_pb2 as pb

from ..defaults import ADDRESS
from ..service.control_client import ControlClient
from .connect import connected
from .words import age_text

NAMES_SHOWN: Final = 8
COMPLETION_S: Final = 2.0
"""Seconds that a shell may stand still."""


class WhichJob(click.ClickException):
    """A typed name fits no job, or several."""


def resolve(client: ControlClient, text: str, ended: bool = False) -> str:
    """The name of the job that is ``text``, or that alone begins with it; ``ended``: or of one that ended lately. Of a
    text that fits none it is returned as it is, for the switch to say so.

    Raises `WhichJob` for a text that fits several, or nearly fits one, or begins the name of one that has ended where
    that is not asked for; `ControlCallError`.
    """
    reply = client.list()
    running, over = [job.spec.name for job in reply.jobs], [job.name for job in reply.ended]
    known = [running, over] if ended else [running]
    if any(text in names for names in known):
        return text
    for names in known:
        found = sorted({name for name in names if name.startswith(text)})
        if len(found) == 1:
            return found[0]
        if found:
            raise WhichJob(f"{len(found)} jobs begin with {text!r}: {_listed(found)}")
    if text not in over and (begun := sorted({name for name in over if name.startswith(text)})):
        raise WhichJob(f"no job that runs begins with {text!r}: {_how_ended(reply, begun)}")
    if near := difflib.get_close_matches(text, running, 1):
        raise WhichJob(f"there is no job {text!r}. Did you mean {near[0]}?")
    return text


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{', '.join(names[:NAMES_SHOWN])}{more}"


def _how_ended(reply: pb.ListResponse, names: list[str]) -> str:
    """Sentences on the jobs of these names, which have ended."""
    if len(names) > 1:
        return f"of those that have ended, {len(names)} do: {_listed(names)}"
    last = next(job for job in reply.ended if job.name == names[0])  # the list has the latest first
    return f"{last.name} ended {age_text(last.ago_s)} ago: {last.text}"


def complete_job(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Called by click for a shell: the jobs of the switch that the line so far names. None if it cannot be asked."""
    names = ("secret_file", "tls_ca", "tls_cert", "tls_key", "tls_name")
    reach: dict[str, Any] = {name: ctx.params.get(name) for name in names}
    reach |= {"switch": ctx.params.get("switch") or ADDRESS, "tls": bool(ctx.params.get("tls"))}
    try:
        with connected(**reach) as client:
            jobs = client.list(timeout_s=COMPLETION_S).jobs
    except click.ClickException:  # what is wrong is told when the command runs
        return []
    return [
        CompletionItem(job.spec.name, help=f"{job.spec.workers} workers, {job.spec.format}")
        for job in jobs
        if job.spec.name.startswith(incomplete)
    ]
