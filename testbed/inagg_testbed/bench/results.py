"""Results of a benchmark, a dictionary for each row, for people (a table) and for programs (lines of JSON)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import click

from inagg_switch.text import count_text

from ..progress import Steps
from ..result_setup import setup
from ..tables import console, print_table

Column = tuple[str, Callable[[dict[str, Any]], str]]


def number_text(number: float) -> str:
    """Without places, unless there is too little for that."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def show(
    lines: Iterable[dict[str, Any]], columns: Sequence[Column], as_json: bool, title: str, keys: int = 1,
    total: int | None = None, told: bool = False,
) -> list[dict[str, Any]]:  # fmt: skip
    """Print results as they come (JSON, with `setup`) or as a table (see `print_table`), with progress meanwhile on
    standard error; returns them. ``total``: how many there will be, if it is known; ``told``: progress is
    told by whoever measures."""
    shown = []
    whole = False
    try:
        # A list has been measured.
        with nullcontext() if told or isinstance(lines, list) else Steps(as_json) as progress:
            task = None if progress is None else progress.task("measuring", total)
            for line in lines:
                shown.append(line)
                if as_json:
                    click.echo(json.dumps(line | setup()))
                if task is not None:
                    task.step(count_text(len(shown), "row") if total is None else "")
            if task is not None:
                task.end()
        whole = True
    finally:
        # What took minutes is not lost where the next row fails, or is waited for no longer.
        if not as_json and (whole or shown):
            rows = [[text(line) for _, text in columns] for line in shown]
            names = [name for name, _ in columns]
            print_table(console(), title if whole else f"{title} (broken off)", names, rows, keys)
    return shown
