"""`inagg bench switch`: options in, lines or a table out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from inagg_link import MAX_BATCH_DATAGRAMS
from inagg_switch.cli.switch_options import SHARDS_MAX
from inagg_wire.formats import job_format
from inagg_wire.slots import WINDOW_MAX

from ..option_types import POSITIVE, formats_option, json_option
from .options import CountList, check_lanes, workers_option
from .results import Column, show


@click.command()
@workers_option
@formats_option()
@click.option("--lanes", type=int, help="Elements per datagram, a multiple of 8.  [default: for 1500-byte frames]")
@click.option(
    "--shards", default="1", show_default=True, type=CountList("shards", SHARDS_MAX),
    help="Data-plane processes; a list.",
)  # fmt: skip
@click.option(
    "--window", default=8, show_default=True, type=click.IntRange(1, WINDOW_MAX // MAX_BATCH_DATAGRAMS),
    help="Batches that a worker keeps in flight.",
)  # fmt: skip
@click.option("--seconds", default=2.0, show_default=True, type=POSITIVE, help="Length of one run.")
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1), help="Runs; the median counts.")
@json_option()
def switch(
    workers: Sequence[int], formats: Sequence[str], lanes: int | None, shards: Sequence[int], window: int,
    seconds: float, runs: int, as_json: bool,
) -> None:  # fmt: skip
    """Measure the software switch: contributions replayed at it over loopback.

    Worker processes send contributions that were made once, under new block numbers, and wait for the results. In
    turns with it, the same processes run around one that echoes datagrams of the same sizes and computes nothing:
    the limit of this machine's network stack, to which the ratio is.
    """
    from .switch import bench_switch

    check_lanes(formats, workers, [] if lanes is None else [lanes])

    def lines() -> Iterable[dict[str, Any]]:
        for k in shards:
            for name in formats:
                for n in workers:
                    yield bench_switch(
                        job_format(name), n, lanes=lanes, seconds=seconds, runs=runs, shards=k, window=window
                    )

    columns: list[Column] = [
        ("workers", lambda r: str(r["workers"])),
        ("format", lambda r: r["format"]),
        ("shards", lambda r: str(r["shards"])),
        ("M elements/s", lambda r: f"{r['elements_per_s'] / 1e6:,.0f}"),
        ("M packets/s", lambda r: f"{r['packets_per_s'] / 1e6:.2f}"),
        ("CPU s/G", lambda r: f"{r['cpu_s_per_gelement']:.3f}"),
        ("limit M/s", lambda r: f"{r['udp_limit_elements_per_s'] / 1e6:,.0f}"),
        ("ratio", lambda r: f"{r['ratio_to_udp_limit']:.2f}"),
    ]
    show(lines(), columns, as_json, "software switch over loopback: elements that it takes in", keys=3)
