"""The trainings of `inagg demo`: the same small CNN in as many processes, whoever sums their gradients, over several
seeds. A seed says everything that is drawn: initial weights, the order of the data and the noise of rounding.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

from .bench.children import Child, crew, gloo_rank, messages
from .bench.links import WorkerBytes
from .progress import Steps
from .report.history import History
from .temporary import TemporaryFolder
from .topology import Node, Running, Topology, inside, switch_for

START_LIMIT_S: Final = 180.0
STEP_LIMIT_S: Final = 120.0
TRAINING_DIGITS: Final = 1348  # of training.load_digits
BATCH: Final = 16
"""Digits that a worker takes in a step."""
WORKERS_MAX: Final = TRAINING_DIGITS // BATCH
"""More have no digits for a step."""


@dataclass(frozen=True, slots=True)
class Training:
    """System that sums the gradients: the one at ``switch``, told ``options``; Gloo if there is no switch."""

    system: str
    options: dict[str, Any] = field(default_factory=dict)
    switch: Running | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The trainings of one system, one for each seed. Times and bytes are medians and means over all their steps."""

    system: str
    format: str
    seeds: list[int]
    accuracies: list[float]
    """At the end, on the test data, by seed; 0 to 1."""
    losses: list[float]
    """Losses of the last step, in the mean of the workers, by seed."""
    parameters: list[int]
    """CRC-32 of rank 0's parameters at the end, by seed, to compare trainings by."""
    step_ms: float
    bytes_up_per_step: float
    """Sent by one worker: the payload of our datagrams, or of Gloo's connections (with links, with headers)."""
    steps: int
    """Steps of one training."""
    same_parameters: bool
    """All workers ended with the same parameters, bit for bit, whatever the seed."""
    seconds_by_step: list[list[float]] = field(default_factory=list)
    """Seconds of rank 0, by seed."""
    losses_by_step: list[list[float]] = field(default_factory=list)
    """Losses of rank 0, by seed."""

    @property
    def accuracy(self) -> float:
        """The mean over the seeds."""
        return statistics.mean(self.accuracies)


def run_trainings(
    trainings: Sequence[Training], topology: Topology, epochs: int, seeds: Sequence[int], progress: Steps
) -> list[tuple[Outcome, History]]:
    """Train in a process on each worker's node of ``topology``, and wait for it: for each seed all ``trainings``, one
    after another in the same processes. Histories are those of the first seed.

    Raises RuntimeError, with its traceback, if one fails.
    """
    workers = len(topology.workers)
    steps = epochs * steps_of_epoch(workers)
    with TemporaryFolder("demo") as folder, crew() as ranks:
        for rank, node in enumerate(topology.workers):
            mine = [_of_rank(training, topology, rank) for training in trainings]
            ranks.append(Child(f"rank {rank}", inside, node, _worker, node, rank, workers, mine, epochs, list(seeds),
                               f"{folder}/store"))  # fmt: skip
        tasks = [progress.task(training.system, steps * len(seeds)) for training in trainings]
        found: dict[Child, list[list[dict[str, Any]]]] = {}  # by seed and training
        left = list(ranks)
        for child, message in messages(left, START_LIMIT_S + STEP_LIMIT_S):
            if message[0] == "end":
                found[child] = message[1]
                left.remove(child)
            else:
                _, at, seed, loss = message
                tasks[at].step(f"seed {seed}, loss {loss:.2f}" if len(seeds) > 1 else f"loss {loss:.2f}")
        first, *others = tasks
        first.end(*others)
        ends = [found[child] for child in ranks]
    return [
        _outcome(training, seeds, [[of_seed[at] for of_seed in of_rank] for of_rank in ends])
        for at, training in enumerate(trainings)
    ]


def _of_rank(training: Training, topology: Topology, rank: int) -> tuple[str, dict[str, Any]]:
    """Return what a rank is told of ``training``: its system and options."""
    switch = training.switch
    where = {} if switch is None else {"switch": switch_for(topology, rank, switch.control, switch.leaves)}
    return training.system, training.options | where


