"""`inagg bench allreduce`: options in, lines, a table or a report out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from inagg_switch.cli.sections import Number, Whole
from inagg_switch.cli.switch_options import SHARDS_MAX
from inagg_wire.formats import job_format
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500
from inagg_wire.slots import WINDOW_MAX

from ..bmv2 import program_for
from ..option_types import LinkRate, formats_option, seconds_option
from ..progress import Doing
from ..testbed.options import check_place
from ..topology import TARGETS, target_entry
from ..topology.link import UNSHAPED
from .cuda import device_option, require
from .options import LANES, SIZES, check_lanes, workers_option
from .results import Bars, Column, Table, number_text, output_options, show, write_report

WAYS = ("contributed", "ipv6", "profiler", "scattered", "watched")
"""Other ways to do the same: each rank is told what it has contributed; over IPv6; while torch's profiler records; as a
reduce-scatter, which gives each rank its part of the sums alone; while a page of the live view asks, twice a second."""

JOINED_AGAIN = "While this was measured, workers joined again, as after a restart of the switch: measure once more."


@click.command()
@workers_option
@click.option("--size", "sizes", default="64M", show_default=True, type=SIZES, help="Bytes of float32; a list.")
@formats_option()
@click.option("--against", type=click.Choice(["gloo"]), help="Measure this too, in the same processes, in turns.")
@click.option("--shards", default=1, show_default=True, type=Whole(1, SHARDS_MAX), help="Data-plane processes.")
@click.option("--window", type=Whole(1, WINDOW_MAX), help="Blocks in flight.  [default: that of the library]")
@click.option(
    "--lanes", "lanes_list", type=LANES, metavar="LIST",
    help="Elements of a datagram, multiples of 8, such as 32,128: what P4 switches take. Measured for each, and for "
    "those of a 1500-byte frame, through a switch with datagrams and slots as over Ethernet; with packets, bytes on "
    "the wire, and what a rack with a Tofino would reach.  [default: what the switch chooses]",
)  # fmt: skip
@seconds_option(2.0)
@click.option(
    "--loss",
    default=0.0,
    show_default=True,
    type=Number(0.0, 1.0, max_open=True),  # of a link that loses all there is nothing to measure
    help="Fraction of datagrams to drop, each way, at the workers.",
)
@click.option(
    "--seed", default=0, show_default=True, type=Whole(0, (1 << 32) - 1),
    help="With --loss: which datagrams are dropped follows from it.",
)  # fmt: skip
@click.option(
    "--way",
    "ways",
    multiple=True,
    type=click.Choice(WAYS),
    help="Measure this too, in turns (repeatable): each rank is told what it has contributed; over IPv6, with "
    "groups if ::1 has a route for them (docs/operators.md); while torch's profiler records; as a reduce-scatter that "
    "gives each rank its part alone; while a page of the live view asks. The column is the rate, to that of the plain "
    "all-reduce.",
)
@click.option(
    "--link", type=LinkRate(), metavar="RATE",
    help="Give each worker a link of this rate, such as 1gbit, in a network namespace (root).  [default: loopback]",
)  # fmt: skip
@click.option(
    "--racks",
    default=0,
    type=Whole(0, 8),
    metavar="N",
    help="Put the workers into N racks, and measure in turns the switch behind them, and trees with a leaf in each, "
    "whose partial sums go up exactly or, where there is such a format, rounded again (reencode).",
)
@click.option(
    "--trunk", type=LinkRate(), metavar="RATE", help="Rate of each rack's link to the switch.  [default: as --link]"
)
@click.option(
    "--target",
    default="software",
    show_default=True,
    type=click.Choice(list(TARGETS)),
    help="The switch. bmv2 needs simple_switch_grpc and root, and sums some 100,000 elements a second: take 64K.",
)
@device_option
@click.option(
    "--gpus",
    type=Whole(1),
    help="With --device cuda: so many ranks have their tensors on a GPU, the others in the host's memory.  "
    "[default: all]",
)
@output_options
def allreduce(
    workers: Sequence[int], sizes: Sequence[int], formats: Sequence[str], against: str | None, shards: int,
    window: int | None, lanes_list: Sequence[int] | None, seconds: float, loss: float, seed: int, ways: Sequence[str],
    link: str | None, racks: int, trunk: str | None, target: str, device: str, gpus: int | None,
    report: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure the all-reduce of a tensor, through a switch, over loopback or shaped links.

    Real worker processes, and a switch. A run lasts from a common barrier to the end of the slowest rank; where
    --seconds is not given, there are 200 at most. Gloo sums float32; its bytes are the payload of its connections, with
    --link what the link carried, with headers. `share` is how many elements came through a link, of those that it could
    carry beside the headers.

    With --device cuda, tensors are on the GPUs, which ranks take in turn, and Gloo, and NCCL where each rank has its
    own, are measured in turns with it; so are a tensor in the host's memory, and copies. Ranks that share a GPU wait
    for each other there: with --gpus 1, rank 0 has it alone.
    """
    from ..report.benches import allreduce_report
    from .allreduce import bench_allreduce
    from .allreduce_cuda import bench_allreduce_cuda
    from .rack import ASSUMPTIONS

    def given(name: str) -> bool:
        """Whether an option is not left to its default."""
        return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT

    if device == "cuda":
        if loss or ways or racks or link is not None or trunk is not None or target != "software" or lanes_list:
            raise click.UsageError("--device cuda is over loopback, without --loss, --way, --racks, --lanes, --target")
        if gpus is not None and gpus > min(workers):
            raise click.UsageError(f"--gpus {gpus}: there are {min(workers)} workers")
        require()
    elif gpus is not None:
        raise click.UsageError("--gpus is for --device cuda")
    entry = target_entry(target)
    check_lanes(formats, workers, lanes_list or ())
    if "ipv6" in ways and (link is not None or target != "software"):
        raise click.UsageError("--way ipv6 is over loopback, and for --target software")
    check_place(min(workers), link, racks, trunk, target)  # a rack has no more than a switch serves: see `counts`
    if racks and (loss or ways or lanes_list):  # what full frames take cannot be cut for a tree's trunks
        raise click.UsageError("--racks is without --loss, --way and --lanes")
    if shards > 1 and not entry.ours:
        raise click.UsageError(f"--shards is not for --target {target}")
    if link is None and entry.needs_link:
        link = UNSHAPED
    if given("seed") and not loss:
        raise click.UsageError("--seed is for --loss")
    whole = given("seconds")

    def lanes_of(name: str, n: int) -> list[int | None]:
        """Lanes to measure: those that are asked for, and those of full frames; None alone if none are."""
        usual = job_format(name).max_lanes(n, UDP_PAYLOAD_BYTES_1500)
        return list(dict.fromkeys([*lanes_list, usual])) if lanes_list else [None]

    # Each with a switch and workers of its own.
    places = [(name, n, lanes) for name in formats for n in workers for lanes in lanes_of(name, n)]

    def lines(progress: Doing) -> Iterable[dict[str, Any]]:
        for name, n, lanes in places:
            if device == "cuda":
                yield from bench_allreduce_cuda(
                    n, gpus or n, name, sizes, seconds=seconds, whole=whole, shards=shards, window=window,
                    progress=progress,
                )  # fmt: skip
                continue
            switch_options = [] if target != "bmv2" else ["--program", program_for(name)]
            if lanes_list and target == "software":
                switch_options = ["--datagram-bytes", str(UDP_PAYLOAD_BYTES_1500)]
            yield from bench_allreduce(
                n, name, sizes, against=against, seconds=seconds, whole=whole, shards=shards, loss=loss, seed=seed,
                ways=ways, window=window, link=link, target=target, switch_options=switch_options, racks=racks,
                trunk=trunk, lanes=lanes, progress=progress,
            )  # fmt: skip

    columns: list[Column] = [
        ("workers", lambda r: str(r["workers"])),
        ("system", lambda r: r.get("system", "")),
        ("format", lambda r: r.get("format", "")),
        ("KiB", lambda r: number_text(r["elements"] * 4 / 1024) if "elements" in r else ""),
        ("ms", lambda r: f"{r['median_s'] * 1e3:,.2f}" if "median_s" in r else ""),
        ("M elements/s", lambda r: number_text(r["elements_per_s"] / 1e6) if "median_s" in r else ""),
        ("CPU ms", lambda r: f"{r['cpu_s'] * 1e3:,.2f}" if "cpu_s" in r else ""),
        ("submit ms", lambda r: f"{r['submit_s'] * 1e3:,.2f}" if "submit_s" in r else ""),
        ("GB/s", lambda r: copies_text(r["copy_bytes_per_s"]) if "copy_bytes_per_s" in r else ""),
        ("M packets/s", lambda r: f"{r['packets_per_s'] / 1e6:.2f}" if "packets_per_s" in r else ""),
        ("if busy", lambda r: f"{r['busy_packets_per_s'] / 1e6:.2f}" if "packets_per_s" in r else ""),
        ("bytes up", lambda r: f"{r['wire_bytes_up']:,}" if "wire_bytes_up" in r else ""),
        ("bytes down", lambda r: f"{r['wire_bytes_down']:,}" if "wire_bytes_down" in r else ""),
        ("wire/element", lambda r: f"{r['wire_bytes_per_element']:.2f}" if "packets_per_s" in r else ""),
        (
            "rack M/s",
            lambda r: f"{number_text(r['rack_elements_per_s'] / 1e6)} ({r['rack_bound']})" if "rack_bound" in r else "",
        ),
        ("share", lambda r: f"{r['share_of_link']:.1%}" if r.get("share_of_link") is not None else ""),
        ("to gloo", lambda r: f"{r['ratio_to_gloo']:.2f}" if "ratio_to_gloo" in r else ""),
        ("to nccl", lambda r: f"{r['ratio_to_nccl']:.2f}" if "ratio_to_nccl" in r else ""),
        ("note", lambda r: r.get("skipped", "")),
        *((f"{way}", lambda r, key=f"{way}_to_plain": f"{r[key]:.2f}" if key in r else "") for way in ways),
        ("to flat", lambda r: f"{r['tree_to_flat']:.2f}" if "tree_to_flat" in r else ""),
        ("reencode", lambda r: f"{r['tree_reencode_to_flat']:.2f}" if "tree_reencode_to_flat" in r else ""),
        ("to lossless", lambda r: f"{r['ratio_to_lossless']:.2f}" if "ratio_to_lossless" in r else ""),
    ]
    over = "loopback" if link is None else "unshaped links" if link == UNSHAPED else f"links of {link}"
    over += f", {racks} racks behind trunks of {trunk or link or 'loopback'}" if racks else ""
    over += " and a bmv2 switch" if target == "bmv2" else ""
    title = f"all-reduce over {over}" + (f", {loss:.1%} loss" if loss else "")
    if lanes_list:
        columns.insert(1, ("lanes", lambda r: str(r["lanes"])))
    bars = Bars("million elements/s", lambda r: r["elements_per_s"] / 1e6 if "median_s" in r else None)
    table = Table(title, columns, bars, keys=4 + bool(lanes_list))
    measured = show(lines, table, total=len(places) * (1 + len(sizes)), as_json=as_json)
    if any(line.get("joined_again") for line in measured):
        click.echo(JOINED_AGAIN, err=as_json)
    if lanes_list:
        click.echo(ASSUMPTIONS, err=as_json)
    write_report(report, measured, table, as_json=as_json, make=lambda path: allreduce_report(path, measured, title))


def copies_text(bytes_per_s: dict[str, float]) -> str:
    """Rates of copies, in GB/s."""
    return ", ".join(f"{way.replace('_', ' ')} {rate / 1e9:.0f}" for way, rate in bytes_per_s.items())
