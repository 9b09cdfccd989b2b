"""The report of `inagg bench training`: for each task a table, and how the loss falls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .page import Grid, Picture, Section, about_here, write


def training_report(
    path: Path, lines: Sequence[dict[str, Any]], links: Sequence[str],
    columns: Sequence[tuple[str, Callable[[dict[str, Any]], str]]],
) -> Path:  # fmt: skip
    """Returns where it is. Raises ModuleNotFoundError without matplotlib."""
    from . import figures

    sections = []
    for task in dict.fromkeys(line["task"] for line in lines):
        mine = [line for line in lines if line["task"] == task]
        drawn = [line for line in mine if "failed" not in line]
        grid = Grid([name for name, _ in columns], [[text(line) for _, text in columns] for line in mine])
        curves = {line["system"]: _curves(line, links) for line in drawn}
        axes = ["MB sent and received by a worker", *(f"seconds, links of {link}" for link in links)]
        caption = "Loss on what is not trained on, in the mean over seeds, against bytes and against seconds."
        pictures = [Picture(figures.losses(curves, axes), caption)] if drawn else []
        sections.append(Section(task, "", grid, pictures))
    return write(path, "Ways to train", about_here("inagg bench training"), sections, {"lines": list(lines)})


def _curves(line: dict[str, Any], links: Sequence[str]) -> list[tuple[list[float], list[float]]]:
    """Return, for each axis, its values and the losses."""
    steps, losses = [point[0] for point in line["curve"]], [point[1] for point in line["curve"]]
    whole = steps[-1]
    totals = [line[links[0]]["bytes"] / 1e6, *(line[link]["seconds"] for link in links)]
    return [([total * step / whole for step in steps], losses) for total in totals]
