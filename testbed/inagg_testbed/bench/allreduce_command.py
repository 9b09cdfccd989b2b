"""`inagg bench allreduce`: options in, lines, a table or a report out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from inagg.extras import require
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
from .cuda import device_option, require_gpu
from .options import LANES, SIZES, check_lanes, workers_option
from .results import Bars, Column, Table, number_text, output_options, show, write_report

WAYS = ("contributed", "ipv6", "profiler", "scattered", "watched")
"""Other ways to do the same: each rank is told what it has contributed; over IPv6; while torch's profiler records; as a
reduce-scatter, which gives each rank its part of the sums alone; while a page of the live view asks, twice a second."""

JOINED_AGAIN = "While this was measured, workers joined again, as after a restart of the switch: measure once more."


Text = Callable[[Any], str]
RATIO: Text = "{:.2f}".format
COUNT: Text = "{:,}".format


def column(name: str, key: str, text: Text = str) -> Column:
    """A column that is empty in lines without ``key``."""
    return name, lambda line: text(line[key]) if line.get(key) is not None else ""


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def millions(rate: float) -> str:
    return number_text(rate / 1e6)


def millions_of_packets(rate: float) -> str:
    return f"{rate / 1e6:.2f}"


def copies_text(bytes_per_s: dict[str, float]) -> str:
    """Rates of copies, in GB/s."""
    return ", ".join(f"{way.replace('_', ' ')} {rate / 1e9:.0f}" for way, rate in bytes_per_s.items())


def rack_text(line: dict[str, Any]) -> str:
    """The rate of a rack, and what bounds it."""
    return f"{millions(line['rack_elements_per_s'])} ({line['rack_bound']})" if "rack_bound" in line else ""


COLUMNS: list[Column] = [
    column("workers", "workers"),
    column("system", "system"),
    column("format", "format"),
    column("KiB", "elements", lambda elements: number_text(elements * 4 / 1024)),
    column("ms", "median_s", milliseconds),
    column("M elements/s", "elements_per_s", millions),
    column("CPU ms", "cpu_s", milliseconds),
    column("submit ms", "submit_s", milliseconds),
    column("GB/s", "copy_bytes_per_s", copies_text),
    column("M packets/s", "packets_per_s", millions_of_packets),
    column("if busy", "busy_packets_per_s", millions_of_packets),
    column("bytes up", "wire_bytes_up", COUNT),
    column("bytes down", "wire_bytes_down", COUNT),
    column("wire/element", "wire_bytes_per_element", RATIO),
    ("rack M/s", rack_text),
    column("share", "share_of_link", "{:.1%}".format),
    column("to gloo", "ratio_to_gloo", RATIO),
    column("to nccl", "ratio_to_nccl", RATIO),
    column("note", "skipped"),
]
COLUMNS_OF_RACKS: list[Column] = [
    column("to flat", "tree_to_flat", RATIO),
    column("reencode", "tree_reencode_to_flat", RATIO),
    column("to lossless", "ratio_to_lossless", RATIO),
]
"""Columns behind those of ways."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command, each as the option of this name says."""

    workers: Sequence[int]
    sizes: Sequence[int]
    formats: Sequence[str]
    against: str | None
    shards: int
    window: int | None
    lanes_list: Sequence[int] | None
    seconds: float
    loss: float
    seed: int
    ways: Sequence[str]
    link: str | None
    racks: int
    trunk: str | None
    target: str
    device: str
    gpus: int | None
    report: Path | None
    as_json: bool

    def check(self) -> None:
        """Raises click.UsageError for options that do not fit together, and asks for what they need (`require`)."""
        if self.device == "cuda":
            others = (self.loss, self.ways, self.racks, self.link, self.trunk, self.lanes_list)
            if any(others) or self.target != "software":
                raise click.UsageError(
                    "--device cuda is over loopback, without --loss, --way, --racks, --lanes, --target"
                )
            if self.gpus is not None and self.gpus > min(self.workers):
                raise click.UsageError(f"--gpus {self.gpus}: there are {min(self.workers)} workers")
        elif self.gpus is not None:
            raise click.UsageError("--gpus is for --device cuda")
        check_lanes(self.formats, self.workers, self.lanes_list or ())
        if "ipv6" in self.ways and (self.link is not None or self.target != "software"):
            raise click.UsageError("--way ipv6 is over loopback, and for --target software")
        # A rack has no more workers than a switch serves: see `counts`.
        check_place(min(self.workers), self.link, self.racks, self.trunk, self.target)
        if self.racks and (self.loss or self.ways or self.lanes_list):
            # What full frames take cannot be cut for a tree's trunks.
            raise click.UsageError("--racks is without --loss, --way and --lanes")
        if self.shards > 1 and not target_entry(self.target).ours:
            raise click.UsageError(f"--shards is not for --target {self.target}")
        if given("seed") and not self.loss:
            raise click.UsageError("--seed is for --loss")
        torch = self.against is not None or self.device == "cuda" or "profiler" in self.ways
        require(*(["torch"] if torch else []), *(["pyroute2"] if self.rate is not None else []))
        if self.device == "cuda":
            require_gpu()

    @property
    def rate(self) -> str | None:
        """Rate of each worker's link; None: over loopback."""
        return UNSHAPED if self.link is None and target_entry(self.target).needs_link else self.link

    def places(self) -> list[tuple[str, int, int | None]]:
        """Format, workers and lanes (None: as the switch chooses) of each switch that is measured, with workers of its
        own."""
        return [(name, n, lanes) for name in self.formats for n in self.workers for lanes in self._lanes_of(name, n)]

    def _lanes_of(self, name: str, n: int) -> list[int | None]:
        """Lanes that are asked for, and those of full frames; None alone if none are."""
        usual = job_format(name).max_lanes(n, UDP_PAYLOAD_BYTES_1500)
        return list(dict.fromkeys([*self.lanes_list, usual])) if self.lanes_list else [None]

    def lines(self, progress: Doing) -> Iterable[dict[str, Any]]:
        """Measure, place by place."""
        from .allreduce import bench_allreduce
        from .allreduce_cuda import bench_allreduce_cuda

        how: dict[str, Any] = {"seconds": self.seconds, "whole": given("seconds"), "progress": progress}
        how |= {"shards": self.shards, "window": self.window}
        for name, n, lanes in self.places():
            if self.device == "cuda":
                yield from bench_allreduce_cuda(n, self.gpus or n, name, self.sizes, **how)
                continue
            switch_options = [] if self.target != "bmv2" else ["--program", program_for(name)]
            if self.lanes_list and self.target == "software":
                switch_options = ["--datagram-bytes", str(UDP_PAYLOAD_BYTES_1500)]
            yield from bench_allreduce(
                n,
                name,
                self.sizes,
                against=self.against,
                loss=self.loss,
                seed=self.seed,
                ways=self.ways,
                link=self.rate,
                racks=self.racks,
                trunk=self.trunk,
                target=self.target,
                switch_options=switch_options,
                lanes=lanes,
                **how,
            )

    def title(self) -> str:
        """The words above the table."""
        over = f"links of {self.rate}" if self.rate not in (None, UNSHAPED) else "unshaped links"
        over = "loopback" if self.rate is None else over
        over += f", {self.racks} racks behind trunks of {self.trunk or self.rate or 'loopback'}" if self.racks else ""
        over += " and a bmv2 switch" if self.target == "bmv2" else ""
        return f"all-reduce over {over}" + (f", {self.loss:.1%} loss" if self.loss else "")

    def table(self) -> Table:
        """The results, for people."""
        lanes = [column("lanes", "lanes")] if self.lanes_list else []
        ways = [column(way, f"{way}_to_plain", RATIO) for way in self.ways]
        bars = Bars("million elements/s", lambda r: r["elements_per_s"] / 1e6 if "median_s" in r else None)
        columns = [*COLUMNS[:1], *lanes, *COLUMNS[1:], *ways, *COLUMNS_OF_RACKS]
        return Table(self.title(), columns, bars, keys=4 + len(lanes))


