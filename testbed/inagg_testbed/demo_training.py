"""The trainings of `inagg demo`: the same small CNN in as many processes, whoever sums their gradients."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from rich.progress import Progress

from .bench.links import worker_bytes
from .bench.load import Child, crew
from .report.history import History
from .topology import Node, Running, Topology, inside, switch_for

START_LIMIT_S: Final = 180.0
STEP_LIMIT_S: Final = 120.0
TRAINING_DIGITS: Final = 1348  # of training.load_digits
BATCH: Final = 16
"""Digits that a worker takes in a step."""
WORKERS_MAX: Final = TRAINING_DIGITS // BATCH
"""More have no digits for a step."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One training. Times and bytes are medians and means over the steps of all workers."""

    system: str
    format: str
    accuracy: float
    loss: float
    step_ms: float
    bytes_up_per_step: float
    """Sent by one worker: the payload of our datagrams, or all that its network carried for Gloo."""
    steps: int
    same_parameters: bool
    """All workers ended with the same parameters, bit for bit."""
    parameters: int
    """CRC-32 of rank 0's parameters, to compare trainings by."""


def _worker(
    connection: Connection, node: Node, rank: int, workers: int, system: str, options: dict[str, Any], epochs: int,
    store: str,
) -> None:  # fmt: skip
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
        sent = worker_bytes(node, workers)[0]
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

        train(model, training, Plan(epochs=epochs, batch=BATCH * workers), rank, workers, after_step)
        dist.barrier()
        if state is not None:
            bytes_up = state.counters.bytes_out / len(times)
        else:
            bytes_up = (worker_bytes(node, workers)[0] - sent) / len(times)
        watch.time_computing(model.module, *next(training.batches(BATCH, rank, workers, seed=0)))
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
    topology: Topology,
    epochs: int,
    options: dict[str, Any],
    progress: Progress | None = None,
    switch: Running | None = None,
) -> tuple[Outcome, History]:
    """Train in a process on each worker's node of ``topology``, and wait for it; with Gloo if there is no ``switch``.

    Raises RuntimeError, with its traceback, if one fails.
    """
    workers = len(topology.workers)
    steps = epochs * steps_of_epoch(workers)
    task = progress.add_task(f"{system:>5}", total=steps) if progress is not None else None
    with tempfile.TemporaryDirectory(prefix="inagg-demo-") as folder, crew() as ranks:
        for rank, node in enumerate(topology.workers):
            where = {} if switch is None else {"switch": switch_for(topology, rank, switch.control, switch.leaves)}
            arguments = (node, rank, workers, system, options | where, epochs, f"{folder}/store")
            ranks.append(Child(f"rank {rank}", inside, node, _worker, *arguments))
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
    """Steps in a pass over the training data, of which a worker takes `BATCH` digits at a time."""
    return TRAINING_DIGITS // (BATCH * workers)
