"""`inagg warmup`: compile ahead what first starts compile, for images of containers and shared installations."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

import click
from rich.console import Console

from inagg_host import warmup as host
from inagg_link.first_start import compile_all, telling
from inagg_link.kept_code import describe, place, usable
from inagg_link.source_cache import why_not_kept
from inagg_switch.software import shard as switch
from inagg_wire.formats import FORMATS, job_format

from .bench.children import Child, crew, receive_all
from .option_types import formats_option, json_option

LIMIT_S = 120.0
"""A process that says for so long not even that it compiles is given up."""


@click.command()
@formats_option("Compile the workers' kernels of these formats alone (repeatable)", ())
@json_option("One JSON object.")
def warmup(formats: tuple[str, ...], as_json: bool) -> None:
    """Compile all loops and kernels for this machine, now.

    Else the first switch and the first job do that, which takes them about half a minute, and the first CUDA tensor,
    for which Triton compiles besides, when it is there. What is compiled is kept in NUMBA_CACHE_DIR; else in the
    installed package, for all its users, if you may write there; else in your own cache, for you alone. It is for this
    kind of processor.

    Exit status: 1 if what was compiled cannot be kept, as on a full disk; the error says where.
    """
    began_s = time.monotonic()
    console = Console(stderr=True)
    chosen = formats or tuple(sorted(FORMATS))
    with crew() as children, console.status("compiling, once: the loops of switch and workers"):
        processes = os.cpu_count() or 1
        children += [Child(f"compiler {i}", _compile, chosen, i, processes) for i in range(processes)]
        counts, whys = zip(*receive_all(children, LIMIT_S), strict=True)
    for why in filter(None, whys):
        raise click.ClickException(why)
    functions = sum(counts)
    taken_s = time.monotonic() - began_s
    folders = [place()] if functions else sorted(usable()) or [place()]
    if as_json:
        kept = " and ".join(map(str, folders))
        click.echo(json.dumps({"functions": functions, "seconds": round(taken_s, 1), "cache": kept}))
        return
    kept = " and ".join(map(describe, folders))
    if functions:
        click.echo(f"compiled {functions} functions in {taken_s:.0f} s; they are kept in {kept}")
    else:
        click.echo(f"all was compiled before; it is kept in {kept}")


def _compile(connection: Any, formats: tuple[str, ...], number: int, processes: int) -> None:
    """In a child, one of several ``processes`` that share the work. Sends how many functions it has compiled, and why
    what it compiled is not kept (None: it is)."""
    logging.getLogger("inagg").setLevel(logging.ERROR)  # the parent tells it, once
    of_formats = [unit for name in formats for unit in host.units(job_format(name))]
    units = [*switch.units(), *of_formats, *host.device_units()]
    counts = [0]
    with telling(counts.append):
        compile_all(units, number * len(units) // processes)
    connection.send((None, (counts[-1], why_not_kept())))
