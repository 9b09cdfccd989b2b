"""`inagg bench step`: options in, lines, a table or a report out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from inagg_switch.cli.sections import all_of
from inagg_wire.formats import CHILDREN_MAX

from ..option_types import NOT_NEGATIVE, POSITIVE, LinkRate, formats_option, json_option
from ..profiles import NAMES, profile
from ..progress import said
from ..report.option import report_option
from ..result_setup import setup
from ..tables import console, print_table

if TYPE_CHECKING:
    from ..profiles.compute import Compute
    from .step import StepLine


compute_options = all_of(
    click.option("--batch", type=click.IntRange(1), help="Examples per worker and step. [default: by model]"),
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
    help="Links of workers, such as 1gbit (repeatable; root). [default: loopback]",
)
@click.option("--workers", default=8, show_default=True, type=click.IntRange(2, CHILDREN_MAX), help="Worker processes.")
@formats_option()
@click.option("--against", type=click.Choice(["gloo"]), help="Measure this too, in the same processes, in turns.")
@compute_options
@click.option("--steps", default=5, show_default=True, type=click.IntRange(1), help="Steps; the median counts.")
@report_option
@json_option()
def step(
    models: Sequence[str], links: Sequence[str], workers: int, formats: Sequence[str], against: str | None,
    batch: int | None, compute_ms: float | None, compute_rate: float | None, steps: int, report: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Measure the time of a training step with the gradients of real networks.

    Buckets of the sizes that DistributedDataParallel makes go through the communication hook, each when the backward
    pass would have made it. Computation itself is slept through: for as long as it took when it was measured on this
    machine (the first time that takes a minute; it is kept), or as long as --compute-ms or --compute-rate assume.
    Optimizer steps are not included.
    """
    from .step import as_line, bench_step
    from .step_ranks import disturbance

    check_compute(compute_ms, compute_rate)
    lines: list[StepLine] = []
    computes = []
    try:
        with said() as say:
            for model in models:
                say(f"computation of {model}")
                computes.append((model, compute_of(model, batch, compute_ms, compute_rate)))
            for link in links or (None,):
                for line in bench_step(
                    computes, link, workers, formats, gloo=against == "gloo", steps=steps, progress=say
                ):
                    lines.append(line)
                    if as_json:
                        click.echo(json.dumps(as_line(line) | setup()))
    finally:
        if lines and not as_json:  # also of what is broken off
            print_steps(console(), lines)
            for model, compute in computes:
                click.echo(f"{model}: computation {compute.seconds * 1e3:,.0f} ms, {compute.source}")
            if warning := disturbance(max(line.foreign_load for line in lines)):
                click.echo(f"Warning: {warning}", err=True)
    if report is not None:
        from ..report.benches import step_report

        click.echo(f"report: {step_report(report, lines)}", err=as_json)


def print_steps(out: Console, lines: Sequence[StepLine]) -> None:
    """The comparison, for people."""
    columns = ("model", "link", "numbers", "step ms", "alone", "share", "less", "limit")
    rows = [
        (
            line.model,
            line.link,
            "Gloo" if line.system == "gloo" else line.format,
            f"{line.step_s * 1e3:,.0f}",
            f"{line.communication_s * 1e3:,.0f}",
            f"{line.link_share:.0%}" if line.link_share is not None else "",
            f"{line.reduction:.0%}" if line.reduction is not None else "",
            line.limit,
        )
        for line in lines
    ]
    title = f"a training step, {lines[0].workers} workers"
    caption = "alone: communication without computation, and its share of the link; limit: what a step waits for"
    print_table(out, title, columns, rows, keys=3, left=columns[:3], caption=caption)
