"""`inagg bench stages`: options in, lines or a table out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from inagg_switch.cli.sections import Whole
from inagg_wire.formats import CHILDREN_MAX, job_format

from ..option_types import formats_option, runs_option
from ..progress import Doing
from .results import Bars, Column, Table, output_options, show, write_report


@click.command()
@click.option("--workers", default=4, show_default=True, type=Whole(1, CHILDREN_MAX), help="How many.")
@formats_option()
@runs_option(400)
@output_options
def stages(workers: int, formats: Sequence[str], runs: int, report: Path | None, as_json: bool) -> None:
    """Measure what each stage of the software switch costs, on one core.

    In a round every worker sends a batch of datagrams and gets one of results: `share` is that of a round, so of all
    its batches. Natural formats of up to four workers are kept as they come, and added where they are re-encoded. The
    last column is the rate that the stages together would allow one core.
    """
    from .stages import bench_stages

    def lines(progress: Doing) -> Iterable[dict[str, Any]]:
        for name in formats:
            progress(name)
            yield from bench_stages(job_format(name), workers, job_format(name).max_lanes(workers), runs)

    columns: list[Column] = [
        ("format", lambda r: r["format"]),
        ("stage", lambda r: r["stage"]),
        ("us a batch", lambda r: f"{r['us_per_batch']:.1f}"),
        ("batches a round", lambda r: str(r["batches_per_round"])),
        ("share", lambda r: f"{r['share_of_round']:.0%}"),
        ("M elements/s", lambda r: f"{r['elements_per_s'] / 1e6:,.0f}"),
    ]
    bars = Bars("us a batch", lambda r: r["us_per_batch"])
    table = Table(f"stages of the software switch, {workers} workers", columns, bars, keys=2)
    measured = show(lines, table, total=len(formats), as_json=as_json)
    write_report(report, measured, table, as_json=as_json)
