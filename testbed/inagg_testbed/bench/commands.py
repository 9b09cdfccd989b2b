"""`inagg bench switch` and `inagg bench allreduce`: options in, lines or a table out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from inagg_link import MAX_BATCH_DATAGRAMS
from inagg_switch.cli.switch_options import SHARDS_MAX
from inagg_wire.errors import AdmissionError
from inagg_wire.formats import CHILDREN_MAX, FORMATS, admit, job_format
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500
from inagg_wire.slots import WINDOW_MAX

from ..bmv2 import program_for
from ..option_types import POSITIVE, LinkRate, Number
from ..progress import Steps
from ..report.option import report_option
from ..tables import console, print_table
from ..testbed.options import check_place
from ..topology import TARGETS, target_entry
from ..topology.link import UNSHAPED
from .cuda import device_option, require

UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
Column = tuple[str, Callable[[dict[str, Any]], str]]


def number_text(number: float) -> str:
    """Without places, unless there is too little for that."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def copies_text(bytes_per_s: dict[str, float]) -> str:
    """Rates of copies, in GB/s."""
    return ", ".join(f"{way.replace('_', ' ')} {rate / 1e9:.0f}" for way, rate in bytes_per_s.items())


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


def parse_size(text: str) -> int:
    """Bytes, from a number with an optional K, M or G (powers of 1024). Raises ValueError."""
    text = text.strip().lower().removesuffix("b").removesuffix("i")
    return int(float(text[:-1]) * UNITS[text[-1]]) if text[-1:] in UNITS else int(text)


class SizeList(click.ParamType[list[int]]):
    """Sizes such as ``1K,64M``."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            sizes = [parse_size(part) for part in value.split(",")]
        except (ValueError, OverflowError):  # the latter: infK
            self.fail(f"{value!r}: give sizes such as 1K,64M", param, ctx)
        if any(size < 4 for size in sizes):
            self.fail("4 bytes are the least: one float32", param, ctx)
        return sizes


class CountList(click.ParamType[list[int]]):
    """Numbers of workers or shards, such as ``1,2,4``, that one switch can have."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self._most = name, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            counts = [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r}: give numbers such as 2,4", param, ctx)
        if not all(1 <= count <= self._most for count in counts):
            self.fail(f"{value}: one switch has 1 to {self._most} {self.name}", param, ctx)
        return counts


class LanesList(click.ParamType[list[int]]):
    """Numbers of lanes such as ``32,256``."""

    name = "lanes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r}: give numbers such as 32,256", param, ctx)


link_option = click.option(
    "--link", type=LinkRate(), metavar="RATE",
    help="Give each worker a link of this rate, such as 1gbit, in a network namespace (root). [default: loopback]",
)  # fmt: skip
workers_option = click.option(
    "--workers", default="4", show_default=True, type=CountList("workers", CHILDREN_MAX), help="How many; a list."
)
format_option = click.option(
    "--format", "names", multiple=True, default=("nat8",), show_default=True, type=click.Choice(list(FORMATS)),
    help="Format of the numbers (repeatable).",
)  # fmt: skip


@click.command()
@workers_option
@format_option
@click.option("--lanes", type=int, help="Elements per datagram. [default: what a 1500-byte frame takes]")
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
@json_option
def switch(
    workers: Sequence[int], names: Sequence[str], lanes: int | None, shards: Sequence[int], window: int, seconds: float,
    runs: int, as_json: bool,
) -> None:  # fmt: skip
    """Measure the software switch: contributions replayed at it over loopback.

    Worker processes send contributions that were made once, under new block numbers, and wait for the results. In
    turns with it, the same processes run around one that echoes datagrams of the same sizes and computes nothing:
    the limit of this machine's network stack, to which the ratio is.
    """
    from .switch import bench_switch

    check_lanes(names, workers, [] if lanes is None else [lanes])

    def lines() -> Iterable[dict[str, Any]]:
        for k in shards:
            for name in names:
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


