"""`inagg experiment`: carry out one claim of the papers, or all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from inagg_switch.cli.sections import Whole
from inagg_switch.text import count_text

from ..new_folder import NewSubfolder
from ..option_types import json_option, seeds_option
from ..progress import Steps
from ..report.option import drawable
from ..result_setup import setup
from ..tables import console, print_table
from . import registry
from .model import Plot, Run, SettingsError
from .page import Record, expected, record, shown, stored, write
from .registry import EXPERIMENTS

ALL = "all"
LIST = "\n".join(f"  {name:<18}  {listed.line}" for name, listed in EXPERIMENTS.items())
WITHIN = {True: "yes", False: "NO", None: "-"}


@click.command(epilog=f"\b\nNAME is one of\n{LIST}\n  {ALL:<18}  all of them\n")
@click.argument("name", type=click.Choice([*EXPERIMENTS, ALL]), metavar="NAME")
@click.option(
    "--seed",
    default=1,
    show_default=True,
    type=Whole(0, (1 << 32) - 1),
    help="What all that is random follows from.",
)
@click.option("--workers", multiple=True, type=Whole(1, 32), help="How many; repeatable where several compare.")
@seeds_option("the experiment's")
@click.option("--dim", type=Whole(8), help="Elements of the vectors.")
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A LIBSVM file of two classes, in the place of the experiment's own data.",
)
@click.option(
    "--tiny", is_flag=True, help="Small, to see in seconds that it works: its figures are compared with nothing."
)
@json_option("One JSON object a line, for each figure.")
@click.option(
    "--out",
    type=NewSubfolder(),
    callback=drawable,
    help="Write plots, results.json and README.md here; other experiments' results there stay.",
)
def experiment(
    name: str,
    seed: int,
    workers: tuple[int, ...],
    seeds: int | None,
    dim: int | None,
    data: Path | None,
    tiny: bool,
    as_json: bool,
    out: Path | None,
) -> int:
    """Carry out one experiment on the papers' claims, or all of them, and compare figures with their references.

    Exit status 1 if a figure is not within its tolerance. References that are our own are not compared where --workers,
    --dim or --data change what they were measured on.
    """
    check_options(name, {"workers": workers, "seeds": seeds, "dim": dim, "data": data})
    check_count(name, workers)
    if out is not None:
        try:
            stored(out)  # before the work
        except SettingsError as error:
            raise click.UsageError(str(error)) from None
    names = list(EXPERIMENTS) if name == ALL else [name]
    records: list[Record] = []
    with Steps(as_json) as progress:
        for each in names:
            found = registry.load(each)
            task = progress.task(each if len(names) == 1 else f"{each} ({1 + len(records)} of {len(names)})")
            start_s = cpu_s()
            settings = Run(seed, tiny, workers, seeds, dim, data, task.reach)
            try:
                outcome = found.run(settings)
            except SettingsError as error:
                raise click.UsageError(str(error)) from None
            records.append(record(found, outcome, settings, cpu_s() - start_s))
            task.end()
            if as_json:
                for figure in records[-1]["figures"]:
                    click.echo(json.dumps(figure | setup()))
            else:
                print_figures(records[-1])
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                write(records[-1:], list(EXPERIMENTS), out)  # first: no picture that fails takes them along
                draw_all(outcome.plots, out)
    verdicts = [figure["within_tolerance"] for r in records for figure in r["figures"]]
    if not as_json:
        print_verdicts(verdicts, tiny)
    return 1 if False in verdicts else 0


def print_verdicts(verdicts: Sequence[bool | None], tiny: bool) -> None:
    """Say how many figures were compared with nothing, and how many are not what they should be."""
    if None in verdicts:
        click.echo(
            f"{count_text(verdicts.count(None), 'figure')} compared with nothing: {why_not_compared(tiny)}", err=True
        )
    if False in verdicts:
        click.echo(f"{count_text(verdicts.count(False), 'figure')} not within tolerance", err=True)


def why_not_compared(tiny: bool) -> str:
    """In words."""
    return (
        "a tiny run reaches no reference" if tiny else "our own references are for the experiment's own sizes and data"
    )


def check_options(name: str, asked: Mapping[str, object]) -> None:
    """Raises click.UsageError for options that the experiment would not heed, or not both."""
    for option in (option for option, value in asked.items() if value):
        takers = [each for each, listed in EXPERIMENTS.items() if option in listed.takes]
        if name not in takers:
            raise click.UsageError(f"--{option} is not for {name}: it is for {', '.join(takers)}")
    if asked["dim"] and asked["data"]:
        raise click.UsageError("--dim and --data exclude each other: a file has as many features as it has")


def check_count(name: str, workers: Sequence[int]) -> None:
    """Raises click.UsageError for several numbers of workers where the experiment has one."""
    if name != ALL and EXPERIMENTS[name].one_count and len(workers) > 1:
        raise click.UsageError(f"{name} has one number of workers, not {len(workers)}")


def cpu_s() -> float:
    """CPU time of this process and of its children that have ended, the switches among them."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def print_figures(r: Record) -> None:
    """Print a table of the figures, for people."""
    columns = ("figure", "reference", "from", "measured", "tolerance", "within")
    rows = [
        (
            figure["figure"] + (f" ({figure['unit']})" if figure["unit"] else ""),
            expected(figure),
            figure["source"],
            shown(figure["measured"]),
            shown(figure["tolerance"]),
            WITHIN[figure["within_tolerance"]],
        )
        for figure in r["figures"]
    ]
    print_table(console(), r["title"], columns, rows, left=("figure", "from"), caption=r["paper"])


def draw_all(plots: Sequence[Plot], out: Path) -> None:
    """The plots as SVG files in the folder ``out``."""
    from .pictures import draw

    for plot in plots:
        draw(plot, out / f"{plot.name}.svg")
