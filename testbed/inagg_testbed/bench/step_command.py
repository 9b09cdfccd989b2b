"""`inagg bench step`: options in, lines, a table or a report out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inagg.extras import require
from inagg_switch.cli.sections import Whole, all_of
from inagg_wire.formats import CHILDREN_MAX

from ..option_types import NOT_NEGATIVE, POSITIVE, LinkRate, formats_option, runs_option
from ..profiles import NAMES, profile
from ..progress import Doing
from .results import Bars, Column, Line, Table, output_options, show, write_report

if TYPE_CHECKING:
    from ..profiles.compute import Compute
    from .step import StepLine


compute_options = all_of(
    click.option("--batch", type=Whole(1), help="Examples per worker and step.  [default: by model]"),
    click.option("--compute-ms", type=NOT_NEGATIVE, help="Assume so many ms for forward and backward."),
    click.option("--compute-rate", type=POSITIVE, help="Assume a worker that computes so many TFLOP/s."),
)
"""How long computation takes."""


def check_compute(compute_ms: float | None, compute_rate: float | None) -> None:
    """Raises click.UsageError for options that contradict one another: asked before anything is measured."""
    if compute_ms is not None and compute_rate is not None:
        raise click.UsageError("--compute-ms and --compute-rate both say how long computation takes: give one of them")


def compute_of(model: str, batch: int | None, compute_ms: float | None, compute_rate: float | None) -> Compute:
    """The computation of a step of ``model`` by these options, which have been checked: assumed if they say how long it
    takes, else measured."""
    from ..profiles.compute import assumed, assumed_rate
    from ..profiles.measured import measured_compute

    examples = batch or profile(model).batch
    if compute_ms is not None:
        return assumed(profile(model), compute_ms / 1e3, f"{compute_ms:g} ms")
    if compute_rate is not None:
        return assumed_rate(profile(model), examples, compute_rate * 1e12)
    return measured_compute(model, examples)


@click.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    default=("resnet50",),
    show_default=True,
    type=click.Choice(NAMES),
    help="Whose gradients (repeatable).",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    type=LinkRate(),
    metavar="RATE",
    help="Rate of each worker's link to the switch (root; repeatable).  [default: loopback]",
)
@click.option("--workers", default=8, show_default=True, type=Whole(2, CHILDREN_MAX), help="How many.")
@formats_option()
@click.option("--against", type=click.Choice(["gloo"]), help="Measure this too, in the same processes, in turns.")
@compute_options
@runs_option(5)
@output_options
def step(
    models: Sequence[str], links: Sequence[str], workers: int, formats: Sequence[str], against: str | None,
    batch: int | None, compute_ms: float | None, compute_rate: float | None, runs: int, report: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Measure the time of a training step with the gradients of real networks.

    Buckets of the sizes that DistributedDataParallel makes go through the communication hook, each when the backward
    pass would have made it. Computation itself is slept through: for as long as it took when it was measured on this
    machine (the first time that takes a minute; it is kept), or as long as --compute-ms or --compute-rate assume.
    Optimizer steps are not included. A run is a step.
    """
    from ..report.benches import step_report
    from .step import as_line, bench_step, runs_of_model
    from .step_ranks import disturbance

    check_compute(compute_ms, compute_rate)
    require("torch", *(["pyroute2"] if links else []))
    found: list[StepLine] = []
    computes: list[tuple[str, Compute]] = []

    def lines(progress: Doing) -> Iterator[Line]:
        for model in models:
            progress(f"computation of {model}")
            computes.append((model, compute_of(model, batch, compute_ms, compute_rate)))
        for link in links or (None,):
            for line in bench_step(
                computes, link, workers, formats, gloo=against == "gloo", runs=runs, progress=progress
            ):
                found.append(line)
                yield as_line(line)

    of_link = 1 + len(models) * runs_of_model(runs, len(formats) + (against is not None))
    total, table = len(models) + max(1, len(links)) * of_link, make_table(workers)
    try:
        measured = show(lines, table, total=total, as_json=as_json)
    finally:
        if found and not as_json:  # also of what is broken off
            for model, compute in computes:
                click.echo(f"{model}: computation {compute.seconds * 1e3:,.0f} ms, {compute.source}")
            if warning := disturbance(max(line.foreign_load for line in found)):
                click.echo(f"Warning: {warning}", err=True)
    write_report(report, measured, table, as_json=as_json, make=lambda path: step_report(path, found))


def make_table(workers: int) -> Table:
    """The comparison, for people."""
    columns: list[Column] = [
        ("model", lambda r: r["model"]),
        ("link", lambda r: r["link"]),
        ("numbers", lambda r: "Gloo" if r["system"] == "gloo" else r["format"]),
        ("step ms", lambda r: f"{r['step_s'] * 1e3:,.0f}"),
        ("alone", lambda r: f"{r['communication_s'] * 1e3:,.0f}"),
        ("share", lambda r: f"{r['link_share']:.0%}" if r["link_share"] is not None else ""),
        ("less", lambda r: f"{r['reduction']:.0%}" if r["reduction"] is not None else ""),
        ("limit", lambda r: r["limit"]),
    ]
    return Table(
        f"a training step, {workers} workers", columns, Bars("ms a step", lambda r: r["step_s"] * 1e3), keys=3,
        left=("model", "link", "numbers"),
        caption="alone: communication without computation, and its share of the link; limit: what a step waits for",
    )  # fmt: skip
