"""`inagg bench switch`: options in, lines or a table out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from inagg_link.base import MAX_BATCH_DATAGRAMS
from inagg_switch.cli.sections import Whole
from inagg_switch.cli.switch_options import SHARDS_MAX
from inagg_wire.formats import job_format
from inagg_wire.slots import WINDOW_MAX

from ..option_types import formats_option, runs_option, seconds_option
from ..progress import Doing
from .options import check_lanes, counts, workers_option
from .results import Bars, Column, Table, output_options, show, write_report


@click.command()
@workers_option
@formats_option()
@click.option(
    "--lanes", type=Whole(1), help="Elements of a datagram, a multiple of 8.  [default: those of a 1500-byte frame]"
)
@click.option(
    "--shards", default="1", show_default=True, type=counts("shards", SHARDS_MAX),
    help="Data-plane processes; a list.",
)  # fmt: skip
@click.option(
    "--window", default=8, show_default=True, type=Whole(1, WINDOW_MAX // MAX_BATCH_DATAGRAMS),
    help="Batches that a worker keeps in flight.",
)  # fmt: skip
@seconds_option(10.0)
@runs_option(5)
@output_options
def switch(
    workers: Sequence[int], formats: Sequence[str], lanes: int | None, shards: Sequence[int], window: int,
    seconds: float, runs: int, report: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure the software switch: contributions replayed at it over loopback.

    Worker processes send contributions that were made once, under new block numbers, and wait for the results. In
    turns with it, as many run around processes that echo, in Python, datagrams of the same numbers and sizes, and
    compute nothing: `echo` is what these take in, to which the ratio is. Each run takes its part of --seconds.
    """
    from .echo import RAISE_IT
    from .switch import bench_switch

    check_lanes(formats, workers, [] if lanes is None else [lanes])

    cases = [(k, name, n) for k in shards for name in formats for n in workers]

    def lines(progress: Doing) -> Iterable[dict[str, Any]]:
        for k, name, n in cases:
            yield bench_switch(
                job_format(name), n, lanes=lanes, seconds=seconds, runs=runs, shards=k, window=window,
                progress=progress,
            )  # fmt: skip

    columns: list[Column] = [
        ("workers", lambda r: str(r["workers"])),
        ("format", lambda r: r["format"]),
        ("shards", lambda r: str(r["shards"])),
        ("M elements/s", lambda r: f"{r['elements_per_s'] / 1e6:,.0f}"),
        ("M packets/s", lambda r: f"{r['packets_per_s'] / 1e6:.2f}"),
        ("CPU s/G", lambda r: f"{r['cpu_s_per_gelement']:.3f}"),
        ("echo M/s", lambda r: f"{r['echo_elements_per_s'] / 1e6:,.0f}"),
        ("ratio", lambda r: f"{r['ratio_to_echo']:.2f}"),
    ]
    bars = Bars("million elements/s", lambda r: r["elements_per_s"] / 1e6)
    table = Table("software switch over loopback: elements that it takes in", columns, bars, keys=3)
    measured = show(lines, table, total=len(cases) * runs, as_json=as_json)
    if least := [line["window"] for line in measured if line["window"] < window]:
        told = f"the kernel's receive buffers hold {min(least)} batches of a worker, not {window}, and both had so many"
        click.echo(f"{told}; for larger ones: {RAISE_IT}", err=True)
    write_report(report, measured, table, as_json=as_json)
