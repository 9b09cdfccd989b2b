"""`inagg bench bmv2`: how many blocks a second a bmv2 switch adds up, in network namespaces."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from inagg.extras import require
from inagg_switch.cli.sections import Whole
from inagg_switch.p4.builds import FLAT, builds
from inagg_switch.p4.program import BMV2_WINDOW
from inagg_wire.formats import CHILDREN_MAX
from inagg_wire.slots import WINDOW_MAX

from ..option_types import format_option, runs_option
from ..progress import Doing
from ..topology import namespaces
from .allreduce_ranks import open_ranks
from .results import Bars, Column, Table, output_options, show, write_report

BLOCKS = 2000


@click.command()
@click.option("--workers", default=2, show_default=True, type=Whole(1, CHILDREN_MAX), help="How many.")
@format_option
@click.option("--lanes", multiple=True, type=Whole(1), metavar="N", help="Only programs of so many lanes (repeatable).")
@click.option(
    "--window", default=BMV2_WINDOW, show_default=True, type=Whole(1, WINDOW_MAX),
    help="Blocks that a worker keeps in flight.",
)  # fmt: skip
@runs_option(3)
@output_options
def bmv2(
    workers: int, format_: str, lanes: tuple[int, ...], window: int, runs: int, report: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Measure how much a bmv2 switch sums up in a second, with each of our programs for a format. Needs root.

    Real workers, and `simple_switch_grpc` with all that it costs itself. packets/s: what the switch has counted in all
    runs, with blocks of scales and what came again; the other rates are of the median run. A bmv2 with its logging
    macros, as it is built by default, is some seven times slower than one without.
    """
    of_format = [build for build in builds().values() if build.role == FLAT and format_ in build.formats]
    if not of_format:
        raise click.UsageError(f"--format: no program for bmv2 adds up {format_}")
    for count in lanes:
        if not any(build.lanes == count for build in of_format):
            there = ", ".join(str(there) for there in sorted({build.lanes for build in of_format}))
            raise click.UsageError(f"--lanes: no program adds up {format_} in {count} lanes: there are {there}")
    chosen = [build for build in of_format if not lanes or build.lanes in lanes]
    require("pyroute2")
    namespaces.require_root("measure the software switch, which needs none: inagg bench allreduce")

    def lines(progress: Doing) -> Iterator[dict[str, Any]]:
        for build in chosen:
            progress(build.name)
            options: dict[str, Any] = {"lanes": build.lanes, "window": window}
            with open_ranks(
                workers,
                format_,
                against=False,
                link="none",
                target="bmv2",
                switch_options=["--program", build.name],
                **options,
            ) as ranks:
                before = ranks.datagrams()
                seconds, counted = ranks.run(BLOCKS * build.lanes, "inagg", runs)
                packets_in, packets_out = (now - then for now, then in zip(ranks.datagrams(), before, strict=True))
            took_s = statistics.median(seconds)
            yield {
                "bench": "bmv2",
                "program": build.name,
                "format": format_,
                "workers": workers,
                "window": window,
                "runs": runs,
                "blocks_per_s": round(BLOCKS / took_s),
                "packets_in_per_s": round(packets_in / sum(seconds)),
                "packets_out_per_s": round(packets_out / sum(seconds)),
                "elements_per_s": round(BLOCKS * build.lanes / took_s),
                "bytes_up": round(counted["bytes_out"]),
                "bytes_down": round(counted["bytes_in"]),
            }

    columns: list[Column] = [
        ("program", lambda r: r["program"]),
        ("blocks/s", lambda r: f"{r['blocks_per_s']:,}"),
        ("packets/s in", lambda r: f"{r['packets_in_per_s']:,}"),
        ("packets/s out", lambda r: f"{r['packets_out_per_s']:,}"),
        ("elements/s", lambda r: f"{r['elements_per_s']:,}"),
    ]
    bars = Bars("elements/s", lambda r: float(r["elements_per_s"]))
    table = Table(f"bmv2, {workers} workers, window {window}, {format_}", columns, bars)
    measured = show(lines, table, total=len(chosen), as_json=as_json)
    write_report(report, measured, table, as_json=as_json)
