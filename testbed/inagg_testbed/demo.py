"""`inagg demo`: train a real model with its gradients summed in the network, then with Gloo, and compare.

With a P4 switch in the middle the same training runs over the software switch too, and must end with the same bits.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inagg_wire.formats import FORMATS
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500

from .demo_training import WORKERS_MAX, Outcome, run_training
from .option_types import NewFile
from .report.demo import demo_report, measure_throughput, why_no_report
from .testbed.options import check_place, place_options, places
from .topology import open_topology, start_target

REPORT = "inagg-demo.html"
SEED = 1
NAMES: Final = {"soft": "switch", "tree": "tree", "bmv2": "bmv2", "gloo": "Gloo"}


@click.command()
@click.option(
    "--workers", default=4, show_default=True, type=click.IntRange(2, WORKERS_MAX), help="Processes; up to 32 a rack."
)
@place_options
@click.option("--epochs", default=6, show_default=True, type=click.IntRange(1), help="Passes over the digits.")
@click.option("--format", "format_", default="nat8", show_default=True, type=click.Choice(list(FORMATS)))
@click.option(
    "--target",
    default="soft",
    show_default=True,
    type=click.Choice(["soft", "bmv2"]),
    help="The switch. bmv2 needs simple_switch_grpc and root, and is compared with the software switch as well.",
)
@click.option("--gloo/--no-gloo", default=True, show_default=True, help="Train with Gloo too, to compare.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The HTML file to write. [default: {REPORT}; with --json none]",
)
@click.option(
    "--record",
    type=NewFile(),
    help="Keep what the software switch takes in and gives out, for `inagg replay FILE`.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def demo(
    workers: int,
    link: str | None,
    racks: int,
    trunk: str | None,
    epochs: int,
    format_: str,
    target: str,
    gloo: bool,
    report: Path | None,
    record: Path | None,
    as_json: bool,
) -> None:
    """Train a small CNN on handwritten digits, its gradients summed by a switch on this machine.

    Starts `inagg switch` and the worker processes, trains with DistributedDataParallel over the switch, then the same
    with Gloo, and compares them. Needs no GPU, and root for links only; everything has ended when it returns.

    With --racks the workers of each rack have a switch of their own, a leaf, and the one in the middle adds up what the
    leaves send: a tree of switches.

    Writes a report with pictures, for which it measures some all-reduces too (if matplotlib is there).
    """
    check_place(workers, link, racks, trunk, target)
    if report is None and not as_json:
        report = Path(REPORT)
    no_report = why_no_report(report)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    outcomes, histories = [], []
    throughput: list[dict[str, Any]] = []

    def train(*arguments: Any) -> None:
        outcome, history = run_training(*arguments)
        outcomes.append(outcome)
        histories.append(history)

    options: dict[str, Any] = {"format": format_}
    where = places(link, racks, trunk)
    system, middle = ("tree", f"a tree of {1 + racks} switches") if racks else ("soft", "a switch")
    with Progress(*columns, console=console, disable=as_json) as progress:
        if target == "bmv2":
            from inagg_switch.p4.program import BMV2_WINDOW

            from . import bmv2

            # The noise of a switch depends on slots, so the same numbers for both switches, seed and all.
            options |= {"lanes": bmv2.LANES, "window": BMV2_WINDOW, "seed": SEED}
            with (
                open_topology(workers, link or "none", wiring="ports", made_by="inagg demo") as topology,
                start_target(target, topology, ["--program", bmv2.program_for(format_)]) as running,
            ):
                if not as_json:
                    console.print(f"a bmv2 switch, {workers} workers in namespaces, a CNN on scikit-learn's digits")
                train(target, topology, epochs, options, progress, running)
        # In datagrams as a network has them, though it is loopback: so that the bytes are those of a network, too.
        given = ["--datagram-bytes", str(UDP_PAYLOAD_BYTES_1500)]
        given += [] if record is None else ["--record", str(record.absolute())]
        with open_topology(workers, link, racks=racks, trunk=trunk, made_by="inagg demo") as topology:
            with start_target("soft", topology, given) as running:
                if not as_json:
                    what = f"{middle} on {running.control}, {workers} workers {where}"
                    console.print(f"{what}, a CNN on scikit-learn's digits")
                train(system, topology, epochs, options, progress, running)
            if gloo:
                train("gloo", topology, epochs, {}, progress)
        if gloo and report is not None and no_report is None:
            task = progress.add_task("all-reduces of several sizes", total=None)
            throughput = measure_throughput(workers, format_, link, racks, trunk)
            progress.update(task, total=1, completed=1)
    place: dict[str, Any] = {"link": link} if link else {}
    place |= ({"racks": racks} | ({"trunk": trunk or link} if link else {})) if racks else {}
    if as_json:
        for outcome in outcomes:
            click.echo(json.dumps({"bench": "demo", "workers": workers} | place | asdict(outcome)))
    else:
        Console().print(table(outcomes, f"{workers} workers" + (f" in {racks} racks" if racks else "")))
    if report is not None:
        if no_report is None:
            path = demo_report(
                report, [asdict(o) for o in outcomes], histories, f"{workers} workers {where}", throughput
            )
            click.echo(f"report: {path}", err=as_json)
        else:
            click.echo(f"no report: {no_report}", err=True)
    if record is not None:
        from .replay.recording import add_note

        add_note(record, {"command": ["inagg", "demo"], "setup": f"{workers} workers {where}, target soft"})
        click.echo(f"recorded: {record}; look at it again: inagg replay {record}", err=as_json)
    if not all(outcome.same_parameters for outcome in outcomes):
        raise click.ClickException("the workers did not end with the same parameters")
    if len({outcome.parameters for outcome in outcomes if outcome.system != "gloo"}) > 1:
        raise click.ClickException(f"{target} and the software switch did not end with the same parameters")


def table(outcomes: list[Outcome], workers: str) -> Table:
    """The comparison, for people."""
    result = Table(
        title=f"{workers}, {outcomes[0].steps} steps of a CNN on 8x8 digits",
        caption="bytes: sent by one worker; equal: all workers ended with the same parameters, bit for bit",
    )
    for name in ("sums by", "numbers", "accuracy", "ms/step", "bytes/step up", "share", "equal"):
        result.add_column(name, justify="right")
    reference = outcomes[-1].bytes_up_per_step
    for outcome in outcomes:
        share = f"{outcome.bytes_up_per_step / reference:.0%}" if len(outcomes) > 1 else ""
        result.add_row(
            NAMES[outcome.system],
            outcome.format,
            f"{outcome.accuracy:.2%}",
            f"{outcome.step_ms:.1f}",
            f"{outcome.bytes_up_per_step:,.0f}",
            share,
            "yes" if outcome.same_parameters else "NO",
        )
    return result
