"""How fast an all-reduce is, through the switch and through Gloo, in turns in the same processes.

Real worker processes over loopback or shaped links, and a software switch. Each run is timed on every rank from a
common barrier, of neither system, to the rank's own end; the slowest rank counts.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np

from inagg_host.allreduce import AllReduce
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_switch.text import count_text
from inagg_wire.formats import FORMATS, job_format
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500

from ..progress import Doing
from ..switch_process import SwitchProcess
from ..temporary import TemporaryFolder
from ..testbed.web import live_view
from ..topology import Node, Topology, inside, open_topology, start_target, target_entry
from .children import TOO_SLOW, Child, ask, common_barrier, crew, gloo_rank, receive_all, requests, slowest
from .links import WorkerBytes, run_limit_s, share_of_link
from .options import size_text
from .rack import predict, wire_bytes
from .reader import Reader
from .turns import in_turns

START_LIMIT_S = 120.0
TARGET_S = 4.0
"""Time to spend on each system and size, within the bounds on the number of runs."""
LOSSLESS = "inagg-lossless"
"""Name of the system that loses nothing, where the other does."""
TREE, REENCODE = "inagg-tree", "inagg-tree-reencode"
"""Names of the systems that go through a leaf in each rack, where the other goes to the switch behind them: the leaves
send exact partial sums, or round them again (in a format of the same name with this end)."""
ROUNDING = "-reencode"
GLOO_SCATTERED = "gloo scattered"
BUSY = ("encode_s", "network_s", "decode_s")
COUNTED = ("bytes_out", "bytes_in", "datagrams_out", "datagrams_in", "epochs", *BUSY)
"""Counters of a worker that are taken."""


def _worker(
    connection: Connection, node: Node, rank: int, workers: int, options: dict[str, Any], against: bool, store: str,
    loss: float, seed: int, ways: Sequence[str], switch6: str, leaf: str, barrier: Barrier,
) -> None:  # fmt: skip
    """A rank: joins both systems, then does the runs that it is told and reports their seconds and bytes."""
    with ExitStack() as stack:
        systems: dict[str, Callable[[np.ndarray[Any, Any]], object]] = {}
        gloo_bytes: WorkerBytes | None = None
        if against:
            stack.enter_context(gloo_rank(rank, workers, store))
            gloo_bytes = WorkerBytes(node)
            import torch
            import torch.distributed as dist

            systems["gloo"] = lambda x: dist.all_reduce(torch.from_numpy(x))
            # Its name in newer versions of torch, which warn of the older one.
            reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            systems[GLOO_SCATTERED] = lambda x: reduce_scatter(
                torch.from_numpy(part), torch.from_numpy(x[: part.size * workers])
            )
        wrap = (lambda link: FaultLink(link, Faults(drop=loss), seed=(seed << 10) + rank)) if loss else None
        all_reduce = stack.enter_context(AllReduce(rank=rank, workers=workers, wrap_link=wrap, **options))
        networks = {"inagg": all_reduce}
        if loss:
            calm = AllReduce(rank=rank, workers=workers, **{**options, "job": LOSSLESS})
            networks[LOSSLESS] = stack.enter_context(calm)
        if "ipv6" in ways:
            other = AllReduce(rank=rank, workers=workers, **{**options, "switch": switch6})
            networks[_name("ipv6")] = stack.enter_context(other)
        for name, format_ in trees(options["format"]).items() if leaf else ():
            tree = AllReduce(rank=rank, workers=workers, **options | {"switch": leaf, "job": name, "format": format_})
            networks[name] = stack.enter_context(tree)
        systems.update(networks)
        own = part = np.zeros(0, np.float32)
        if "contributed" in ways:
            systems[_name("contributed")] = lambda x: all_reduce.submit(x, contributed=own, wait=True).result()
        systems.update({_name(way): all_reduce for way in ("profiler", "watched")})
        if "scattered" in ways:
            systems[_name("scattered")] = lambda x: all_reduce.submit(
                x[: part.size * workers], part, wait=True, scatter=True
            ).result()
        connection.send((None, None))
        values = buffer = np.zeros(0, np.float32)
        for system, elements, runs in requests(connection):
            if elements != values.size:
                values = np.random.default_rng(rank).standard_normal(elements, np.float32)
                buffer, own = np.empty_like(values), np.zeros_like(values)
                part = np.zeros(elements // workers, np.float32)
            reduce, seconds, counted = systems[system], [], networks.get(system, all_reduce)
            barrier.wait()
            before, carried_before = counted.counters.as_dict(), gloo_bytes.count() if gloo_bytes else (0, 0)
            with _profiler() if system == _name("profiler") else nullcontext():
                for _ in range(runs):
                    np.copyto(buffer, values)  # an in-place sum of sums would grow without bound
                    barrier.wait()
                    start_s = time.perf_counter()
                    reduce(buffer)
                    seconds.append(time.perf_counter() - start_s)
                    barrier.wait()  # what this rank does next would take processors from ranks that are not done
            after, carried = counted.counters.as_dict(), gloo_bytes.count() if gloo_bytes else (0, 0)
            barrier.wait()
            done = {name: (after[name] - before[name]) / runs for name in COUNTED}
            if system in ("gloo", GLOO_SCATTERED):
                up, down = ((c - b) / runs for c, b in zip(carried, carried_before, strict=True))
                done = dict.fromkeys(COUNTED, 0.0) | {"bytes_out": up, "bytes_in": down}
            connection.send((None, (seconds, done)))


def trees(format_: str) -> dict[str, str]:
    """The systems that measure a format through a tree, each with its format there."""
    rounding = format_ + ROUNDING
    return {TREE: format_} | ({REENCODE: rounding} if rounding in FORMATS else {})


def of_packets(lanes: int, workers: int, line: dict[str, Any], counted: dict[str, float]) -> dict[str, Any]:
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


def _name(way: str) -> str:
    """Name of the system that sums in another ``way``."""
    return f"inagg {way}"


def _profiler() -> AbstractContextManager[object]:
    from torch.profiler import ProfilerActivity, profile

    import inagg_host.torch  # noqa: F401  # shows what the transport does

    return profile(activities=[ProfilerActivity.CPU])


ASK = """
import sys
from inagg_switch.service.control_client import ControlClient

