"""`inagg bench recovery`: options in, lines or a table out."""

from __future__ import annotations

import click

from ..extras import MissingExtra, missing, require
from ..option_types import json_option
from ..progress import said
from .options import NameChoice, option_word
from .results import Column, show

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
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Runs of each, in turns.")
@json_option()
def recovery(cases: tuple[str, ...], against: str | None, repeats: int, as_json: bool) -> None:
    """Measure how long training stands still when a process is killed.

    From SIGKILL to the first step that all ranks have done: of the switch, which is started again; of a rank under
    torchrun, which starts all of them again; of one of three nodes under torchrun, without which the others begin
    again; of a torchft replica, without which the others go on; and, from the start of a replica, until it takes part
    (late join). `start` is what it takes of that to start processes, `restarts` how often torchrun started all, and
    `lost` counts the runs in which training did not go on. Medians of the others.
    """
    from .recovery import bench_recovery

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
    with said() as say:
        lines = bench_recovery(cases, [OURS, *([against] if against else [])], repeats, say)
        title = "from SIGKILL to the first step of all"
        measured = show(lines if as_json else list(lines), columns, as_json, title, 2, told=True)
    failed = [line for line in measured if line["system"] == OURS and "failed" in line]
    for line in failed:
        for why, log in zip(line["failed"], line["logs"], strict=True):
            click.echo(f"{line['case']}: {why}; it printed:\n{log}", err=True)
    if failed:
        raise click.exceptions.Exit(1)
