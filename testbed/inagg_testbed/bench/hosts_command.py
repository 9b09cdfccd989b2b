"""`inagg bench hosts`: options in, lines or a table out."""

from __future__ import annotations

from pathlib import Path

import click

from inagg.extras import require
from inagg_switch.cli.sections import Number, Whole
from inagg_wire.formats import CHILDREN_MAX

from ..option_types import format_option, host_link_option, seconds_option
from .options import SIZES
from .results import Bars, Column, Table, number_text, output_options, show, write_report


@click.command()
@click.option("--hosts", default=4, show_default=True, type=Whole(2, CHILDREN_MAX), help="How many.")
@click.option("--local-size", "local", default=4, show_default=True, type=Whole(1, 8), help="Ranks of each.")
@host_link_option
@format_option
@click.option("--size", "sizes", default="64M", show_default=True, type=SIZES, help="Bytes of float32; a list.")
@seconds_option(6.0, Number(1.0))
@output_options
def hosts(
    hosts: int, local: int, link: str, format_: str, sizes: list[int], seconds: float, report: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Measure hosts of several ranks, such as eight GPUs, with one link each.

    In turns: each host sums inside first (local_size), and its ranks then a part each through the switch; every rank
    sends all that it has to the switch; Gloo. `up` and `down` are bytes on a host's link, with headers; `error` is that
    of the sums, to their norm.
    """
    from .hosts import RUNS_OF_SIZE, bench_hosts

    if hosts * local > 2 * CHILDREN_MAX:
        raise click.UsageError(f"{hosts * local} ranks: {2 * CHILDREN_MAX} are the most on one machine")
    require("torch", "pyroute2")

    columns: list[Column] = [
        ("system", lambda r: r["system"]),
        ("format", lambda r: r["format"]),
        ("KiB", lambda r: number_text(r["elements"] * 4 / 1024)),
        ("ms", lambda r: f"{r['median_s'] * 1e3:,.1f}"),
        ("M elements/s", lambda r: f"{r['elements_per_s'] / 1e6:,.1f}"),
        ("up", lambda r: f"{r['host_bytes_up']:,}"),
        ("down", lambda r: f"{r['host_bytes_down']:,}"),
        ("error", lambda r: f"{r['error']:.1e}"),
        ("to gloo", lambda r: f"{r['ratio_to_gloo']:.2f}"),
    ]
    bars = Bars("million elements/s", lambda r: r["elements_per_s"] / 1e6)
    table = Table(f"{hosts} hosts of {local} ranks, links of {link}", columns, bars, keys=3)
    measured = show(
        lambda progress: bench_hosts(hosts, local, link, format_, sizes, seconds=seconds, progress=progress),
        table, total=1 + RUNS_OF_SIZE * len(sizes), as_json=as_json,
    )  # fmt: skip
    write_report(report, measured, table, as_json=as_json)
