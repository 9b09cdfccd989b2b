"""`inagg demo`: train a real model with its gradients summed in the network, then with Gloo, and compare."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
import zlib
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inagg_wire.formats import FORMATS, WORKERS_MAX

from .bench.allreduce import loopback_bytes
from .bench.load import Child, crew
from .switch_process import SwitchProcess

START_LIMIT_S = 180.0
STEP_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One training. Times and bytes are medians and means over the steps of all workers."""

    system: str
    format: str
    accuracy: float
    loss: float
    step_ms: float
    bytes_up_per_step: float
    """Sent by one worker: the payload of our datagrams, or all that the loopback carried for Gloo."""
    steps: int
    same_parameters: bool
    """All workers ended with the same parameters, bit for bit."""


def _worker(
    connection: Connection, rank: int, workers: int, system: str, options: dict[str, Any], epochs: int, store: str
) -> None:
    """One rank of one training: sends (step, loss) after each step and a summary at the end."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from .training import Plan, accuracy, load_digits, make_model, train

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=workers)
    training, testing = load_digits()
    model = DistributedDataParallel(make_model(seed=0))
    with ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        state: Any = None
        if system == "inagg":
            from inagg_host.pytorch import InaggState, inagg_hook

            state = stack.enter_context(InaggState(job="demo", **options))
            model.register_comm_hook(state, inagg_hook)
        times: list[float] = []
        sent = loopback_bytes() if rank == 0 else 0
        last = [time.perf_counter(), 0.0]

        def after_step(step: int, loss: float) -> None:
            now_s = time.perf_counter()
            times.append(now_s - last[0])
            last[:] = now_s, loss
            if rank == 0:
                connection.send((None, ("step", step, loss)))

        train(model, training, Plan(epochs=epochs, batch=16 * workers), rank, workers, after_step)
        dist.barrier()
        if state is not None:
            bytes_up = state.counters.bytes_out / len(times)
        else:
            bytes_up = (loopback_bytes() - sent) / len(times) / workers
        parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        connection.send(
            (
                None,
                (
                    "end",
                    {
                        "accuracy": accuracy(model, testing),
                        "loss": last[1],
                        "step_s": statistics.median(times[1:]),
                        "bytes_up": bytes_up,
                        "steps": len(times),
                        "parameters": zlib.crc32(parameters),
                    },
                ),
            )
        )


def run_training(
    system: str, workers: int, epochs: int, options: dict[str, Any], progress: Progress | None = None
) -> Outcome:
    """Train in ``workers`` processes and wait for it. Raises RuntimeError, with its traceback, if one fails."""
    steps = epochs * (1348 // (16 * workers))
    task = progress.add_task(f"{system:>5}", total=steps) if progress is not None else None
    with tempfile.TemporaryDirectory(prefix="inagg-demo-") as folder, crew() as ranks:
        for rank in range(workers):
            arguments = (rank, workers, system, options, epochs, f"{folder}/store")
            ranks.append(Child(f"rank {rank}", _worker, *arguments))
        ends: list[dict[str, Any]] = []
        for child in ranks:
            while (message := child.receive(START_LIMIT_S + STEP_LIMIT_S))[0] != "end":
                if progress is not None and task is not None:
                    progress.update(task, completed=message[1] + 1, description=f"{system:>5}  loss {message[2]:.3f}")
            ends.append(message[1])
    return Outcome(
        system=system,
        format=options.get("format", "float32"),
        accuracy=ends[0]["accuracy"],
        loss=statistics.mean(end["loss"] for end in ends),
        step_ms=statistics.median(end["step_s"] for end in ends) * 1e3,
        bytes_up_per_step=ends[0]["bytes_up"],
        steps=ends[0]["steps"],
        same_parameters=len({end["parameters"] for end in ends}) == 1,
    )


@click.command()
@click.option("--workers", default=4, show_default=True, type=click.IntRange(2, WORKERS_MAX), help="Worker processes.")
@click.option("--epochs", default=6, show_default=True, type=click.IntRange(1), help="Passes over the digits.")
@click.option("--format", "format_", default="nat8", show_default=True, type=click.Choice(list(FORMATS)))
@click.option("--gloo/--no-gloo", default=True, show_default=True, help="Train with Gloo too, to compare.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def demo(workers: int, epochs: int, format_: str, gloo: bool, as_json: bool) -> None:
    """Train a small CNN on handwritten digits, its gradients summed by a software switch on this machine.

    Starts `inagg switch` and the worker processes, trains with DistributedDataParallel over the switch, then the same
    with Gloo, and compares them. Needs neither root nor a GPU; everything has ended when it returns.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    outcomes = []
    with SwitchProcess() as switch, Progress(*columns, console=console, disable=as_json) as progress:
        if not as_json:
            console.print(f"a switch on {switch.control}, {workers} workers, a CNN on scikit-learn's digits")
        outcomes.append(run_training("inagg", workers, epochs, {"switch": switch.control, "format": format_}, progress))
        if gloo:
            outcomes.append(run_training("gloo", workers, epochs, {}, progress))
    if as_json:
        for outcome in outcomes:
            click.echo(json.dumps({"bench": "demo", "workers": workers} | asdict(outcome)))
    else:
        Console().print(table(outcomes, workers))
    if not all(outcome.same_parameters for outcome in outcomes):
        raise click.ClickException("the workers did not end with the same parameters")


def table(outcomes: list[Outcome], workers: int) -> Table:
    """The comparison, for people."""
    result = Table(
        title=f"{workers} workers, {outcomes[0].steps} steps of a CNN on 8x8 digits",
        caption="bytes: sent by one worker; equal: all workers ended with the same parameters, bit for bit",
    )
    for name in ("sums by", "numbers", "accuracy", "ms/step", "bytes/step up", "share", "equal"):
        result.add_column(name, justify="right")
    reference = outcomes[-1].bytes_up_per_step
    for outcome in outcomes:
        share = f"{outcome.bytes_up_per_step / reference:.0%}" if len(outcomes) > 1 else ""
        result.add_row(
            "switch" if outcome.system == "inagg" else "Gloo",
            outcome.format,
            f"{outcome.accuracy:.2%}",
            f"{outcome.step_ms:.1f}",
            f"{outcome.bytes_up_per_step:,.0f}",
            share,
            "yes" if outcome.same_parameters else "NO",
        )
    return result
