"""`inagg experiment`: carry out one claim of the papers, or all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import registry
from .model import Plot, Run
from .page import Record, expected, record, shown, write

ALL = "all"
ONE_COUNT = ("end-to-end", "digits")


@click.command()
@click.argument("name", type=click.Choice([*registry.MODULES, ALL]), metavar="NAME")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, (1 << 32) - 1), help="Of all randomness.")
@click.option(
    "--workers", multiple=True, type=click.IntRange(1, 32), help="How many; repeatable where several compare."
)
@click.option("--seeds", type=click.IntRange(1), help="How many trainings, where some are averaged.")
@click.option("--dim", type=click.IntRange(8), help="Elements of the vectors.")
@click.option("--tiny", is_flag=True, help="In seconds, to see it run: its figures mean little.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for each figure.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write plots, results.json and README.md here; other experiments' results there stay.",
)
def experiment(
    name: str,
    seed: int,
    workers: tuple[int, ...],
    seeds: int | None,
    dim: int | None,
    tiny: bool,
    as_json: bool,
    out: Path | None,
) -> int:
    """Carry out one experiment on the papers' claims, or "all", and compare with the references.

    Exit status 1 if a figure is not within its tolerance.

    \b
    NAME is one of
      second-moment        natural compression's second moment, exactly
      re-encoding          the switch's re-encoding is natural compression, exactly
      natural-dithering    natural dithering = C_nat after standard dithering, exactly
      dithering-variance   variance of standard and natural dithering
      mem-sgd              SGD with memory against SGD
      parallel-mem-sgd     lock-free processes with memory
      terngrad             TernGrad through the switch against float32
      diana                DIANA+ with varying steps against DIANA
      block-quantization   where block quantization wins, and where not
      end-to-end           two-way natural compression through the switch
      noise                the noise terms alpha and beta, and measured noise
      smoothness           smoothness-aware methods on real data
      compressors          each compressor's error and bits, from real packets
      digits               all compressors at equal bytes
      all                  all of them
    """
    asked = {"workers": workers, "seeds": seeds, "dim": dim}
    check_options(name, asked)
    if name in ONE_COUNT and len(workers) > 1:
        raise click.UsageError(f"{name} has one number of workers, not {len(workers)}")
    console = Console(stderr=True)
    names = list(registry.MODULES) if name == ALL else [name]
    records: list[Record] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=as_json) as progress:
        for each in names:
            found = registry.load(each)
            task = progress.add_task(each, total=1.0)

            def tell(share: float, doing: str, task: TaskID = task, each: str = each) -> None:
                progress.update(task, completed=share, description=f"{each}: {doing}")

            start_s = cpu_s()
            outcome = found.run(Run(seed, tiny, workers, seeds, dim, tell))
            records.append(record(found, outcome, seed, cpu_s() - start_s))
            progress.update(task, completed=1.0, description=each)
            if as_json:
                for figure in records[-1]["figures"]:
                    click.echo(json.dumps(figure))
            else:
                Console().print(table(records[-1]))
            if out is not None:
                draw_all(outcome.plots, out)
                write(records[-1:], list(registry.MODULES), out)
    missed = sum(not figure["within_tolerance"] for r in records for figure in r["figures"])
    if missed and not as_json:
        console.print(f"{missed} figure(s) not within tolerance")
    return 1 if missed else 0


def check_options(name: str, asked: Mapping[str, object]) -> None:
    """Raises click.UsageError for options that the experiment would not heed."""
    for option in (option for option, value in asked.items() if value):
        takers = [each for each in registry.MODULES if option in registry.load(each).takes]
        if name not in takers:
            raise click.UsageError(f"--{option} is not for {name}: it is for {', '.join(takers)}")


def cpu_s() -> float:
    """CPU time of this process and of its children that have ended, the switches among them."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def table(r: Record) -> Table:
    """The figures, for people."""
    result = Table(title=r["title"], caption=r["paper"], title_justify="left", caption_justify="left")
    for column in ("figure", "reference", "from", "measured", "tolerance", "within"):
        result.add_column(column, justify="left" if column == "figure" else "right", overflow="fold")
    for figure in r["figures"]:
        numbers = (expected(figure), figure["source"], shown(figure["measured"]), shown(figure["tolerance"]))
        name = figure["figure"] + (f" ({figure['unit']})" if figure["unit"] else "")
        result.add_row(name, *numbers, "yes" if figure["within_tolerance"] else "NO")
    return result


def draw_all(plots: Sequence[Plot], out: Path) -> None:
    """The plots as SVG files in the folder ``out``, which is made."""
    from .pictures import draw

    out.mkdir(parents=True, exist_ok=True)
    for plot in plots:
        draw(plot, out / f"{plot.name}.svg")
