"""The command `inagg doctor`."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from ..option_types import json_option

# gRPC's core prints its own account of a failure, unless it finds this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from ..tables import console
from . import kernel, network, ports, software
from .finding import Finding, Verdict

CHECKS: Final[Sequence[Callable[[], Iterator[Finding]]]] = (
    software.check_python,
    software.check_torch,
    software.check_extras,
    software.check_compiled,
    software.check_temporary,
    software.check_kept,
    software.check_variables,
    kernel.check_processors,
    kernel.check_offloads,
    kernel.check_buffers,
    kernel.check_descriptors,
    kernel.check_reserved_ports,
)
CHECKS_OF_SWITCHES: Final[Sequence[Callable[[Mapping[str, str]], Iterator[Finding]]]] = (
    ports.check_ports,
    network.check_switches,
)
"""Given the variables by which a worker would reach a switch."""
STYLES: Final = {Verdict.OK: "green", Verdict.NOTE: "dim", Verdict.SLOW: "yellow", Verdict.WRONG: "bold red"}


@click.command(
    epilog="""\b
Exit status:
  0  nothing is wrong or slow
  1  something is: each line says what to do about it
"""
)
@click.option(
    "--switch", default="", metavar="HOST:PORT", envvar="INAGG_SWITCH", show_envvar=True,
    help="Look at this one, too; of several, with commas, at each.",
)  # fmt: skip
@json_option("One JSON object: what was found, and the exit status.")
def doctor(switch: str, as_json: bool) -> int:
    """Look at this machine: is anything in the way of fast and correct sums, and what to do about it.

    Versions, compiled code, kernel limits, offloads, ports, and, where there is a --switch, the switch and the way to
    it. It changes nothing; to see whether datagrams pass it runs a job of one rank on the switch for a moment.
    """
    found: list[Finding] = []
    out = console()
    environ = {**os.environ, "INAGG_SWITCH": switch}
    checks: list[Callable[[], Iterator[Finding]]] = [*CHECKS]
    checks += [partial(check, environ) for check in CHECKS_OF_SWITCHES]
    for check in checks:
        for finding in findings_of(check):
            found.append(finding)
            if not as_json:
                show(out, finding)
    bad = sum(finding.bad for finding in found)
    if as_json:
        click.echo(json.dumps({"exit_code": int(bad > 0), "findings": [asdict(finding) for finding in found]}))
    else:
        click.echo("nothing is wrong" if not bad else f"{bad} to mend; after each line with an arrow, what to type")
    return int(bad > 0)


def findings_of(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield those of a check; where a file that it looks at cannot be read, that is one."""
    try:
        yield from check()
    except OSError as error:
        name = getattr(check, "func", check).__name__.removeprefix("check_")
        look = f"ls -ld {shlex.quote(str(error.filename))}" if error.filename else "sudo inagg doctor"
        yield Finding(name, Verdict.WRONG, f"this check could not go on: {error}", look)


def show(out: Console, finding: Finding) -> None:
    """A line, and what to do below it; commands are not broken, so that they can be copied."""
    line = Text.assemble((f"{finding.verdict:<5}", STYLES[finding.verdict]), f"  {finding.check}: {finding.found}")
    out.print(line)
    if finding.do:
        out.print(Text(f"       -> {finding.do}"), soft_wrap=True)
