"""`inagg demo`: train a real model with its gradients summed in the network, then with Gloo, and compare.

With a P4 switch in the middle the same training runs over the software switch too, and must end with the same bits.
"""

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
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inagg_wire.formats import CHILDREN_MAX, FORMATS
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500

from .bench.links import interface_bytes
from .bench.load import Child, crew
from .report.demo import demo_report, measure_throughput, why_no_report
from .report.history import History
from .switch_process import SwitchProcess
from .topology import Topology, inside, open_topology, start_target

START_LIMIT_S = 180.0
STEP_LIMIT_S = 120.0
TRAINING_DIGITS = 1348  # of training.load_digits
REPORT = "inagg-demo.html"
SEED = 1
NAMES = {"soft": "switch", "bmv2": "bmv2", "gloo": "Gloo"}


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
    parameters: int
    """CRC-32 of rank 0's parameters, to compare trainings by."""


def _worker(
    connection: Connection, rank: int, workers: int, system: str, options: dict[str, Any], epochs: int, store: str
) -> None:
    """One rank of one training: sends (step, loss) after each step and a summary at the end."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from .training import Plan, accuracy, load_digits, make_model, train
    from .training.watch import Watch

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=workers)
    training, testing = load_digits()
    model = DistributedDataParallel(make_model(seed=0))
    with ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        state: Any = None
        if system != "gloo":
            from inagg_host.torch import InaggState, inagg_hook

            state = stack.enter_context(InaggState(job="demo", **options))
        watch = Watch(system, options.get("format", "float32"), workers, state)
        if state is not None:
            model.register_comm_hook(state, watch.hook(inagg_hook) if rank == 0 else inagg_hook)
        times: list[float] = []
        sent = interface_bytes("lo")[0]
        dist.barrier()  # after the count: another rank could have sent before it
        last = [time.perf_counter(), 0.0]

        def after_step(step: int, loss: float) -> None:
            now_s = time.perf_counter()
            times.append(now_s - last[0])
            last[:] = now_s, loss
            if rank == 0:
                connection.send((None, ("step", step, loss)))
                watch.after_step(loss)
                if (step + 1) % steps_of_epoch(workers) == 0:
                    watch.after_epoch(accuracy(model.module, testing))
                    last[0] = time.perf_counter()

        train(model, training, Plan(epochs=epochs, batch=16 * workers), rank, workers, after_step)
        dist.barrier()
        if state is not None:
            bytes_up = state.counters.bytes_out / len(times)
        else:
            bytes_up = (interface_bytes("lo")[0] - sent) / len(times) / workers
        watch.time_computing(model.module, *next(training.batches(16, rank, workers, seed=0)))
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
                        "history": watch.finish(),
                    },
                ),
            )
        )


def run_training(
    system: str,
    workers: int,
    epochs: int,
    options: dict[str, Any],
    progress: Progress | None = None,
    topology: Topology | None = None,
) -> tuple[Outcome, History]:
    """Train in ``workers`` processes, on the nodes of ``topology`` if there is one, and wait for it.

    Raises RuntimeError, with its traceback, if one fails.
    """
    steps = epochs * steps_of_epoch(workers)
    task = progress.add_task(f"{system:>5}", total=steps) if progress is not None else None
    with tempfile.TemporaryDirectory(prefix="inagg-demo-") as folder, crew() as ranks:
        for rank in range(workers):
            arguments = (rank, workers, system, options, epochs, f"{folder}/store")
            if topology is None:
                ranks.append(Child(f"rank {rank}", _worker, *arguments))
            else:
                ranks.append(Child(f"rank {rank}", inside, topology.workers[rank], _worker, *arguments))
        ends: list[dict[str, Any]] = []
        for child in ranks:
            while (message := child.receive(START_LIMIT_S + STEP_LIMIT_S))[0] != "end":
                if progress is not None and task is not None:
                    progress.update(task, completed=message[1] + 1, description=f"{system:>5}  loss {message[2]:.3f}")
            ends.append(message[1])
    outcome = Outcome(
        system=system,
        format=options.get("format", "float32"),
        accuracy=ends[0]["accuracy"],
        loss=statistics.mean(end["loss"] for end in ends),
        step_ms=statistics.median(end["step_s"] for end in ends) * 1e3,
        bytes_up_per_step=ends[0]["bytes_up"],
        steps=ends[0]["steps"],
        same_parameters=len({end["parameters"] for end in ends}) == 1,
        parameters=ends[0]["parameters"],
    )
    return outcome, ends[0]["history"]


def steps_of_epoch(workers: int) -> int:
    """Steps in a pass over the training data, of which a worker takes 16 digits at a time."""
    return TRAINING_DIGITS // (16 * workers)


@click.command()
@click.option("--workers", default=4, show_default=True, type=click.IntRange(2, CHILDREN_MAX), help="Worker processes.")
@click.option("--epochs", default=6, show_default=True, type=click.IntRange(1), help="Passes over the digits.")
@click.option("--format", "format_", default="nat8", show_default=True, type=click.Choice(list(FORMATS)))
@click.option(
    "--target",
    default="soft",
    show_default=True,
    type=click.Choice(["soft", "bmv2"]),
    help="The switch. bmv2 needs simple_switch_grpc and root, and is compared with the software switch as well.",
)
@click.option("--gloo/--no-gloo", default=True, show_default=True, help="Train with Gloo too, to compare.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The HTML file to write. [default: {REPORT}; with --json none]",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Keep what the software switch takes in and gives out, for `inagg replay FILE`.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def demo(
    workers: int,
    epochs: int,
    format_: str,
    target: str,
    gloo: bool,
    report: Path | None,
    record: Path | None,
    as_json: bool,
) -> None:
    """Train a small CNN on handwritten digits, its gradients summed by a switch on this machine.

    Starts `inagg switch` and the worker processes, trains with DistributedDataParallel over the switch, then the same
    with Gloo, and compares them. Needs neither root nor a GPU; everything has ended when it returns.

    Writes a report with pictures, for which it measures some all-reduces too (if matplotlib is there).
    """
    if report is None and not as_json:
        report = Path(REPORT)
    no_report = why_no_report(report)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    outcomes, histories = [], []
    throughput: list[dict[str, Any]] = []

    def train(*arguments: Any) -> None:
        outcome, history = run_training(*arguments)
        outcomes.append(outcome)
        histories.append(history)

    options: dict[str, Any] = {"format": format_}
    with Progress(*columns, console=console, disable=as_json) as progress:
        if target == "bmv2":
            from . import bmv2

            # The noise of a switch depends on slots, so the same numbers for both switches, seed and all.
            options |= {"lanes": bmv2.LANES, "window": bmv2.WINDOW, "seed": SEED}
            with (
                open_topology(workers, "none", wiring="ports", made_by="inagg demo") as topology,
                start_target(target, topology, ["--program", bmv2.program_for(format_)]) as running,
            ):
                if not as_json:
                    console.print(f"a bmv2 switch, {workers} workers in namespaces, a CNN on scikit-learn's digits")
                given = options | {"switch": running.control}
                train(target, workers, epochs, given, progress, topology)
        record_options = [] if record is None else ["--record", str(record.absolute())]
        # In datagrams as a network has them, though it is loopback: so that the bytes are those of a network, too.
        with SwitchProcess("--datagram-bytes", str(UDP_PAYLOAD_BYTES_1500), *record_options) as switch:
            if not as_json:
                console.print(f"a switch on {switch.control}, {workers} workers, a CNN on scikit-learn's digits")
            given = options | {"switch": switch.control}
            train("soft", workers, epochs, given, progress)
        if gloo:
            train("gloo", workers, epochs, {}, progress)
            if report is not None and no_report is None:
                task = progress.add_task("all-reduces of several sizes", total=None)
                throughput = measure_throughput(workers, format_)
                progress.update(task, total=1, completed=1)
    if as_json:
        for outcome in outcomes:
            click.echo(json.dumps({"bench": "demo", "workers": workers} | asdict(outcome)))
    else:
        Console().print(table(outcomes, workers))
    if report is not None:
        if no_report is None:
            where = demo_report(report, [asdict(o) for o in outcomes], histories, workers, throughput)
            click.echo(f"report: {where}", err=as_json)
        else:
            click.echo(f"no report: {no_report}", err=True)
    if record is not None:
        from .replay.recording import add_note

        add_note(record, {"command": ["inagg", "demo"], "setup": f"{workers} workers over loopback, target soft"})
        click.echo(f"recorded: {record}; look at it again: inagg replay {record}", err=as_json)
    if not all(outcome.same_parameters for outcome in outcomes):
        raise click.ClickException("the workers did not end with the same parameters")
    if len({outcome.parameters for outcome in outcomes if outcome.system != "gloo"}) > 1:
        raise click.ClickException(f"{target} and the software switch did not end with the same parameters")


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
            NAMES[outcome.system],
            outcome.format,
            f"{outcome.accuracy:.2%}",
            f"{outcome.step_ms:.1f}",
            f"{outcome.bytes_up_per_step:,.0f}",
            share,
            "yes" if outcome.same_parameters else "NO",
        )
    return result
