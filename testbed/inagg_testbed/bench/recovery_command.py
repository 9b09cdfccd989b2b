"""`inagg bench recovery`: options in, lines or a table out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from inagg.extras import MissingExtra, missing, require

from ..option_types import runs_option
from ..progress import Doing
from .options import NameChoice, option_word
from .results import Bars, Column, Table, output_options, show, write_report

OURS = "inagg"
SWITCH_RESTART, TORCHRUN_RESTART, TORCHRUN_RESIZE, TORCHFT_CRASH, TORCHFT_JOIN = CASES = (
    "switch restart", "torchrun restart", "torchrun resize", "torchft crash", "torchft late join",
)  # fmt: skip


def needs(case: str) -> list[str]:
    """The optional modules without which it cannot be measured."""
    if case == SWITCH_RESTART:
        return []
    return ["torch", "torchft"] if case in (TORCHFT_CRASH, TORCHFT_JOIN) else ["torch"]


@click.command()
@click.option(
    "--case", "cases", multiple=True, type=NameChoice(CASES), metavar="NAME",
    help=f"{', '.join(map(option_word, CASES))} (repeatable).  [default: all]",
)  # fmt: skip
@click.option("--against", type=click.Choice(["gloo"]), help="Measure what this takes, too.")
@runs_option(3)
@output_options
def recovery(
    cases: tuple[str, ...], against: str | None, runs: int, report: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Measure how long training stands still when a process is killed.

    From SIGKILL to the first step that all ranks have done: of the switch, which is started again; of a rank under
    torchrun, which starts all of them again; of one of three nodes under torchrun, without which the others begin
    again; of a torchft replica, without which the others go on; and, from the start of a replica, until it takes part
    (late join). `start` is what it takes of that to start processes, `restarts` how often torchrun started all, and
    `lost` counts the runs in which training did not go on; medians are of the others.
    """
    from .recovery import bench_recovery, why_not

    if cases:
        require(*{module: None for case in cases for module in needs(case)})
    else:
        cases = tuple(case for case in CASES if not missing(*needs(case)))
        for case in (case for case in CASES if case not in cases):
            click.echo(f"not measured: {case}: {MissingExtra(missing(*needs(case))).message}", err=True)
    columns: list[Column] = [
        ("case", lambda r: r["case"]),
        ("system", lambda r: r["system"]),
        ("seconds", lambda r: f"{r['recovery_s']:.2f}" if "recovery_s" in r else r.get("skipped", "never")),
        ("of which start", lambda r: f"{r['of_which_start_s']:.2f}" if "of_which_start_s" in r else ""),
        ("restarts", lambda r: f"{r['restarts']:g}" if "restarts" in r else ""),
        ("lost", lambda r: f"{len(r['failed'])} of {r['runs']}" if "failed" in r else ""),
    ]
    systems = [OURS, *([against] if against else [])]

    def lines(progress: Doing) -> Iterable[dict[str, Any]]:
        return bench_recovery(cases, systems, runs, progress)

    bars = Bars("seconds", lambda r: r.get("recovery_s"))
    table = Table("from SIGKILL to the first step of all", columns, bars, keys=2)
    total = runs * sum(why_not(case, system) is None for case in cases for system in systems)
    measured = show(lines, table, total=total, as_json=as_json)
    write_report(report, measured, table, as_json=as_json)
    failed = [line for line in measured if line["system"] == OURS and "failed" in line]
    for line in failed:
        for why, log in zip(line["failed"], line["logs"], strict=True):
            click.echo(f"{line['case']}: {why}; it printed:\n{log}", err=True)
    if failed:
        raise click.exceptions.Exit(1)
