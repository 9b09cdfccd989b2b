"""`inagg bench sharing`: options in, lines or a table out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from inagg.extras import require
from inagg_switch.cli.sections import Number

from ..option_types import format_option, host_link_option, seconds_option
from ..progress import Doing
from .options import SIZES
from .results import Bars, Column, Table, number_text, output_options, show, write_report


@click.command()
@host_link_option
@format_option
@click.option("--size", "sizes", default="16M", show_default=True, type=SIZES, help="Bytes of float32; a list.")
@seconds_option(6.0, Number(2.0))
@output_options
def sharing(
    link: str, format_: str, sizes: list[int], seconds: float, report: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Measure how jobs share a link: one alone, two, a second one that starts in the middle, one beside a TCP stream.

    Two hosts, with a link each to the switch; a job has a rank on each. `shares` are rates of the first and the second
    (job, or stream), to what each reaches alone; `jain` is Jain's index of fairness, 1 if both have the same;
    `together` is the sum of both jobs' rates, to one job alone; `resent` counts datagrams that were sent again, and
    `timeouts` how often a timer ran out (where a second job starts in the middle: of the first one, from then on).
    """
    from .sharing import bench_sharing, steps_of_size

    require("pyroute2")

    def lines(progress: Doing) -> Iterable[dict[str, Any]]:
        for size in sizes:
            yield from bench_sharing(link, format_, size, seconds=seconds, progress=progress)

    columns: list[Column] = [
        ("case", lambda r: r["case"]),
        ("KiB", lambda r: number_text(r["elements"] * 4 / 1024)),
        ("M elements/s", lambda r: f"{r['elements_per_s'] / 1e6:,.1f}"),
        ("shares", lambda r: " / ".join(f"{share:.2f}" for share in r.get("shares", ()))),
        ("jain", lambda r: f"{r['jain']:.3f}" if "jain" in r else ""),
        ("together", lambda r: f"{r['together']:.2f}" if "together" in r else ""),
        ("resent", lambda r: f"{r['resent']:,}"),
        ("timeouts", lambda r: f"{r['timeouts']:,}"),
        ("rtt ms", lambda r: f"{r['rtt_s'] * 1e3:.2f}" if "rtt_s" in r else ""),
    ]
    bars = Bars("million elements/s", lambda r: r["elements_per_s"] / 1e6)
    table = Table(f"jobs of {format_} that share links of {link}", columns, bars, keys=2)
    measured = show(lines, table, total=steps_of_size() * len(sizes), as_json=as_json)
    write_report(report, measured, table, as_json=as_json)