def given(name: str) -> bool:
    """Whether an option of the command is not left to its default."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


@click.command()
@workers_option
@click.option("--size", "sizes", default="64M", show_default=True, type=SIZES, help="Bytes of float32; a list.")
@formats_option()
@click.option("--against", type=click.Choice(["gloo"]), help="Measure this too, in the same processes, in turns.")
@click.option("--shards", default=1, show_default=True, type=Whole(1, SHARDS_MAX), help="Data-plane processes.")
@click.option("--window", type=Whole(1, WINDOW_MAX), help="Blocks in flight.  [default: that of the library]")
@click.option(
    "--lanes",
    "lanes_list",
    type=LANES,
    metavar="LIST",
    help="Elements of a datagram, multiples of 8, such as 32,128: what P4 switches take. Measured for each, and for "
    "those of a 1500-byte frame, through a switch with datagrams and slots as over Ethernet; with packets, bytes on "
    "the wire, and what a rack with a Tofino would reach.  [default: what the switch chooses]",
)
@seconds_option(2.0)
@click.option(
    "--loss",
    default=0.0,
    show_default=True,
    type=Number(0.0, 1.0, max_open=True),  # of a link that loses all there is nothing to measure
    help="Fraction of datagrams to drop, each way, at the workers.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=Whole(0, (1 << 32) - 1),
    help="With --loss: which datagrams are dropped follows from it.",
)
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
    "--link",
    type=LinkRate(),
    metavar="RATE",
    help="Give each worker a link of this rate, such as 1gbit, in a network namespace (root).  [default: loopback]",
)
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
def allreduce(**options: Any) -> None:
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
    from .rack import ASSUMPTIONS

    asked = Asked(**options)
    asked.check()
    table, as_json = asked.table(), asked.as_json
    total = len(asked.places()) * (1 + len(asked.sizes))
    measured = show(asked.lines, table, total=total, as_json=as_json)
    if any(line.get("joined_again") for line in measured):
        click.echo(JOINED_AGAIN, err=as_json)
    if asked.lanes_list:
        click.echo(ASSUMPTIONS, err=as_json)
    write_report(
        asked.report, measured, table, as_json=as_json, make=lambda path: allreduce_report(path, measured, table.title)
    )
