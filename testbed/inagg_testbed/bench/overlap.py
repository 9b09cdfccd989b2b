"""`inagg bench overlap`: whether gradients travel while others are still computed, and a trace to look at.

Ranks train a plain network with DistributedDataParallel over a switch and record one step with torch.profiler. A bucket
that is on its way before the last gradient is computed costs the step less than it takes.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click

from inagg_switch.cli.new_files import NewFolder
from inagg_wire.formats import CHILDREN_MAX, FORMATS

from ..switch_process import SwitchProcess
from ..temporary import TemporaryFolder
from .cuda import device_option, require
from .load import Child, crew

LIMIT_S = 180.0
WARM_UP_STEPS = 3
"""DDP makes its buckets anew after the first step."""
LAYERS, WIDTH, BATCH = 8, 1024, 256
BUCKET_MB = 4.0
ALL_REDUCE, COMPUTED = "inagg::all_reduce", "AddmmBackward0"


@dataclass(frozen=True, slots=True)
class Overlap:
    """One rank's step; a line of `inagg bench overlap --json`."""

    rank: int
    buckets: int
    began_before: int
    """Buckets that were on their way before the last gradient was computed."""
    ended_before: int
    """Those of them whose sums had come by then."""
    backward_s: float
    """From the first gradient to the last."""
    travelling_s: float
    """While at least one bucket was on its way."""
    hidden_s: float
    """The part of it before the last gradient was computed."""
    trace: str
    """The trace, for chrome://tracing or ui.perfetto.dev; empty: none was kept."""


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


def _rank(
    connection: Connection, rank: int, workers: int, options: dict[str, Any], store: str, trace: str, device: str
) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from inagg_host.torch import InaggState, inagg_hook

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=workers)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=BUCKET_MB)
    inputs = torch.randn(BATCH, WIDTH).to(device)
    with InaggState(job="overlap", **options) as state:
        model.register_comm_hook(state, inagg_hook)

        def step() -> None:
            model(inputs).square().mean().backward()
            if device == "cuda":
                torch.cuda.synchronize()

        for _ in range(WARM_UP_STEPS):
            step()
        dist.barrier()
        with torch.profiler.profile() as profiler:
            step()
        events = profiler.events()
        assert events is not None
        computed = [event.time_range for event in events if COMPUTED in event.name]
        first, last = min(r.start for r in computed), max(r.end for r in computed)
        buckets = [(e.time_range.start, e.time_range.end) for e in events if e.name == ALL_REDUCE]
        travelling, hidden = measure(buckets, first, last)
        if trace:
            profiler.export_chrome_trace(trace)
    found = Overlap(
        rank=rank,
        buckets=len(buckets),
        began_before=sum(start < last for start, _ in buckets),
        ended_before=sum(end < last for _, end in buckets),
        backward_s=(last - first) * 1e-6,
        travelling_s=travelling * 1e-6,
        hidden_s=hidden * 1e-6,
        trace=trace,
    )
    dist.destroy_process_group()
    connection.send((None, found))


@click.command()
@click.option("--workers", default=2, show_default=True, type=click.IntRange(2, CHILDREN_MAX), help="Ranks.")
@click.option("--format", "name", default="nat8", show_default=True, type=click.Choice(list(FORMATS)))
@click.option(
    "--trace-dir",
    type=NewFolder(),
    help="Keep a trace of each rank in this folder.  [default: none is kept]",
)
@device_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def overlap(workers: int, name: str, trace_dir: Path | None, device: str, as_json: bool) -> None:
    """Trace a training step: do buckets of gradients travel while others are computed?

    On a GPU, gradients are computed after the host has launched what computes them, which is what is shown here; when
    they are, and when codes are copied, is in the trace.
    """
    if device == "cuda":
        require()
    if trace_dir is not None:
        trace_dir.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder("overlap") as folder, SwitchProcess() as switch, crew() as ranks:
        options = {"switch": switch.control, "format": name, "min_bytes": 0}
        for rank in range(workers):
            trace = "" if trace_dir is None else str((trace_dir / f"rank{rank}.json").resolve())
            ranks.append(Child(f"rank {rank}", _rank, rank, workers, options, f"{folder}/store", trace, device))
        for child in ranks:
            found: Overlap = child.receive(LIMIT_S)
            if as_json:
                click.echo(json.dumps({"bench": "overlap", "format": name} | asdict(found)))
            else:
                click.echo(
                    f"rank {found.rank}: {found.began_before} of {found.buckets} buckets began before the last "
                    f"gradient was computed, {found.ended_before} were back by then; {found.hidden_s * 1e3:.1f} of "
                    f"{found.travelling_s * 1e3:.1f} ms on their way fell into the {found.backward_s * 1e3:.1f} ms of "
                    "the backward pass" + (f" ({found.trace})" if found.trace else "")
                )
