"""Hosts of several ranks, such as eight GPUs, behind a link each: what their gradients take, and what the links carry.

All ranks are processes of this machine. A run lasts from a common barrier to the end of the slowest rank; the bytes are
those of a host's interface, with headers.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

from inagg_switch.text import count_text

from ..progress import Doing
from ..temporary import TemporaryFolder
from ..topology import Node, inside, open_topology, start_target
from .children import TOO_SLOW, Child, ask, common_barrier, crew, gloo_rank, receive_all, requests, slowest
from .links import interface_bytes, run_limit_s
from .options import size_text

START_LIMIT_S = 240.0
LOOKED_AT = 1 << 16
"""So many sums, at most, tell the error: to draw all that all ranks have would take minutes and gigabytes."""
TAIL = 16
"""So many numbers at the end of a tensor PyTorch draws anew, if its size is no multiple of this."""
TURNS = 3
"""After a run each, which says how many fit into a turn."""
ONE_RANK, ALL_RANKS, GLOO = "inagg, inside first", "inagg, every rank", "gloo"
"""The systems: hosts sum inside first, and the network carries each value once a host; every rank has the switch sum
all that it has; Gloo's all-reduce of all ranks."""
SYSTEMS = (ONE_RANK, ALL_RANKS, GLOO)
RUNS_OF_SIZE = (1 + TURNS) * len(SYSTEMS)
"""Number of runs that `bench_hosts` tells of, for each size, beside the start of the ranks."""


def _rank(
    connection: Connection, node: Node, rank: int, ranks: int, local: int, format_: str, store: str,
    environment: dict[str, str], barrier: Barrier,
) -> None:  # fmt: skip
    """A rank: joins all systems, then does the runs that it is told, and reports their seconds and its host's bytes."""
    os.environ.update(environment)
    with gloo_rank(rank, ranks, store):
        import torch
        import torch.distributed as dist

        from inagg_host.torch import Options

        systems: dict[str, Any] = {GLOO: None}
        for name, size in ((ONE_RANK, local), (ALL_RANKS, 1)):
            options = Options(format=format_, local_size=size, min_bytes=0, job=name.replace(", ", "-"))
            systems[name] = dist.new_group(backend="inagg", pg_options=options)
        connection.send((None, None))
        for system, elements, runs in requests(connection):
            values = torch.randn(elements, generator=torch.Generator().manual_seed(rank))
            buffer = torch.empty_like(values)
            seconds = []
            barrier.wait()
            before = interface_bytes(node.interface)
            for _ in range(runs):
                buffer.copy_(values)
                barrier.wait()
                start_s = time.perf_counter()
                dist.all_reduce(buffer, group=systems[system])
                seconds.append(time.perf_counter() - start_s)
                barrier.wait()
            carried = [(a - b) / runs for a, b in zip(interface_bytes(node.interface), before, strict=True)]
            barrier.wait()
            connection.send((None, (seconds, *carried, _error(buffer, ranks, elements))))


def _error(sums: Any, ranks: int, elements: int) -> float:
    """Error of the first sums, relative to their norm: all ranks' values are known, as their seeds are."""
    import torch

    drawn = min(elements, LOOKED_AT)
    alike = drawn if drawn == elements else drawn - TAIL  # of the first numbers that a rank has drawn
    wanted = torch.zeros(alike, dtype=torch.float64)
    for rank in range(ranks):
        wanted += torch.randn(drawn, generator=torch.Generator().manual_seed(rank))[:alike]
    return float((sums[:alike].double() - wanted).norm() / wanted.norm())


def bench_hosts(
    hosts: int, local: int, link: str, format_: str, sizes: Sequence[int], *, seconds: float,
    progress: Doing = lambda _: None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Lines of results: for each size one per system. Systems take turns, which ``progress`` is told."""
    ranks = hosts * local
    progress(f"starting {count_text(ranks, 'rank')}")
    with ExitStack() as stack:
        topology = stack.enter_context(open_topology(hosts, link))
        switch = stack.enter_context(start_target("software", topology, []))
        directory = stack.enter_context(TemporaryFolder("bench"))
        children = stack.enter_context(crew())
        barrier = common_barrier(ranks)
        environment = {"INAGG_SWITCH": switch.control}
        for rank in range(ranks):
            node = topology.workers[rank // local]
            arguments = node, rank, ranks, local, format_, f"{directory}/store", environment, barrier
            children.append(Child(f"rank {rank}", inside, node, _rank, *arguments))
        receive_all(children, START_LIMIT_S)

        def run(system: str, elements: int, runs: int) -> tuple[list[float], float, float, float]:
            progress(f"{system}, {size_text(4 * elements)}")
            limit_s = seconds + run_limit_s(topology.link, 4 * elements * local, runs)
            answers = ask(children, (system, elements, runs), limit_s, TOO_SLOW)
            up, down = (statistics.mean(a[which] for a in answers) for which in (1, 2))
            return slowest(a[0] for a in answers), up, down, max(a[3] for a in answers)

        for size in sizes:
            yield from _measure(run, size // 4, seconds, {
                "bench": "hosts", "hosts": hosts, "local_size": local, "link": str(topology.link), "format": format_,
            })  # fmt: skip


def _measure(
    run: Callable[[str, int, int], tuple[list[float], float, float, float]], elements: int, seconds: float,
    about: dict[str, Any],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    runs = {s: max(1, round(seconds / TURNS / run(s, elements, 1)[0][0])) for s in SYSTEMS}
    turns = [{s: run(s, elements, runs[s]) for s in SYSTEMS} for _ in range(TURNS)]
    found = {s: [turn[s] for turn in turns] for s in SYSTEMS}
    medians = {s: statistics.median(t for times, *_ in found[s] for t in times) for s in SYSTEMS}
    for system in SYSTEMS:
        _, up, down, error = found[system][-1]
        yield {
            **about, "system": system, "format": "float32" if system == GLOO else about["format"],
            "elements": elements, "median_s": medians[system], "elements_per_s": elements / medians[system],
            "host_bytes_up": round(up), "host_bytes_down": round(down), "error": error,
            "runs": TURNS * runs[system], "ratio_to_gloo": medians[GLOO] / medians[system],
        }  # fmt: skip
