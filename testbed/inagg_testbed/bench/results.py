"""Results of a benchmark, a dictionary for each row: a table for people, lines of JSON for programs, and a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from ..option_types import json_option
from ..progress import Doing, measuring
from ..report.option import report_option
from ..result_setup import setup
from ..tables import console, print_table

Line = dict[str, Any]
Column = tuple[str, Callable[[Line], str]]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Bars:
    """The picture of a report: a bar for each row that has this number."""

    axis: str
    """Name of the number, with its unit."""
    value: Callable[[Line], float | None]


@dataclass(frozen=True, slots=True)
class Table:
    """Table of a benchmark, for people. The first ``keys`` of the columns say what a row is about; ``left``,
    ``caption``: as `print_table` takes them."""

    title: str
    columns: Sequence[Column]
    bars: Bars
    keys: int = 1
    left: Sequence[str] = ()
    caption: str | None = None

    def rows(self, lines: Iterable[Line]) -> list[list[str]]:
        """Their texts, column by column."""
        return [[text(line) for _, text in self.columns] for line in lines]

    def print(self, lines: Iterable[Line], whole: bool = True) -> None:
        """To standard output; ``whole``: nothing is missing."""
        title = self.title if whole else f"{self.title} (broken off)"
        names = [name for name, _ in self.columns]
        print_table(console(), title, names, self.rows(lines), self.keys, self.left, self.caption)


def output_options(command: F) -> F:
    """Where results go, the same for all benchmarks: --report FILE and --json, as ``report`` and ``as_json``."""
    return report_option(json_option()(command))


def number_text(number: float) -> str:
    """Without places, unless there is too little for that."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def print_json(line: Line) -> None:
    """A line, with `setup`."""
    click.echo(json.dumps(line | setup()))


def show(measure: Callable[[Doing], Iterable[Line]], table: Table, *, total: int, as_json: bool) -> list[Line]:
    """Print what ``measure`` gives, as it comes (JSON) or as a table, and return it; meanwhile progress is on standard
    error. ``measure`` is given what to tell before each of its ``total`` measurements."""
    shown = []
    whole = False
    try:
        with measuring(total, as_json) as doing:
            for line in measure(doing):
                shown.append(line)
                if as_json:
                    print_json(line)
        whole = True
    finally:
        # What took minutes is not lost where the next row fails, or is waited for no longer.
        if not as_json and (whole or shown):
            table.print(shown, whole)
    return shown


def write_report(
    report: Path | None, lines: Sequence[Line], table: Table, *, as_json: bool,
    make: Callable[[Path], Path] | None = None,
) -> None:  # fmt: skip
    """The file of --report, if it was asked for, and where it is. ``make``: writes it, where a benchmark has more to
    show than its table and `Bars`."""
    from ..report.benches import bench_report

    if report is not None:
        path = bench_report(report, lines, table) if make is None else make(report)
        click.echo(f"report: {path}", err=as_json)
