"""`inagg bench overlap`: whether gradients travel while others are still computed, and a trace to look at.

Ranks train a network with DistributedDataParallel over a switch, with and without communication, and record one step
with torch.profiler. A bucket that is on its way before the last gradient is computed costs the step less than it takes.

Ranks that share a GPU, or a few processors, wait for each other there, which on machines of their own they would not.
So rank 0 may compute alone, while the others have gradients of the same sizes in the host's memory, ready at once.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inagg.extras import require
from inagg_switch.cli.sections import Whole
from inagg_wire.formats import CHILDREN_MAX

from ..new_folder import NewSubfolder
from ..option_types import format_option, runs_option
from ..profiles import NAMES
from ..progress import Doing
from ..switch_process import SwitchProcess
from ..temporary import TemporaryFolder
from .children import Child, crew, gloo_rank, receive_all
from .cuda import device_of, device_option, require_gpu
from .results import Bars, Column, Table, output_options, show, write_report

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

LIMIT_S = 300.0
WARM_UP_STEPS = 3
"""DDP makes its buckets anew after the first step."""
PLAIN, GLOO, INAGG = "plain", "gloo", "inagg"
LAYERS, WIDTH, BATCH = 8, 1024, 256
"""Layers, width and batch of the plain network."""
BUCKET_MB = {PLAIN: 4.0}
"""Else as DistributedDataParallel has it."""
ALL_REDUCE, COMPUTED = "inagg::all_reduce", "Backward0"


@dataclass(frozen=True, slots=True)
class Overlap:
    """One rank's step; a line of `inagg bench overlap --json`."""

    rank: int
    system: str
    """inagg, or gloo: DistributedDataParallel without a hook."""
    step_s: float
    """Forward and backward, until the device has all gradients; the median."""
    computed_s: float
    """The same without communication."""
    buckets: int
    """Buckets of the recorded step, a slower one; all that follows is of it. 0 for Gloo, of which nothing is known."""
    began_before: int
    """Buckets that were on their way before the last gradient was computed."""
    ended_before: int
    """Buckets of these whose sums had come by then."""
    backward_s: float
    """From the first gradient to the last."""
    travelling_s: float
    """While at least one bucket was on its way."""
    hidden_s: float
    """The part of it before the last gradient was computed."""
    trace: str
    """The trace, for chrome://tracing or ui.perfetto.dev; empty: none was kept."""


def _of_buckets(name: str, text: Callable[[dict[str, Any]], str]) -> Column:
    """A column that is empty where nothing is known of buckets."""
    return name, lambda line: text(line) if line["buckets"] else ""


COLUMNS: list[Column] = [
    ("rank", lambda r: str(r["rank"])),
    ("system", lambda r: r["system"]),
    ("ms/step", lambda r: f"{r['step_s'] * 1e3:.1f}"),
    ("computed", lambda r: f"{r['computed_s'] * 1e3:.1f}"),
    _of_buckets("backward", lambda r: f"{r['backward_s'] * 1e3:.1f}"),
    _of_buckets("buckets", lambda r: str(r["buckets"])),
    _of_buckets("began", lambda r: str(r["began_before"])),
    _of_buckets("back", lambda r: str(r["ended_before"])),
    _of_buckets("travelled", lambda r: f"{r['travelling_s'] * 1e3:.1f}"),
    _of_buckets("hidden", lambda r: f"{r['hidden_s'] * 1e3:.1f}"),
    ("trace", lambda r: r["trace"]),
]


def measure(intervals: list[tuple[float, float]], first_s: float, last_s: float) -> tuple[float, float]:
    """How long at least one of ``intervals`` ran, and how long of that between ``first_s`` and ``last_s``."""
    travelling = hidden = 0.0
    reached = float("-inf")
    for start, end in sorted(intervals):
        start = max(start, reached)
        if end > start:
            travelling += end - start
            hidden += max(0.0, min(end, last_s) - max(start, first_s))
            reached = end
    return travelling, hidden


