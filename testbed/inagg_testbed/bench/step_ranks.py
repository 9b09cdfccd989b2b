"""Worker processes that communicate as DistributedDataParallel would in a training step, without its computation.

A rank sleeps for as long as the forward pass and each part of the backward pass take, and hands over a bucket of
gradients when it would be complete: to the communication hook `inagg_hook`, or to Gloo as DistributedDataParallel does.
The cores are then free for communication, as they are where a GPU computes, and several ranks fit one machine.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..profiles.compute import Compute
from ..temporary import TemporaryFolder
from ..topology import LinkSpec, Node, inside, open_topology, start_target
from .children import Child, ask, crew, gloo_rank, receive_all, requests, slowest
from .links import WorkerBytes, run_limit_s

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import GradBucket

    from inagg_host.torch import InaggState

GLOO = "gloo"
START_LIMIT_S = 180.0
NOISE_ELEMENTS = 1 << 18
IDLE_S = 0.5
QUIET_LOAD = 0.1
"""More than this share of the cores used by others disturbs what is measured."""


@dataclass(frozen=True, slots=True)
class StepRun:
    """Steps of all ranks. ``seconds``: of each step, on the slowest rank. Others are means over ranks and steps."""

    seconds: tuple[float, ...]
    bytes_up: float
    """Bytes that a worker's interface sent, with headers (/proc/net/dev). On loopback, which carries everything: its
    share for Gloo, and the UDP payload that it sent to the switch."""
    worker_cpu_s: float
    """CPU time of a worker process."""
    switch_cpu_s: float
    """CPU time of the switch's processes, in ticks of 10 ms: good for long runs."""
    cpu_busy: float
    """Share of this machine's CPU time that was used, by anything: workers, switch, kernel, strangers. 0 to 1."""
    resent: float
    """Datagrams that a worker sent again; 0 for Gloo."""
    rtt_s: float
    """Smoothed round trip of a block at the end; 0 for Gloo."""

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @classmethod
    def together(cls, runs: Sequence[StepRun]) -> StepRun:
        """The steps of several runs of equal length."""

        def mean(name: str) -> float:
            return float(statistics.mean(getattr(run, name) for run in runs))

        seconds = tuple(second for run in runs for second in run.seconds)
        return cls(
            seconds,
            mean("bytes_up"),
            mean("worker_cpu_s"),
            mean("switch_cpu_s"),
            mean("cpu_busy"),
            mean("resent"),
            runs[-1].rtt_s,
        )


@dataclass(slots=True)
class _Bucket:
    """Stand-in for what `inagg_hook` needs of a torch.distributed.GradBucket, which cannot be made from Python."""

    number: int
    tensor: torch.Tensor

    def buffer(self) -> torch.Tensor:
        return self.tensor

    def index(self) -> int:
        return self.number


def cpu_times() -> tuple[int, int]:
    """Ticks that all cores were busy, and all their ticks (proc(5), /proc/stat)."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # all but idle and iowait


def family_cpu_s(pid: int) -> float:
    """CPU time of a process and its descendants (proc(5), /proc/PID/stat, fields 4, 14 and 15)."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(entry))
        ticks[int(entry)] = int(fields[11]) + int(fields[12])
    total, waiting = 0, [pid]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


def _sleep_until(moment_s: float) -> None:
    left_s = moment_s - time.perf_counter()
    if left_s > 0:
        time.sleep(left_s)


