"""`inagg bench stages`: options in, lines or a table out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from inagg_wire.formats import CHILDREN_MAX, job_format

from ..option_types import formats_option, json_option
from .results import Column, show


@click.command()
@click.option("--workers", default=4, show_default=True, type=click.IntRange(1, CHILDREN_MAX), help="How many.")
@formats_option()
@json_option()
def stages(workers: int, formats: Sequence[str], as_json: bool) -> None:
    """Measure what each stage of the software switch costs, on one core.

    A round is one batch from every worker and one result to each. The last column is the rate that the stages together
    would allow one core.
    """
    from .stages import bench_stages

    def lines() -> Iterable[dict[str, Any]]:
        for name in formats:
            yield from bench_stages(job_format(name), workers, job_format(name).max_lanes(workers))

    columns: list[Column] = [
        ("format", lambda r: r["format"]),
        ("stage", lambda r: r["stage"]),
        ("us a batch", lambda r: f"{r['us_per_batch']:.1f}"),
        ("share", lambda r: f"{r['share_of_round']:.0%}"),
        ("M elements/s", lambda r: f"{r['elements_per_s'] / 1e6:,.0f}"),
    ]
    show(lines(), columns, as_json, f"stages of the software switch, {workers} workers", keys=2)
