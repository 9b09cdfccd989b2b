"""Reports of benchmarks: a table and a picture of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..bench.options import size_text
from ..bench.results import Table
from ..bench.step import StepLine
from .history import StepBar, Throughput
from .page import Grid, Picture, Section, about_here, write


def bench_report(path: Path, lines: Sequence[dict[str, Any]], table: Table) -> Path:
    """Write the report of any benchmark: its table, and a bar for each row that has the number that counts; return
    ``path``. Raises ModuleNotFoundError without matplotlib."""
    from . import figures

    rows = table.rows(lines)
    used = [at for at in range(len(table.columns)) if at < table.keys or any(row[at] for row in rows)]
    grid = Grid([table.columns[at][0] for at in used], [[row[at] for at in used] for row in rows])
    values = {at: value for at, line in enumerate(lines) if (value := table.bars.value(line)) is not None}
    pictures = []
    if values:
        names = [", ".join(filter(None, rows[at][: table.keys])) for at in values]
        caption = f"For each row of the table: {table.bars.axis}."
        pictures.append(Picture(figures.bars(names, list(values.values()), table.bars.axis), caption))
    section = Section("Results", table.caption or "", grid, pictures)
    return write(path, table.title, about_here("inagg bench"), [section], {"lines": list(lines)})


def step_report(path: Path, lines: Sequence[StepLine]) -> Path:
    """Write the report of `inagg bench step`; return ``path``. Raises ModuleNotFoundError without matplotlib."""
    from . import figures

    sections = []
    for model in dict.fromkeys(line.model for line in lines):
        mine = [line for line in lines if line.model == model]
        bars = [
            StepBar(
                f"{line.link}, {'Gloo, float32' if line.system == 'gloo' else f'switch, {line.format}'}",
                {
                    "forward": line.forward_s * 1e3,
                    "backward": line.backward_s * 1e3,
                    "communication not hidden": line.exposed_s * 1e3,
                },
            )
            for line in mine
        ]
        caption = f"Where the time of a step of {model} goes, with {mine[0].workers} workers."
        text = f"{mine[0].elements:,} gradients in {mine[0].buckets} buckets. Computation {mine[0].compute}."
        grid = Grid(
            ("link", "numbers", "step, ms", "communication alone, ms", "share of link", "less than Gloo", "limit",
             "MB up, a step", "resent", "round trip, ms"),
            [_step_row(line) for line in mine],
        )  # fmt: skip
        sections.append(Section(model, text, grid, [Picture(figures.breakdown(bars), caption)]))
    return write(
        path, "Time of a training step", about_here("inagg bench step"), sections, {"lines": list(map(asdict, lines))}
    )


def _step_row(line: StepLine) -> list[str]:
    return [
        line.link,
        "Gloo, float32" if line.system == "gloo" else line.format,
        f"{line.step_s * 1e3:,.1f}",
        f"{line.communication_s * 1e3:,.1f}",
        f"{line.link_share:.0%}" if line.link_share is not None else "",
        f"{line.reduction:.1%}" if line.reduction is not None else "",
        line.limit,
        f"{line.wire_bytes_up / 1e6:,.1f}",
        f"{line.resent:,.1f}" if line.system != "gloo" else "",
        f"{line.rtt_s * 1e3:.2f}" if line.system != "gloo" else "",
    ]


def allreduce_points(lines: Sequence[dict[str, Any]]) -> list[Throughput]:
    """The points of lines of `inagg bench allreduce --json`; Gloo was measured beside each format, so in the mean."""
    rates: dict[tuple[str, str, int, int], list[float]] = {}
    for line in lines:
        if "median_s" in line:
            key = line["system"], line["format"], line["workers"], line["elements"]
            rates.setdefault(key, []).append(line["elements_per_s"])
    return [Throughput(*key, statistics.mean(values)) for key, values in rates.items()]


def allreduce_section(lines: Sequence[dict[str, Any]], text: str) -> Section:
    """Throughput by size and number of workers. Raises ModuleNotFoundError without matplotlib."""
    from . import figures

    points = allreduce_points(lines)
    of_system = {"inagg": "ratio_to_gloo", "inagg-tree": "tree_to_gloo"}
    ratios = {
        (system, r["workers"], r["format"], r["elements"]): r[key]
        for system, key in of_system.items() for r in lines if key in r
    }  # fmt: skip
    rows = []
    for line in lines:
        if "median_s" in line:
            ratio = ratios.get((line["system"], line["workers"], line["format"], line["elements"]))
            through = f"{figures.THROUGH[line['system']]}, " if line["system"] in figures.THROUGH else ""
            rows.append(
                [
                    str(line["workers"]),
                    "Gloo, float32" if line["system"] == "gloo" else through + line["format"],
                    size_text(4 * line["elements"]),
                    f"{line['median_s'] * 1e3:,.2f}",
                    f"{line['elements_per_s'] / 1e6:,.0f}",
                    f"{ratio:.2f}" if ratio is not None else "",
                ]
            )
    grid = Grid(("workers", "numbers", "tensor", "ms", "M elements/s", "times as fast as Gloo"), rows)
    caption = (
        "Elements that an all-reduce sums in a second, by size of the tensor and number of workers; both axes are "
        "logarithmic. Tensors are the same in each run (rank r draws with seed r); times are medians and vary from run "
        "to run."
    )
    return Section("Throughput", text, grid, [Picture(figures.throughput(points), caption)])


def allreduce_report(path: Path, lines: Sequence[dict[str, Any]], text: str) -> Path:
    """Write the report of `inagg bench allreduce`; return ``path``."""
    section, about = allreduce_section(lines, text), about_here("inagg bench allreduce")
    return write(path, "All-reduce", about, [section], {"lines": list(lines)}, allreduce_headline(lines))


def allreduce_headline(lines: Sequence[dict[str, Any]]) -> list[str]:
    """The largest tensor, through the switch and with Gloo, as a sentence; none where Gloo was not measured."""
    compared = [line for line in lines if "ratio_to_gloo" in line]
    if not compared:
        return []
    best = max(compared, key=lambda line: (line["elements"], line["workers"]))
    same = [r for r in lines if (r["workers"], r["elements"]) == (best["workers"], best["elements"])]
    ours = next((r for r in same if (r.get("system"), r["format"]) == ("inagg", best["format"])), None)
    theirs = next((r for r in same if r.get("system") == "gloo"), None)
    ratio, what = best["ratio_to_gloo"], f"{size_text(4 * best['elements'])} on {best['workers']} workers"
    speed = f"{ratio:.1f} times as fast" if ratio >= 1 else f"{1 / ratio:.1f} times as slow"
    fewer = ""
    if ours is not None and theirs is not None and theirs.get("wire_bytes_up"):
        fewer = f", with {1 - ours['wire_bytes_up'] / theirs['wire_bytes_up']:.0%} fewer bytes sent"
    return [f"{speed} as Gloo{fewer}: {best['format']}, {what}."]