def _worker(
    connection: Connection, node: Node, rank: int, workers: int, control: str, systems: Sequence[str], store: str
) -> None:
    """A rank: joins a job for each system, then does the steps that it is told."""
    with gloo_rank(rank, workers, store), ExitStack() as stack:
        carried = WorkerBytes(node)
        import torch

        from inagg_host.torch import InaggState

        states = {
            system: stack.enter_context(InaggState(switch=control, format=system, job=f"step/{system}"))
            for system in systems
            if system != GLOO
        }
        noise = torch.from_numpy(np.random.default_rng(rank).standard_normal(NOISE_ELEMENTS, np.float32))
        connection.send((None, None))
        buffers: list[torch.Tensor] = []
        for system, compute, steps in requests(connection):
            sizes = [elements for elements, _ in compute.buckets]
            if sizes != [buffer.numel() for buffer in buffers]:
                buffers.clear()  # first, so that two models never lie in memory
                buffers.extend(noise.repeat(-(-elements // NOISE_ELEMENTS))[:elements] for elements in sizes)
            report = _do_steps(states.get(system), compute, buffers, steps, carried, node.namespace is None)
            connection.send((None, report))


def _do_steps(
    state: InaggState | None, compute: Compute, buffers: Sequence[torch.Tensor], steps: int, carried: WorkerBytes,
    over_loopback: bool,
) -> dict[str, Any]:  # fmt: skip
    """Do the steps, and say what they took; without ``state`` over Gloo."""
    import torch.distributed as dist

    from inagg_host.stats import Counters

    before = state.counters.as_dict() if state else {}
    sent = carried.count()[0]
    dist.barrier()  # after the count: a rank that is ahead may have sent before it
    cpu_s = time.process_time()
    seconds = [_step(state, compute, buffers) for _ in range(steps)]
    cpu_s = time.process_time() - cpu_s
    dist.barrier()  # a rank can have its sums before all others have sent theirs
    sent = carried.count()[0] - sent
    counters = state.counters if state else Counters()
    if state is not None and over_loopback:  # over loopback Gloo alone is counted
        sent = counters.bytes_out - before["bytes_out"]
    return {
        "seconds": seconds,
        "cpu_s": cpu_s / steps,
        "bytes_up": sent / steps,
        "resent": (counters.resent - before.get("resent", 0)) / steps,
        "rtt_s": counters.rtt_s,
    }


def _step(state: InaggState | None, compute: Compute, buffers: Sequence[torch.Tensor]) -> float:
    """One step; its seconds."""
    start_s = time.perf_counter()
    _sleep_until(start_s + compute.forward_s)
    pending = []
    for number, (tensor, (_, ready_s)) in enumerate(zip(buffers, compute.buckets, strict=True)):
        _sleep_until(start_s + compute.forward_s + ready_s)
        pending.append(_reduce(state, number, tensor))
    _sleep_until(start_s + compute.seconds)
    for future in pending:
        future.wait()
    return time.perf_counter() - start_s


def _reduce(state: InaggState | None, number: int, tensor: torch.Tensor) -> torch.futures.Future[Any]:
    """Begin to make the mean of a bucket: with the hook, or over Gloo as DistributedDataParallel does."""
    import torch.distributed as dist

    from inagg_host.torch import inagg_hook

    if state is not None:
        return inagg_hook(state, cast("GradBucket", _Bucket(number, tensor)))
    work = dist.all_reduce(tensor.div_(dist.get_world_size()), async_op=True)
    assert work is not None
    future: torch.futures.Future[Any] = work.get_future()
    return future


def disturbance(foreign_load: float) -> str | None:
    """Warning for people if something else was running; None if the machine was quiet."""
    if foreign_load <= QUIET_LOAD:
        return None
    return f"something else used {foreign_load:.0%} of this machine: times are too long, and not to be relied on"


@dataclass(frozen=True, slots=True)
class StepRanks:
    """Worker processes around a switch of their own: see `open_step_ranks`."""

    children: Sequence[Child]
    switch_pid: int | None
    foreign_load: float
    """Share of the cores that something else used before the first step, 0 to 1."""
    link: LinkSpec | None = None
    """The workers' links; None: loopback."""

    def run(self, system: str, compute: Compute, steps: int) -> StepRun:
        """``steps`` steps, one after another. Raises as `children.ask`."""
        busy, ticks = cpu_times()
        switch_s = family_cpu_s(self.switch_pid) if self.switch_pid else 0.0
        limit_s = steps * (compute.seconds + run_limit_s(self.link, 4 * compute.elements))
        reports = ask(self.children, (system, compute, steps), limit_s)
        busy_after, ticks_after = cpu_times()
        switch_after_s = family_cpu_s(self.switch_pid) if self.switch_pid else 0.0

        def mean(name: str) -> float:
            return float(statistics.mean(report[name] for report in reports))

        return StepRun(
            seconds=tuple(slowest(report["seconds"] for report in reports)),
            bytes_up=mean("bytes_up"),
            worker_cpu_s=mean("cpu_s"),
            switch_cpu_s=(switch_after_s - switch_s) / steps,
            cpu_busy=(busy_after - busy) / max(ticks_after - ticks, 1),
            resent=mean("resent"),
            rtt_s=mean("rtt_s"),
        )


@contextmanager
def open_step_ranks(workers: int, systems: Sequence[str], link: str | None = None) -> Iterator[StepRanks]:
    """Start them, on a topology of their own, and end all at the end.

    ``systems``: "gloo" and names of formats. ``link``: as `open_topology` takes it; None is loopback.
    """
    with (
        open_topology(workers, link) as topology,
        start_target("software", topology) as switch,
        TemporaryFolder("step") as folder,
        crew() as children,
    ):
        for rank, node in enumerate(topology.workers):
            arguments = (node, rank, workers, switch.control, tuple(systems), f"{folder}/store")
            children.append(Child(f"rank {rank}", inside, node, _worker, *arguments))
        receive_all(children, START_LIMIT_S)
        busy, ticks = cpu_times()
        time.sleep(IDLE_S)  # nothing of ours has anything to do
        busy_after, ticks_after = cpu_times()
        foreign_load = (busy_after - busy) / max(ticks_after - ticks, 1)
        yield StepRanks(children, switch.pid, foreign_load, topology.link)
