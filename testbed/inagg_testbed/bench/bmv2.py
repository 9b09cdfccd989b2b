"""`inagg bench bmv2`: how many blocks a second a bmv2 switch adds up, in network namespaces."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import click

from inagg_switch.p4.builds import FLAT, builds
from inagg_switch.p4.program import BMV2_WINDOW
from inagg_wire.formats import CHILDREN_MAX
from inagg_wire.slots import WINDOW_MAX

from ..option_types import format_option, json_option
from ..topology import namespaces
from .allreduce import open_ranks
from .results import Column, show

BLOCKS = 2000
RUNS = 3


@click.command()
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, CHILDREN_MAX))
@format_option
@click.option("--lanes", multiple=True, type=int, metavar="N", help="Only programs of so many lanes; may be repeated.")
@click.option(
    "--window", default=BMV2_WINDOW, show_default=True, type=click.IntRange(1, WINDOW_MAX),
    help="Blocks that a worker may have on their way.",
)  # fmt: skip
@json_option()
def bmv2(workers: int, format_: str, lanes: tuple[int, ...], window: int, as_json: bool) -> None:
    """Sum up zeros and ones through `simple_switch_grpc`, with each of our programs for a format. Needs root.

    Real workers and all of bmv2's own costs. packets/s: what the switch has counted in all runs, with blocks of scales
    and what came again; the other rates are of the median run. A bmv2 with its logging macros, as it is built by
    default, is some seven times slower than one without.
    """
    chosen = [
        build
        for build in builds().values()
        if build.role == FLAT and format_ in build.formats and (not lanes or build.lanes in lanes)
    ]
    if not chosen:
        raise click.UsageError(f"no program adds up {format_} in {' or '.join(map(str, lanes))} lanes")
    namespaces.require_root("measure the software switch, which needs none: inagg bench allreduce")

    def lines() -> Iterator[dict[str, Any]]:
        for build in chosen:
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
                seconds, counted = ranks.run(BLOCKS * build.lanes, "inagg", RUNS)
                packets_in, packets_out = (now - then for now, then in zip(ranks.datagrams(), before, strict=True))
            took_s = statistics.median(seconds)
            yield {
                "bench": "bmv2",
                "program": build.name,
                "workers": workers,
                "window": window,
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
    show(lines(), columns, as_json, f"bmv2, {workers} workers, window {window}, {format_}")