@click.command()
@workers_option
@click.option("--size", "sizes", default="64M", show_default=True, type=SizeList(), help="Bytes of float32; a list.")
@format_option
@click.option("--against", type=click.Choice(["gloo"]), help="Measure this too, in the same processes, in turns.")
@click.option(
    "--shards", default=1, show_default=True, type=click.IntRange(1, SHARDS_MAX), help="Data-plane processes."
)
@click.option("--window", type=click.IntRange(1, WINDOW_MAX), help="Blocks in flight. [default: that of the library]")
@click.option(
    "--lanes", "lanes_list", type=LanesList(), metavar="LIST",
    help="Elements of a datagram, such as 32,128: what P4 switches take. Measured for each, and for those of a "
    "1500-byte frame, through a switch with datagrams and slots as over Ethernet; with packets, bytes on the wire, and "
    "what a rack with a Tofino would reach.  [default: what the switch chooses]",
)  # fmt: skip
@click.option(
    "--seconds", default=2.0, show_default=True, type=POSITIVE,
    help="For each system and size, roughly; where it is not given, 200 runs are enough.",
)  # fmt: skip
@click.option(
    "--loss",
    default=0.0,
    show_default=True,
    type=Number(0.0, 1.0, max_open=True),  # of a link that loses all there is nothing to measure
    help="Fraction of datagrams to drop, each way, at the workers.",
)
@click.option(
    "--way",
    "ways",
    multiple=True,
    type=click.Choice(["contributed", "ipv6", "profiler", "scattered", "watched"]),
    help="Measure this too, in turns (repeatable): each rank is told what it has contributed; over IPv6, with "
    "groups if ::1 has a route for them (docs/operators.md); while torch's profiler records; as a reduce-scatter that "
    "gives each rank its part alone; while a page of the live view asks. The column is the rate, to that of the plain "
    "all-reduce.",
)
@link_option
@click.option(
    "--racks",
    default=0,
    type=click.IntRange(0, 8),
    metavar="N",
    help="Put the workers into N racks, and measure in turns the switch behind them, and trees with a leaf in each, "
    "whose partial sums go up exactly or, where there is such a format, rounded again (reencode).",
)
@click.option(
    "--trunk", type=LinkRate(), metavar="RATE", help="Of each rack's way to the switch.  [default: as --link]"
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
    type=click.IntRange(1),
    help="With --device cuda: so many ranks have their tensors on a GPU, the others in the host's memory.  "
    "[default: all]",
)
@report_option
@json_option
def allreduce(
    workers: Sequence[int], sizes: Sequence[int], names: Sequence[str], against: str | None, shards: int,
    window: int | None, lanes_list: Sequence[int] | None, seconds: float, loss: float, ways: Sequence[str],
    link: str | None, racks: int, trunk: str | None, target: str, device: str, gpus: int | None,
    report: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure the all-reduce of a tensor, through a switch, over loopback or shaped links.

    Real worker processes, and a switch. A run lasts from a common barrier to the end of the slowest rank. Gloo
    sums float32; its bytes are those that the interface carried, with headers. Of a link, `share` is what the elements
    are of those that fit through it beside the headers.

    With --device cuda, tensors are on the GPUs, which ranks take in turn, and Gloo, and NCCL where each rank has its
    own, are measured in turns with it; so are a tensor in the host's memory, and copies. Ranks that share a GPU wait
    for each other there: with --gpus 1, rank 0 has it alone.
    """
    from .allreduce import bench_allreduce
    from .allreduce_cuda import bench_allreduce_cuda
    from .rack import ASSUMPTIONS

    if device == "cuda":
        if loss or ways or racks or link is not None or trunk is not None or target != "software" or lanes_list:
            raise click.UsageError("--device cuda is over loopback, without --loss, --way, --racks, --lanes, --target")
        if gpus is not None and gpus > min(workers):
            raise click.UsageError(f"--gpus {gpus}: there are {min(workers)} workers")
        require()
    elif gpus is not None:
        raise click.UsageError("--gpus is for --device cuda")
    entry = target_entry(target)
    check_lanes(names, workers, lanes_list or ())
    if "ipv6" in ways and (link is not None or target != "software"):
        raise click.UsageError("--way ipv6 is over loopback, and for --target software")
    check_place(min(workers), link, racks, trunk, target)  # a rack has no more than a switch serves: see `CountList`
    if racks and (loss or ways or lanes_list):  # what full frames take cannot be cut for a tree's trunks
        raise click.UsageError("--racks is without --loss, --way and --lanes")
    if shards > 1 and not entry.ours:
        raise click.UsageError(f"--shards is not for --target {target}")
    if link is None and entry.needs_link:
        link = UNSHAPED
    whole = click.get_current_context().get_parameter_source("seconds") is not ParameterSource.DEFAULT

    def lines() -> Iterable[dict[str, Any]]:
        for name in names:
            switch_options = [] if target != "bmv2" else ["--program", program_for(name)]
            if lanes_list and target == "software":
                switch_options = ["--datagram-bytes", str(UDP_PAYLOAD_BYTES_1500)]
            for n in workers:
                if device == "cuda":
                    yield from bench_allreduce_cuda(
                        n, gpus or n, name, sizes, seconds=seconds, whole=whole, shards=shards, window=window
                    )
                    continue
                usual = [job_format(name).max_lanes(n, UDP_PAYLOAD_BYTES_1500)]
                for lanes in dict.fromkeys([*lanes_list, *usual]) if lanes_list else [None]:
                    yield from bench_allreduce(
                        n, name, sizes, against=against, seconds=seconds, whole=whole, shards=shards, loss=loss,
                        ways=ways, window=window, link=link, target=target, switch_options=switch_options,
                        racks=racks, trunk=trunk, lanes=lanes,
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
    measured = show(lines(), columns, as_json, title, keys=4 + bool(lanes_list))
    if lanes_list:
        click.echo(ASSUMPTIONS, err=as_json)
    if report is not None:
        from ..report.benches import allreduce_report

        click.echo(f"report: {allreduce_report(report, measured, title)}", err=as_json)


@click.command()
@click.option("--workers", default=4, show_default=True, type=click.IntRange(1, CHILDREN_MAX), help="How many.")
@format_option
@json_option
def stages(workers: int, names: Sequence[str], as_json: bool) -> None:
    """Measure what each stage of the software switch costs, on one core.

    A round is one batch from every worker and one result to each. The last column is the rate that the stages together
    would allow one core.
    """
    from .stages import bench_stages

    def lines() -> Iterable[dict[str, Any]]:
        for name in names:
            yield from bench_stages(job_format(name), workers, job_format(name).max_lanes(workers))

    columns: list[Column] = [
        ("format", lambda r: r["format"]),
        ("stage", lambda r: r["stage"]),
        ("us a batch", lambda r: f"{r['us_per_batch']:.1f}"),
        ("share", lambda r: f"{r['share_of_round']:.0%}"),
        ("M elements/s", lambda r: f"{r['elements_per_s'] / 1e6:,.0f}"),
    ]
    show(lines(), columns, as_json, f"stages of the software switch, {workers} workers", keys=2)


def check_lanes(names: Sequence[str], workers: Sequence[int], lanes_list: Sequence[int]) -> None:
    """Raises `click.UsageError` unless frames of 1500 bytes take so many lanes, of each format, of so many workers."""
    for name, n, lanes in itertools.product(names, workers, lanes_list):
        try:
            admit(job_format(name), n, lanes, UDP_PAYLOAD_BYTES_1500)
        except AdmissionError as error:
            raise click.UsageError(f"--lanes: {error}") from None


def show(
    lines: Iterable[dict[str, Any]], columns: Sequence[Column], as_json: bool, title: str, keys: int = 1
) -> list[dict[str, Any]]:
    """Print results as they come (JSON) or as a table (see `print_table`), with progress meanwhile on standard error;
    returns them."""
    shown = []
    if as_json:
        for line in lines:
            shown.append(line)
            click.echo(json.dumps(line))
        return shown
    whole = False
    try:
        with Steps() as progress:
            task = None if isinstance(lines, list) else progress.task("measuring")  # a list has been measured
            for line in lines:
                shown.append(line)
                if task is not None:
                    task.step(f"{len(shown)} rows")
            if task is not None:
                task.end()
        whole = True
    finally:
        if whole or shown:  # what took minutes is not lost where the next row fails, or is waited for no longer
            rows = [[text(line) for _, text in columns] for line in shown]
            names = [name for name, _ in columns]
            print_table(console(), title if whole else f"{title} (broken off)", names, rows, keys)
    return shown