def _outcome(training: Training, seeds: Sequence[int], ends: list[list[dict[str, Any]]]) -> tuple[Outcome, History]:
    """From what ranks said at the end of each seed."""
    ours, by_seed = ends[0], list(zip(*ends, strict=True))
    outcome = Outcome(
        system=training.system,
        format=training.options.get("format", "float32"),
        seeds=list(seeds),
        accuracies=[end["accuracy"] for end in ours],
        losses=[statistics.mean(end["loss"] for end in of_seed) for of_seed in by_seed],
        parameters=[end["parameters"] for end in ours],
        step_ms=statistics.median(end["step_s"] for of_rank in ends for end in of_rank) * 1e3,
        bytes_up_per_step=statistics.mean(end["bytes_up"] for end in ours),
        steps=ours[0]["steps"],
        same_parameters=all(len({end["parameters"] for end in of_seed}) == 1 for of_seed in by_seed),
        seconds_by_step=[end["seconds"] for end in ours],
        losses_by_step=[end["losses"] for end in ours],
    )
    return outcome, ours[0]["history"]


def steps_of_epoch(workers: int) -> int:
    """Steps in a pass over the training data, of which a worker takes `BATCH` digits at a time."""
    return TRAINING_DIGITS // (BATCH * workers)


def _worker(
    connection: Connection, node: Node, rank: int, workers: int, trainings: list[tuple[str, dict[str, Any]]],
    epochs: int, seeds: list[int], store: str,
) -> None:  # fmt: skip
    """One rank of all trainings: rank 0 sends ("step", training, seed, loss) after each step; all send at the end what
    `_train` gave, by seed and training."""

    def tell(at: int, seed: int) -> Callable[[float], None]:
        return lambda loss: connection.send((None, ("step", at, seed, loss))) if rank == 0 else None

    with gloo_rank(rank, workers, store):
        gloo_bytes = WorkerBytes(node)
        found = [
            [
                _train(gloo_bytes, rank, workers, system, options, epochs, seed, tell(at, seed))
                for at, (system, options) in enumerate(trainings)
            ]
            for seed in seeds
        ]
        connection.send((None, ("end", found)))


class _Log:
    """Seconds and losses of the steps of one rank."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.start()

    def start(self) -> None:
        """Begin the next step now: time until here does not count for it."""
        self._last_s = time.perf_counter()

    def add(self, loss: float) -> None:
        """A step has ended."""
        now_s = time.perf_counter()
        self.seconds.append(now_s - self._last_s)
        self.losses.append(loss)
        self._last_s = now_s

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that `_outcome` wants."""
        return {
            "loss": self.losses[-1],
            "step_s": statistics.median(self.seconds[1:]),
            "seconds": [round(step_s, 6) for step_s in self.seconds],
            "losses": self.losses,
            "steps": len(self.seconds),
        }


def _train(
    gloo_bytes: WorkerBytes, rank: int, workers: int, system: str, options: dict[str, Any], epochs: int, seed: int,
    after: Callable[[float], None],
) -> dict[str, Any]:  # fmt: skip
    """One training, from its own seed on, and what it came to."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from .training import Plan, accuracy, load_digits, make_model, train
    from .training.watch import Watch

    training, testing = load_digits()
    model = DistributedDataParallel(make_model(seed))
    with ExitStack() as stack:
        state: Any = None
        if system != "gloo":
            from inagg_host.torch import InaggState, inagg_hook

            state = stack.enter_context(InaggState(job=f"demo-{seed}", seed=seed, **options))
        watch = Watch(system, options.get("format", "float32"), workers, state)
        if state is not None:
            model.register_comm_hook(state, watch.hook(inagg_hook) if rank == 0 else inagg_hook)
        log, sent = _Log(), gloo_bytes.count()[0]
        dist.barrier()  # after the count: another rank could have sent before it
        log.start()

        def after_step(step: int, loss: float) -> None:
            log.add(loss)
            if rank == 0:
                after(loss)
                watch.after_step(loss)
                if (step + 1) % steps_of_epoch(workers) == 0:
                    watch.after_epoch(accuracy(model.module, testing))
                    log.start()

        train(model, training, Plan(epochs=epochs, batch=BATCH * workers, seed=seed), rank, workers, after_step)
        dist.barrier()
        sent = state.counters.bytes_out if state is not None else gloo_bytes.count()[0] - sent
        watch.time_computing(model.module, *next(training.batches(BATCH, rank, workers, seed=0)))
        dist.barrier()  # nobody leaves while others still compute
        parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        return log.as_dict() | {
            "accuracy": accuracy(model, testing),
            "bytes_up": sent / len(log.seconds),
            "parameters": zlib.crc32(parameters),
            "history": watch.finish(),
        }