def _make(model: str, batch: int | None, device: torch.device) -> tuple[nn.Module, torch.Tensor]:
    """A network, the same on all ranks, and its inputs."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if model == PLAIN:
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        return nn.Sequential(*layers).to(device), torch.randn(batch or BATCH, WIDTH).to(device)
    from ..profiles.zoo import ZOO

    return ZOO[model].make().to(device), ZOO[model].inputs(batch or ZOO[model].batch).to(device)


def _only_gradients(network: nn.Module) -> nn.Module:
    """A network of the same parameters and buffers that computes nothing: its gradients are there."""
    import torch
    from torch import nn

    given = [torch.randn_like(parameter) for parameter in network.parameters()]

    class Given(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, *parameters: torch.Tensor) -> torch.Tensor:
            return parameters[0].new_zeros(())

        @staticmethod
        def backward(_context: Any, *_: Any) -> Any:
            return (*given,)

    class OnlyGradients(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, _inputs: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = Given.apply(*self.network.parameters())  # type: ignore[no-untyped-call]
            return result

    return OnlyGradients()


def _rank(
    connection: Connection, rank: int, workers: int, options: dict[str, Any], store: str, trace: str, device: str,
    model: str, batch: int | None, steps: int, systems: list[str], alone: bool,
) -> None:  # fmt: skip
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler says on standard error when it starts
    with gloo_rank(rank, workers, store):
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from inagg_host.torch import InaggState, inagg_hook

        computes = rank == 0 or not alone
        here = device_of(rank) if device == "cuda" and computes else torch.device("cpu")
        for system in systems:
            network, inputs = _make(model, batch, here)
            if not computes:
                network = _only_gradients(network)
            parallel = DistributedDataParallel(network, bucket_cap_mb=BUCKET_MB.get(model))

            def step(parallel: DistributedDataParallel = parallel, inputs: torch.Tensor = inputs) -> None:
                parallel(inputs).square().mean().backward()
                if here.type == "cuda":
                    torch.cuda.synchronize()

            with nullcontext() if system == GLOO else InaggState(job="overlap", **options) as state:
                if state is not None:
                    parallel.register_comm_hook(state, inagg_hook)
                for _ in range(WARM_UP_STEPS):
                    step()
                with parallel.no_sync():
                    computed_s = _median_s(step, steps)
                step_s = _median_s(step, steps)
                found = Overlap(rank, system, step_s, computed_s, 0, 0, 0, 0.0, 0.0, 0.0, "")
                if system == INAGG and computes:
                    found = _record(found, step, trace)
                elif system == INAGG:
                    dist.barrier()
                    step()
            connection.send((None, found))
            del parallel, step  # before the group that it has


def _median_s(step: Callable[[], None], steps: int) -> float:
    """Median seconds of steps that all ranks begin at once."""
    import torch.distributed as dist

    seconds = []
    for _ in range(steps):
        dist.barrier()
        start_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)


def _record(found: Overlap, step: Callable[[], None], trace: str) -> Overlap:
    """``found``, and what a record of one step shows."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    with torch.profiler.profile() as profiler:
        step()
    events = profiler.events()
    assert events is not None
    computed = [event.time_range for event in events if event.name.endswith(COMPUTED)]
    first, last = min(r.start for r in computed), max(r.end for r in computed)
    buckets = [(e.time_range.start, e.time_range.end) for e in events if e.name == ALL_REDUCE]
    travelling, hidden = measure(buckets, first, last)
    if trace:
        profiler.export_chrome_trace(trace)
    return replace(
        found,
        buckets=len(buckets),
        began_before=sum(start < last for start, _ in buckets),
        ended_before=sum(end < last for _, end in buckets),
        backward_s=(last - first) * 1e-6,
        travelling_s=travelling * 1e-6,
        hidden_s=hidden * 1e-6,
        trace=trace,
    )


@click.command()
@click.option("--workers", default=2, show_default=True, type=Whole(2, CHILDREN_MAX), help="How many.")
@format_option
@click.option(
    "--trace-dir",
    type=NewSubfolder(),
    help="Keep a trace of each rank in this folder.  [default: none is kept]",
)
@device_option
@click.option("--model", default=PLAIN, show_default=True, type=click.Choice([PLAIN, *NAMES]), help="The network.")
@click.option("--batch", type=Whole(1), help="Examples per rank and step.  [default: by model]")
@runs_option(10)
@click.option(
    "--alone",
    is_flag=True,
    help="Rank 0 computes alone, as on a machine of its own; the others have gradients of the same sizes in the host's "
    "memory, at once.",
)
@click.option("--against", type=click.Choice([GLOO]), help="Measure this too, after it, in the same processes.")
@output_options
def overlap(
    workers: int, format_: str, trace_dir: Path | None, device: str, model: str, batch: int | None, runs: int,
    alone: bool, against: str | None, report: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Trace a training step: do buckets of gradients travel while others are computed?

    On a GPU the times shown are those of the launches: see the trace for when gradients are computed, and when codes
    are copied.

    A run is a step. In ms: a step; `computed`, the same without communication; and of a step that is recorded, which
    is slower, the `backward` pass, how long a bucket was on its way (`travelled`) and what of that fell into the
    backward pass (`hidden`). `began` and `back` count the buckets that were on their way, and those whose sums had
    come, before the last gradient was computed.
    """
    require("torch")
    if device == "cuda":
        require_gpu()
    if trace_dir is not None:
        trace_dir.mkdir(parents=True, exist_ok=True)
    systems = [INAGG] + ([against] if against else [])
    with TemporaryFolder("overlap") as folder, SwitchProcess() as switch, crew() as ranks:
        options = {"switch": switch.control, "format": format_, "min_bytes": 0}

        def lines(progress: Doing) -> Iterator[dict[str, Any]]:
            found: Overlap
            for system in systems:
                progress(f"starting {workers} ranks, and {system}" if not ranks else system)
                for rank in range(0 if ranks else workers):
                    trace = "" if trace_dir is None else str((trace_dir / f"rank{rank}.json").resolve())
                    given = (options, f"{folder}/store", trace, device, model, batch, runs, systems, alone)
                    ranks.append(Child(f"rank {rank}", _rank, rank, workers, *given))
                for found in receive_all(ranks, LIMIT_S)[: 1 if alone else workers]:
                    yield {"bench": "overlap", "format": format_} | asdict(found)

        bars = Bars("ms a step", lambda r: r["step_s"] * 1e3)
        table = Table(f"a step of {model}, {workers} ranks", COLUMNS, bars, keys=2)
        measured = show(lines, table, total=len(systems), as_json=as_json)
    write_report(report, measured, table, as_json=as_json)
