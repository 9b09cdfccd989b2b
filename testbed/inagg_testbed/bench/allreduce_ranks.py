"""The ranks of `inagg bench allreduce`: worker processes around a switch, which do runs as they are told."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from inagg_host.allreduce import AllReduce
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_wire.formats import FORMATS

from ..switch_process import SwitchProcess
from ..temporary import TemporaryFolder
from ..testbed.web import live_view
from ..topology import Node, Topology, inside, open_topology, start_target, target_entry
from .children import TOO_SLOW, Child, ask, common_barrier, crew, gloo_rank, receive_all, requests, slowest
from .links import WorkerBytes, run_limit_s
from .reader import Reader

START_LIMIT_S = 120.0
LOSSLESS = "inagg-lossless"
"""Name of the system that loses nothing, where the other does."""
TREE, REENCODE = "inagg-tree", "inagg-tree-reencode"
"""Names of the systems that go through a leaf in each rack, where the other goes to the switch behind them: the leaves
send exact partial sums, or round them again (in a format of the same name with this end)."""
ROUNDING = "-reencode"
GLOO, GLOO_SCATTERED = "gloo", "gloo scattered"
BUSY = ("encode_s", "network_s", "decode_s")
COUNTED = ("bytes_out", "bytes_in", "datagrams_out", "datagrams_in", "epochs", *BUSY)
"""Counters of a worker that are taken."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A worker process, and what it joins."""

    node: Node
    number: int
    workers: int
    barrier: Barrier
    options: dict[str, Any]
    """Options of `AllReduce`, with the switch."""
    store: str | None
    """The file through which Gloo's ranks find each other; None: without Gloo."""
    loss: float
    seed: int
    ways: Sequence[str]
    switch6: str
    """The control address of another switch, over IPv6; empty unless that is a way."""
    leaf: str
    """The control address of the rack's leaf; empty without racks."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """The arrays of a rank, all float32."""

    values: NDArray[np.float32]
    """(elements,): what it contributes."""
    buffer: NDArray[np.float32]
    """The same before each run, and afterwards the sums."""
    own: NDArray[np.float32]
    """(elements,): gets what the rank has contributed, as it was rounded."""
    part: NDArray[np.float32]
    """(elements // workers,): gets the sums of the rank's part."""
    parts: NDArray[np.float32]
    """The beginning of the buffer, as long as the parts of all ranks together."""

    @classmethod
    def of(cls, rank: Rank, elements: int) -> Self:
        values = np.random.default_rng(rank.number).standard_normal(elements, np.float32)
        buffer, part = np.empty_like(values), np.zeros(elements // rank.workers, np.float32)
        return cls(values, buffer, np.zeros_like(values), part, buffer[: part.size * rank.workers])


Reduce = Callable[[Tensors], object]
"""Sums the buffer of all ranks."""


def _worker(connection: Connection, rank: Rank) -> None:
    """A rank: joins its systems, then does the runs that it is told and reports their seconds and bytes."""
    with ExitStack() as stack:
        systems: dict[str, Reduce] = {}
        gloo_bytes: WorkerBytes | None = None
        if rank.store is not None:
            stack.enter_context(gloo_rank(rank.number, rank.workers, rank.store))
            gloo_bytes = WorkerBytes(rank.node)
            systems.update(_gloo())
        networks = {name: stack.enter_context(network) for name, network in _networks(rank)}
        systems.update(_ours(networks, rank.ways))
        connection.send((None, None))
        tensors = Tensors.of(rank, 0)
        for system, elements, runs in requests(connection):
            if elements != tensors.values.size:
                tensors = Tensors.of(rank, elements)
            carried = gloo_bytes if system in (GLOO, GLOO_SCATTERED) else None
            network = networks.get(system, networks["inagg"])
            with _profiler() if system == way_name("profiler") else nullcontext():
                found = _measure(systems[system], tensors, runs, rank.barrier, partial(_count, network, carried))
            connection.send((None, found))


def _measure(
    reduce: Reduce, tensors: Tensors, runs: int, barrier: Barrier, count: Callable[[], Mapping[str, float]]
) -> tuple[list[float], dict[str, float]]:
    """The seconds of each of ``runs``, which begin at the ``barrier``, and what ``count`` counts in one."""
    seconds = []
    barrier.wait()
    before = count()
    for _ in range(runs):
        np.copyto(tensors.buffer, tensors.values)  # an in-place sum of sums would grow without bound
        barrier.wait()
        start_s = time.perf_counter()
        reduce(tensors)
        seconds.append(time.perf_counter() - start_s)
        barrier.wait()  # what this rank does next would take processors from ranks that are not done
    after = count()
    barrier.wait()
    return seconds, {name: (after[name] - before[name]) / runs for name in COUNTED}


def _count(network: AllReduce, gloo_bytes: WorkerBytes | None) -> Mapping[str, float]:
    """`COUNTED` so far, of a job or, if there are ``gloo_bytes``, of Gloo, of which nothing else is known."""
    if gloo_bytes is None:
        return network.counters.as_dict()
    bytes_out, bytes_in = gloo_bytes.count()
    return dict.fromkeys(COUNTED, 0.0) | {"bytes_out": bytes_out, "bytes_in": bytes_in}


def _gloo() -> dict[str, Reduce]:
    """Gloo's systems, in a process that is a rank of it."""
    import torch
    import torch.distributed as dist

    # Its name in newer versions of torch, which warn of the older one.
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return {
        GLOO: lambda t: dist.all_reduce(torch.from_numpy(t.buffer)),
        GLOO_SCATTERED: lambda t: reduce_scatter(torch.from_numpy(t.part), torch.from_numpy(t.parts)),
    }


def _networks(rank: Rank) -> Iterator[tuple[str, AllReduce]]:
    """The jobs that a rank joins, by the names of their systems."""
    join = partial(AllReduce, rank=rank.number, workers=rank.workers)
    lossy = partial(FaultLink, faults=Faults(drop=rank.loss), seed=(rank.seed << 10) + rank.number)
    yield "inagg", join(wrap_link=lossy if rank.loss else None, **rank.options)
    if rank.loss:
        yield LOSSLESS, join(**rank.options | {"job": LOSSLESS})
    if "ipv6" in rank.ways:
        yield way_name("ipv6"), join(**rank.options | {"switch": rank.switch6})
    for name, format_ in trees(rank.options["format"]).items() if rank.leaf else ():
        yield name, join(**rank.options | {"switch": rank.leaf, "job": name, "format": format_})


def _ours(networks: Mapping[str, AllReduce], ways: Sequence[str]) -> dict[str, Reduce]:
    """The systems that ``networks`` are, and other ``ways`` to use the first of them."""

    def plain(all_reduce: AllReduce) -> Reduce:
        return lambda t: all_reduce(t.buffer)

    first = networks["inagg"]
    of_ways: dict[str, Reduce] = {
        "contributed": lambda t: first.submit(t.buffer, contributed=t.own, wait=True).result(),
        "scattered": lambda t: first.submit(t.parts, t.part, wait=True, scatter=True).result(),
        "profiler": plain(first),
        "watched": plain(first),
    }
    found = {way_name(way): reduce for way, reduce in of_ways.items() if way in ways}
    return found | {name: plain(network) for name, network in networks.items()}


def trees(format_: str) -> dict[str, str]:
    """The systems that measure a format through a tree, each with its format there."""
    rounding = format_ + ROUNDING
    return {TREE: format_} | ({REENCODE: rounding} if rounding in FORMATS else {})


def way_name(way: str) -> str:
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
        with Reader(self.page) if self.page is not None and system == way_name("watched") else nullcontext():
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
        store = f"{stack.enter_context(TemporaryFolder('bench'))}/store" if against else None
        options = {"switch": switch.control, "format": format_, **options}
        children = stack.enter_context(crew())
        barrier = common_barrier(workers)
        for rank, node in enumerate(topology.workers):
            leaf = switch.leaves[topology.rack_of(rank)] if racks else ""
            about = Rank(node, rank, workers, barrier, options, store, loss, seed, ways, switch6, leaf)
            children.append(Child(f"rank {rank}", inside, node, _worker, about))
        receive_all(children, START_LIMIT_S)
        yield Ranks(topology, switch.control, web.url, children)