with ControlClient(sys.argv[1]) as client:
    shards = client.stats().shards
print(sum(shard.datagrams_in for shard in shards), sum(shard.datagrams_out for shard in shards))
"""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Worker processes around a switch of their own: see `open_ranks`."""

    topology: Topology
    control: str
    """The switch's control address."""
    page: str | None
    """The live view, if there is one."""
    children: Sequence[Child]

    def run(self, elements: int, system: str, runs: int) -> tuple[list[float], dict[str, float]]:
        """Seconds of each run, and what a worker counts in one, of `COUNTED`; of Gloo the bytes alone."""
        with Reader(self.page) if self.page is not None and system == _name("watched") else nullcontext():
            size, topology = 4 * elements, self.topology
            of_racks_s = run_limit_s(topology.trunk, size * len(self.children), runs)
            limit_s = max(run_limit_s(topology.link, size, runs), of_racks_s)
            answers = ask(self.children, (system, elements, runs), limit_s, TOO_SLOW)
        return slowest(a[0] for a in answers), {name: statistics.mean(a[1][name] for a in answers) for name in COUNTED}

    def datagrams(self) -> tuple[int, int]:
        """Datagrams in and out that the switch has counted since it started. It is asked where it is, as its
        control service may be reached from its namespace alone. Raises `subprocess.CalledProcessError`."""
        node = self.topology.switch
        command = node.command([sys.executable, "-c", ASK, self.control])
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        datagrams_in, datagrams_out = map(int, told.stdout.split())
        return datagrams_in, datagrams_out


@contextmanager
def open_ranks(
    workers: int,
    format_: str,
    *,
    against: bool,
    shards: int = 1,
    loss: float = 0.0,
    seed: int = 0,
    link: str | None = None,
    target: str = "software",
    switch_options: Sequence[str] = (),
    ways: Sequence[str] = (),
    racks: int = 0,
    trunk: str | None = None,
    **options: Any,
) -> Iterator[Ranks]:
    """Start them, and end all at the end. ``link``: the rate of each worker's link, in namespaces; None: over loopback.
    ``target``: which switch; ``switch_options``: what it is started with. ``racks``: leaves below it, each behind a
    ``trunk``."""
    with ExitStack() as stack:
        wiring = target_entry(target).wiring
        topology = stack.enter_context(open_topology(workers, link, wiring=wiring, racks=racks, trunk=trunk))
        shard_options = ["--shards", str(shards)] if shards > 1 else []
        web = stack.enter_context(live_view("127.0.0.1:0" if "watched" in ways else None))
        switch = stack.enter_context(start_target(target, topology, [*shard_options, *switch_options, *web.options]))
        switch6 = ""
        if "ipv6" in ways:
            of_ipv6 = SwitchProcess(*shard_options, control="[::1]:0", data="[::1]:0")
            switch6 = stack.enter_context(of_ipv6).control
        directory = stack.enter_context(TemporaryFolder("bench"))
        options = {"switch": switch.control, "format": format_, **options}
        children = stack.enter_context(crew())
        barrier = common_barrier(workers)
        for rank, node in enumerate(topology.workers):
            leaf = switch.leaves[topology.rack_of(rank)] if racks else ""
            about = options, against, f"{directory}/store", loss, seed, ways, switch6, leaf, barrier
            children.append(Child(f"rank {rank}", inside, node, _worker, node, rank, workers, *about))
        receive_all(children, START_LIMIT_S)
        yield Ranks(topology, switch.control, web.url, children)


