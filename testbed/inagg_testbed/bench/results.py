"""Results of a benchmark, a dictionary for each row, for people (a table) and for programs (lines of JSON)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from ..progress import Steps
from ..tables import console, print_table

Column = tuple[str, Callable[[dict[str, Any]], str]]


def number_text(number: float) -> str:
    """Without places, unless there is too little for that."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def show(
    lines: Iterable[dict[str, Any]], columns: Sequence[Column], as_json: bool, title: str, keys: int = 1
) -> list[dict[str, Any]]:
    """Print results as they come (JSON) or as a table (see `print_table`), with progress meanwhile on standard error;
    returns them."""
    shown = []
    if as_json:
        for line in lines:
            shown.append(line)
            click.echo(json.dumps(line))
        return shown
    whole = False
    try:
        with Steps() as progress:
            task = None if isinstance(lines, list) else progress.task("measuring")  # a list has been measured
            for line in lines:
                shown.append(line)
                if task is not None:
                    task.step(f"{len(shown)} rows")
            if task is not None:
                task.end()
        whole = True
    finally:
        if whole or shown:  # what took minutes is not lost where the next row fails, or is waited for no longer
            rows = [[text(line) for _, text in columns] for line in shown]
            names = [name for name, _ in columns]
            print_table(console(), title if whole else f"{title} (broken off)", names, rows, keys)
    return shown
