"""`inagg bench training`: options in; a table for each task, a picture, or lines out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from inagg.extras import MissingExtra, missing, require
from inagg_switch.cli.sections import Whole
from inagg_wire.formats import CHILDREN_MAX

from ..option_types import LinkRate, seeds_option
from ..progress import measuring
from .options import NameChoice, option_word
from .results import Bars, Column, Table, output_options, print_json, write_report

TINY_STEPS = 50
SYSTEM_NAMES = (
    "gloo float32", "gloo bf16", "gloo fp16", "gloo PowerSGD 4", "gloo PowerSGD 2", "gloo post-local SGD",
    "gloo DiLoCo", "inagg nat8", "inagg dith8", "inagg nat4", "inagg tern + EF", "gloo FSDP2", "inagg FSDP2 nat8",
    "inagg DiLoCo fix32",
)  # fmt: skip
"""The keys of `training_systems.SYSTEMS`, for which torch need not be imported."""
DILOCO, DILOCO_INAGG = NEEDS_TORCHFT = "gloo DiLoCo", "inagg DiLoCo fix32"


@click.command()
@click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="NAME",
    help="text, digits or cifar (repeatable).  [default: text, digits]",
)
@click.option(
    "--system", "systems", multiple=True, type=NameChoice(SYSTEM_NAMES), metavar="NAME",
    help=f"{', '.join(map(option_word, SYSTEM_NAMES))} (repeatable).  [default: all]",
)  # fmt: skip
@click.option("--workers", default=4, show_default=True, type=Whole(2, CHILDREN_MAX), help="How many.")
@click.option(
    "--link",
    "links",
    multiple=True,
    type=LinkRate(),
    metavar="RATE",
    help="Rate of each worker's link to the switch (root; repeatable).  [default: 1gbit, 100mbit]",
)
@seeds_option("3")
@click.option("--steps", type=Whole(50), help="Steps of a training.  [default: the task's]")
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="CIFAR-10's folder cifar-10-batches-py, for the task cifar.  [default: pictures made here]",
)
@click.option("--tiny", is_flag=True, help="One seed, 50 steps, two systems, one link: to see that it works.")
@output_options
def training(
    tasks: tuple[str, ...], systems: tuple[str, ...], workers: int, links: tuple[str, ...], seeds: int | None,
    steps: int | None, data: Path | None, tiny: bool, report: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure time to a loss and to an accuracy, against what else saves bytes.

    A small transformer on text (the sources of Python's standard library) and a CNN on handwritten digits, or a small
    ResNet on pictures of 32 x 32 (shapes that are made here, or CIFAR-10 from a folder): by Gloo in float32, bfloat16
    and float16, PowerSGD, post-local SGD, FSDP2 and DiLoCo; over the switch by nat8, dith8, nat4, tern, FSDP2 and
    DiLoCo. Each trains to the end with each seed over links without a rate, and its steps are timed over each link, in
    three turns; seconds are steps times what a step takes there. The targets are what Gloo in float32 reached after
    three quarters of its steps. Bytes are a worker's, both ways, with headers. Text and digits with all systems take
    about three quarters of an hour, and so does cifar: name systems, and give it --seeds 1.
    """
    named = any(name in NEEDS_TORCHFT for name in systems)
    require("torch", "sklearn", "pyroute2", *(["torchft"] if named else []))
    from ..report.training import training_report
    from ..training.images import DataError, load_images
    from .training import BROKEN_OFF, Found, bench_training, lines_of, rounds
    from .training_systems import BASELINE
    from .training_tasks import TASKS, USUAL

    for name in tasks:
        if name not in TASKS:
            raise click.UsageError(f"no task {name!r}: {', '.join(TASKS)}")
    tasks = tasks or USUAL
    if data is not None:
        for name in (name for name in tasks if not TASKS[name].data):
            raise click.UsageError(f"--data is not for the task {name}: it is for --task cifar alone")
        try:
            load_images(data)  # before anything starts
        except DataError as error:
            raise click.UsageError(str(error)) from None
    rates = tuple(dict.fromkeys(links)) or (("1gbit",) if tiny else ("1gbit", "100mbit"))
    systems = systems or ((BASELINE, "inagg nat8") if tiny else SYSTEM_NAMES)
    if missing("torchft") and (left_out := [name for name in systems if name in NEEDS_TORCHFT]):
        click.echo(f"not measured: {', '.join(left_out)}: {MissingExtra(['torchft']).message}", err=True)
        systems = tuple(name for name in systems if name not in left_out)
    seeds, steps = seeds or (1 if tiny else 3), steps or (TINY_STEPS if tiny else None)
    found: list[Found] = []
    try:
        with measuring(rounds(rates) * len(systems), as_json) as progress:
            bench_training(found, tasks, systems, rates, workers, seeds, steps, progress, data)
    finally:  # what was measured is not lost if it is broken off
        lines = list(lines_of(found, rates))
        if any("loss" in line or line["failed"] != BROKEN_OFF for line in lines):
            print_lines(lines, rates, workers, as_json)
    of_all = make_table("ways to train", rates)
    write_report(
        report, lines, of_all, as_json=as_json, make=lambda path: training_report(path, lines, rates, of_all.columns)
    )
    if all("failed" in line for line in lines):
        raise click.exceptions.Exit(1)


def print_lines(lines: Sequence[dict[str, Any]], links: Sequence[str], workers: int, as_json: bool) -> None:
    """A table for each task, and why systems failed."""
    if as_json:
        for line in lines:
            print_json(line)
        return
    for task in dict.fromkeys(line["task"] for line in lines):
        make_table(f"{task}, {workers} workers", links).print(line for line in lines if line["task"] == task)
    for system, why in {line["system"]: line["failed"] for line in lines if "failed" in line}.items():
        click.echo(f"{system} failed: {why}")


def make_table(title: str, links: Sequence[str]) -> Table:
    """Return the table of one task."""

    def of_link(link: str) -> list[Column]:
        return [
            (f"ms, {link}", lambda r: _of(r, link, lambda over: f"{over['steady']['seconds'] * 1e3:,.1f}")),
            ("s to loss", lambda r: _of(r, link, lambda over: _seconds(over, "loss"))),
            ("s to accuracy", lambda r: _of(r, link, lambda over: _seconds(over, "accuracy"))),
        ]

    columns: list[Column] = [
        ("system", lambda r: r["system"]),
        ("loss", lambda r: f"{r['loss']:.3f}" if "loss" in r else "failed"),
        ("accuracy", lambda r: f"{r['accuracy']:.1%}" if "accuracy" in r else ""),
        ("bytes a step", lambda r: _of(r, links[0], lambda over: f"{_bytes(over['steady']):,.0f}")),
        *(column for link in links for column in of_link(link)),
    ]
    return Table(title, columns, Bars("loss", lambda r: r.get("loss")))


def _of(line: dict[str, Any], link: str, text: Callable[[dict[str, Any]], str]) -> str:
    """``text`` of what was measured over a link; empty if it was not."""
    return text(line[link]) if link in line else ""


def _seconds(over: dict[str, Any], what: str) -> str:
    key = f"seconds_to_{what}"
    return "" if key not in over else "never" if over[key] is None else f"{over[key]:,.1f}"


def _bytes(phase: dict[str, float]) -> float:
    return phase["bytes_up"] + phase["bytes_down"]
