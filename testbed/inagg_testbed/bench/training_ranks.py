"""Ranks of `bench training`: they do trainings, one after the other, as they are told."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from ..topology import Node
from .children import gloo_rank, requests
from .links import interface_bytes

if TYPE_CHECKING:
    from .training_systems import Place

SETTLE_STEPS = 2
"""Steps that are not timed: the first one joins a job, the second one meets rebuilt buckets."""


@dataclass(frozen=True)
class Run:
    """A training to do; ``every``: steps between two evaluations, None for none; ``data``: of a task that takes it."""

    task: str
    seed: int
    steps: int
    every: int | None
    data: Path | None = None


@dataclass(frozen=True)
class Phase:
    """Means over some steps: seconds, and bytes of a worker's interface, with headers."""

    seconds: float
    bytes_up: float
    bytes_down: float


@dataclass(frozen=True)
class Outcome:
    """Result of a run. ``curve``: step, loss and accuracy of what is not trained on."""

    curve: tuple[tuple[int, float, float], ...]
    warm_up: Phase
    steady: Phase


class _Meter:
    """Adds up time and bytes of a phase's steps, without what lies between."""

    def __init__(self, interface: str) -> None:
        self._interface, self.steps, self._seconds, self._bytes = interface, 0, 0.0, [0, 0]

    def start(self, step: int) -> None:
        """Before a step, by its number."""
        self._since, self._before, self._start_s = step, interface_bytes(self._interface), time.perf_counter()

    def stop(self, step: int) -> None:
        """Before another step, which is not counted."""
        self._seconds += time.perf_counter() - self._start_s
        for way, (after, before) in enumerate(zip(interface_bytes(self._interface), self._before, strict=True)):
            self._bytes[way] += after - before
        self.steps += step - self._since

    def phase(self) -> Phase:
        """The means."""
        steps = max(1, self.steps)
        return Phase(self._seconds / steps, self._bytes[0] / steps, self._bytes[1] / steps)


def rank_main(
    connection: Connection, node: Node, rank: int, workers: int, system: str, store: str, environment: dict[str, str]
) -> None:
    """Trainings with one system, until the connection closes."""
    os.environ.update(
        environment, RANK=str(rank), WORLD_SIZE=str(workers), TORCH_CPP_LOG_LEVEL="ERROR", RUST_LOG="error"
    )
    warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)  # its successor is not in all versions
    lighthouse, address = None, [""]
    with gloo_rank(rank, workers, store):
        import torch.distributed as dist

        from .training_command import NEEDS_TORCHFT
        from .training_systems import Place

        if system in NEEDS_TORCHFT:
            import logging

            from torchft.coordination import LighthouseServer

            logging.disable(logging.WARNING)  # of it there is one at each quorum
            if rank == 0:
                lighthouse = LighthouseServer(bind=f"{node.host}:0", min_replicas=workers)
                address = [f"http://{node.host}:{lighthouse.address().rpartition(':')[2]}"]
            dist.broadcast_object_list(address)
        place = Place(rank, workers, node.host, address[0] or None)
        connection.send((None, None))
        for run in requests(connection):
            connection.send((None, _train(system, run, place, node.interface)))
    if lighthouse is not None:
        lighthouse.shutdown()


def _train(system: str, run: Run, place: Place, interface: str) -> Outcome:
    import torch.distributed as dist
    from torch.nn import functional
    from torch.optim.lr_scheduler import CosineAnnealingLR

    from .training_command import NEEDS_TORCHFT
    from .training_systems import SYSTEMS, WARM_UP
    from .training_tasks import TASKS

    task = TASKS[run.task].load(run.data)
    network = task.network(run.seed)
    trainer = SYSTEMS[system](network, task.optimizer(network), place)
    rate = CosineAnnealingLR(trainer.optimizer, run.steps) if task.decays else None
    batches = task.batches(task.batch, place.rank, place.workers, run.seed)
    curve, warm_up, steady = [], _Meter(interface), _Meter(interface)
    running: _Meter | None = None
    settled = WARM_UP if system in NEEDS_TORCHFT else SETTLE_STEPS  # those join with their first meeting
    for step in range(run.steps):
        if running is None and step >= settled:
            dist.barrier()
            running = warm_up if step < WARM_UP else steady
            running.start(step)
        inputs, targets = next(batches)
        trainer.optimizer.zero_grad()
        functional.cross_entropy(trainer.forward(inputs), targets).backward()  # type: ignore[no-untyped-call]
        trainer.optimizer.step()
        if rate is not None:
            rate.step()
        done = step + 1
        looks = run.every is not None and done % run.every == 0
        if running is not None and (looks or done in (WARM_UP, run.steps)):
            dist.barrier()  # what others still send is part of the step
            running.stop(done)
            running = None
        if looks:
            if place.rank == 0 or trainer.sharded:
                curve.append((done, *task.evaluate(network)))
            dist.barrier()
    for close in trainer.close:
        close()
    dist.barrier()
    return Outcome(tuple(curve), (warm_up if warm_up.steps else steady).phase(), steady.phase())


def together(phases: Sequence[Phase], middle: Callable[[list[float]], float]) -> Phase:
    """One of several, such as those of all ranks: the ``middle`` of each of their numbers."""
    return Phase(*map(middle, map(list, zip(*map(astuple, phases), strict=True))))