def bench_allreduce(
    workers: int,
    format_: str,
    sizes: Sequence[int],
    *,
    against: str | None,
    seconds: float = TARGET_S,
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
    if lanes is not None:
        options["lanes"] = lanes
    others, through_tree = [_name(way) for way in ways], trees(format_) if racks else {}
    systems = [
        "inagg",
        *([LOSSLESS] if loss else []),
        *through_tree,
        *others,
        *([against] if against else []),
        *([GLOO_SCATTERED] if against and "scattered" in ways else []),
    ]
    progress(f"starting {count_text(workers, 'worker')}")
    with open_ranks(
        workers, format_, against=against is not None, loss=loss, ways=ways, racks=racks, **options
    ) as ranks:
        for size in sizes:
            elements = size // 4
            progress(f"{count_text(workers, 'worker')}, {format_}, {size_text(size)}")
            times, of_turns = in_turns(partial(ranks.run, elements), systems, seconds, whole)
            medians = {s: statistics.median(times[s]) for s in systems}
            counted = {s: {k: statistics.median(t[k] for t in of_turns[s]) for k in COUNTED} for s in systems}
            for system in systems:
                ours = system not in (against, GLOO_SCATTERED)
                line = {
                    "bench": "allreduce",
                    "system": system,
                    "workers": workers,
                    "format": through_tree.get(system, format_) if ours else "float32",
                    "elements": elements,
                    "median_s": medians[system],
                    "elements_per_s": elements / medians[system],
                    "wire_bytes_up": round(counted[system]["bytes_out"]),
                    "wire_bytes_down": round(counted[system]["bytes_in"]),
                    "runs": len(times[system]),
                    "runs_s": [round(run_s, 9) for run_s in times[system]],
                }
                if racks and ours:
                    line["topology"] = "tree" if system in through_tree else "flat"
                    if system in through_tree:
                        line["trunk"] = "reencode" if job_format(through_tree[system]).roundings else "exact"
                    line |= {"racks": racks, "trunk_link": str(ranks.topology.trunk or ranks.topology.link)}
                link, fmt = ranks.topology.link, job_format(format_)
                if link is not None:
                    line["link"] = str(link)
                    if ours:
                        sent = lanes or fmt.max_lanes(workers, UDP_PAYLOAD_BYTES_1500)
                        line["share_of_link"] = share_of_link(link, fmt, workers, sent, elements, medians[system])
                if any(turn["epochs"] for turn in of_turns[system]):
                    line["joined_again"] = True
                if system == "inagg" and loss:
                    line["loss"] = loss
                if lanes is not None:
                    line |= {"lanes": lanes} | (of_packets(lanes, workers, line, counted[system]) if ours else {})
                yield line
            if against or loss or ways or racks:
                line = {"bench": "allreduce", "workers": workers, "format": format_, "elements": elements}
                if lanes is not None:
                    line["lanes"] = lanes
                if against:
                    line["ratio_to_gloo"] = medians[against] / medians["inagg"]
                if loss:
                    line["ratio_to_lossless"] = medians[LOSSLESS] / medians["inagg"]
                for system in through_tree:
                    name = system.removeprefix("inagg-").replace("-", "_")
                    line[f"{name}_to_flat"] = medians["inagg"] / medians[system]
                    if against:
                        line[f"{name}_to_gloo"] = medians[against] / medians[system]
                for way in ways:
                    line[f"{way}_to_plain"] = medians["inagg"] / medians[_name(way)]
                if "scattered" in ways:
                    down = {s: counted[s]["bytes_in"] for s in (_name("scattered"), "inagg")}
                    line["scattered_down_to_plain"] = down[_name("scattered")] / down["inagg"]
                    if against:
                        line["scattered_to_gloo"] = medians[GLOO_SCATTERED] / medians[_name("scattered")]
                yield line
