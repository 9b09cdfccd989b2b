"""How fast an all-reduce is, through the switch and through Gloo, in turns in the same processes.

Real worker processes over loopback or shaped links, and a software switch. Each run is timed on every rank from a
common barrier, of neither system, to the rank's own end; the slowest rank counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from inagg_switch.text import count_text
from inagg_wire.formats import job_format
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500

from ..progress import Doing
from ..topology import Topology
from .allreduce_ranks import BUSY, COUNTED, GLOO_SCATTERED, LOSSLESS, open_ranks, trees, way_name
from .links import share_of_link
from .options import size_text
from .rack import predict, wire_bytes
from .turns import in_turns


@dataclass(frozen=True, slots=True)
class Case:
    """The measurements around one switch: see `bench_allreduce`."""

    workers: int
    format: str
    against: str | None
    loss: float
    ways: Sequence[str]
    racks: int
    lanes: int | None

    @property
    def trees(self) -> dict[str, str]:
        """The systems that go through trees, each with its format there."""
        return trees(self.format) if self.racks else {}

    @property
    def gloo(self) -> list[str]:
        """Systems that are not ours."""
        if not self.against:
            return []
        return [self.against, *([GLOO_SCATTERED] if "scattered" in self.ways else [])]

    @property
    def systems(self) -> list[str]:
        """All that take turns."""
        return ["inagg", *([LOSSLESS] if self.loss else []), *self.trees, *map(way_name, self.ways), *self.gloo]


@dataclass(frozen=True, slots=True)
class Measured:
    """All runs of one system over tensors of one size."""

    seconds: Sequence[float]
    counted: Mapping[str, float]
    """A worker's counters in a run, of `COUNTED`: medians over turns."""
    joined_again: bool

    @classmethod
    def of(cls, seconds: Sequence[float], turns: Sequence[Mapping[str, float]]) -> Self:
        counted = {name: statistics.median(turn[name] for turn in turns) for name in COUNTED}
        return cls(seconds, counted, any(turn["epochs"] for turn in turns))

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


def bench_allreduce(
    workers: int,
    format_: str,
    sizes: Sequence[int],
    *,
    against: str | None,
    seconds: float,
    whole: bool = False,
    loss: float = 0.0,
    ways: Sequence[str] = (),
    racks: int = 0,
    lanes: int | None = None,
    progress: Doing = lambda _: None,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """Lines of results: for each size one per system, and one that compares them. Systems take turns, for some
    ``seconds`` each, or, unless ``whole``, for as many runs as are enough (see `turns`).

    With ``loss``, the share of datagrams that workers lose in each direction, the same is measured without, too; and in
    other ``ways``, of `allreduce_command.WAYS`. With ``racks``, it is measured through the switch behind them, and
    through a tree. With ``lanes``, so many to a datagram, the lines tell packets, too. ``progress`` is told of the
    start, and of each size.
    """
    case = Case(workers, format_, against, loss, ways, racks, lanes)
    if lanes is not None:
        options["lanes"] = lanes
    progress(f"starting {count_text(workers, 'worker')}")
    with open_ranks(
        workers, format_, against=against is not None, loss=loss, ways=ways, racks=racks, **options
    ) as ranks:
        for size in sizes:
            elements = size // 4
            progress(f"{count_text(workers, 'worker')}, {format_}, {size_text(size)}")
            times, of_turns = in_turns(partial(ranks.run, elements), case.systems, seconds, whole)
            measured = {system: Measured.of(times[system], of_turns[system]) for system in case.systems}
            for system, found in measured.items():
                yield _line(case, system, elements, found, ranks.topology)
            if against or loss or ways or racks:
                yield _comparison(case, elements, measured)


def _line(case: Case, system: str, elements: int, found: Measured, topology: Topology) -> dict[str, Any]:
    """The line of one ``system``."""
    ours = system not in case.gloo
    line = {
        "bench": "allreduce",
        "system": system,
        "workers": case.workers,
        "format": case.trees.get(system, case.format) if ours else "float32",
        "elements": elements,
        "median_s": found.median_s,
        "elements_per_s": elements / found.median_s,
        "wire_bytes_up": round(found.counted["bytes_out"]),
        "wire_bytes_down": round(found.counted["bytes_in"]),
        "runs": len(found.seconds),
        "runs_s": [round(run_s, 9) for run_s in found.seconds],
    }
    if case.racks and ours:
        line |= _of_racks(case, system, topology)
    if (link := topology.link) is not None:
        line["link"] = str(link)
        if ours:
            fmt = job_format(case.format)
            sent = case.lanes or fmt.max_lanes(case.workers, UDP_PAYLOAD_BYTES_1500)
            line["share_of_link"] = share_of_link(link, fmt, case.workers, sent, elements, found.median_s)
    if found.joined_again:
        line["joined_again"] = True
    if case.loss and system == "inagg":
        line["loss"] = case.loss
    if case.lanes is not None:
        line["lanes"] = case.lanes
        line |= of_packets(case.lanes, case.workers, line, found.counted) if ours else {}
    return line


def _of_racks(case: Case, system: str, topology: Topology) -> dict[str, Any]:
    """Entries of a line on the way that the sums take between racks."""
    trunks = {"racks": case.racks, "trunk_link": str(topology.trunk or topology.link)}
    if system not in case.trees:
        return {"topology": "flat"} | trunks
    return {"topology": "tree", "trunk": "reencode" if job_format(case.trees[system]).roundings else "exact"} | trunks


def of_packets(lanes: int, workers: int, line: dict[str, Any], counted: Mapping[str, float]) -> dict[str, Any]:
    """Entries of a line on a worker's datagrams: how many it sends and receives a second, and would if it were always
    busy; the bytes of an element on an Ethernet, in the direction that has more; and what a rack would reach."""
    elements, packets = line["elements"], counted["datagrams_out"] + counted["datagrams_in"]
    busy_s = sum(counted[name] for name in BUSY)
    wire = max(wire_bytes(counted[f"bytes_{way}"], counted[f"datagrams_{way}"]) for way in ("out", "in")) / elements
    rack = predict(workers, lanes, elements / busy_s, wire)
    return {
        "packets_per_s": packets / line["median_s"],
        "busy_packets_per_s": packets / busy_s,
        "wire_bytes_per_element": wire,
        **({} if rack is None else {"rack_elements_per_s": rack.elements_per_s, "rack_bound": rack.bound}),
    }


def _comparison(case: Case, elements: int, measured: Mapping[str, Measured]) -> dict[str, Any]:
    """The line that compares systems: ratios of rates, and of bytes."""

    def faster(system: str, than: str) -> float:
        return measured[than].median_s / measured[system].median_s

    line: dict[str, Any] = {"bench": "allreduce", "workers": case.workers, "format": case.format, "elements": elements}
    if case.lanes is not None:
        line["lanes"] = case.lanes
    if case.against:
        line["ratio_to_gloo"] = faster("inagg", case.against)
    if case.loss:
        line["ratio_to_lossless"] = faster("inagg", LOSSLESS)
    for system in case.trees:
        name = system.removeprefix("inagg-").replace("-", "_")
        line[f"{name}_to_flat"] = faster(system, "inagg")
        if case.against:
            line[f"{name}_to_gloo"] = faster(system, case.against)
    for way in case.ways:
        line[f"{way}_to_plain"] = faster(way_name(way), "inagg")
    if "scattered" in case.ways:
        scattered, plain = measured[way_name("scattered")], measured["inagg"]
        line["scattered_down_to_plain"] = scattered.counted["bytes_in"] / plain.counted["bytes_in"]
        if case.against:
            line["scattered_to_gloo"] = faster(way_name("scattered"), GLOO_SCATTERED)
    return line
