"""Parallel-Mem-SGD (Stich et al. 2018, algorithm 2): processes, one shared iterate, a memory each, and no lock."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from inagg_link.spawning import start_deaf

from ..sparse import largest
from .rates import Rate

Array = npt.NDArray[np.float64]
Gradient = Callable[[Array, int], Array]
"""A stochastic gradient (d,) at an iterate (d,), for the step with this number."""
START_S = 120.0


@dataclass(frozen=True, slots=True)
class ParallelRun:
    """The outcome of a run."""

    x: Array
    """The iterate at the end."""
    memories: Array
    """(workers, d): what each had not sent."""
    seconds: float
    """Time from the common start to the end of the last process."""
    cpu_s: float
    """Processor time of all processes together, in their steps alone."""
    steps: tuple[int, ...]
    """Steps, by worker."""


def parallel_mem_sgd(
    make_gradient: Callable[[int], Gradient],
    x0: Array,
    *,
    workers: int,
    steps: int,
    k: int,
    rate: Rate,
    limit_s: float = 600.0,
) -> ParallelRun:
    """Do ``steps`` steps in ``workers`` processes, each its share, and write into one iterate without any lock.

    ``make_gradient(worker)`` is called in the process of that worker, and must be picklable, as ``rate``; the latter
    gets the number of the step among all. A step reads the iterate while others write it, and subtracts the ``k``
    largest coordinates of memory and gradient from it. Writes of a single number are whole, but two processes that
    update one coordinate at the same moment may lose one of the two updates (as in the paper). So runs differ, unless
    ``workers`` is 1.

    Raises RuntimeError if a process fails, TimeoutError if it has not ended after ``limit_s`` seconds.
    """
    context = multiprocessing.get_context("spawn")
    memory = SharedMemory(create=True, size=x0.nbytes)
    pipes: list[Connection] = []
    processes = []
    try:
        shared: Array = np.ndarray(x0.shape, np.float64, memory.buf)
        shared[:] = x0
        for worker in range(workers):
            ours, theirs = context.Pipe()
            arguments = (theirs, memory.name, x0.size, make_gradient, worker, workers, steps, k, rate)
            process = context.Process(target=_work, args=arguments, daemon=True)
            start_deaf(process, [signal.SIGINT])
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _receive(pipe, START_S)
        start_s = time.monotonic()
        for pipe in pipes:
            pipe.send("start")
        ends: list[_End] = [_receive(pipe, limit_s) for pipe in pipes]
        seconds, cpu_s = max(end.at_s for end in ends) - start_s, sum(end.cpu_s for end in ends)
        x = shared.copy()
        del shared  # or the memory could not be closed
        memories = np.stack([end.memory for end in ends])
        return ParallelRun(x, memories, seconds, cpu_s, tuple(end.steps for end in ends))
    except KeyboardInterrupt:  # which the processes do not hear
        for process in processes:
            process.kill()
        raise
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        memory.close()
        memory.unlink()


class _End(NamedTuple):
    """A worker's report when it is done."""

    at_s: float
    cpu_s: float
    memory: Array
    steps: int


def _receive(pipe: Connection, limit_s: float) -> Any:
    if not pipe.poll(limit_s):
        raise TimeoutError(f"a worker of Parallel-Mem-SGD said nothing within {limit_s} s")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a worker of Parallel-Mem-SGD has failed; its error is above") from None


def _work(
    pipe: Connection,
    name: str,
    d: int,
    make_gradient: Callable[[int], Gradient],
    worker: int,
    workers: int,
    steps: int,
    k: int,
    rate: Rate,
) -> None:
    gradient = make_gradient(worker)
    shared = SharedMemory(name=name)
    x: Array = np.ndarray((d,), np.float64, shared.buf)
    entering, mine = np.zeros(d), range(worker, steps, workers)
    pipe.send("ready")
    pipe.recv()
    cpu_s = time.process_time()
    for t in mine:
        entering += rate(t) * gradient(x, t)
        indices = largest(np.abs(entering), k)
        x[indices] -= entering[indices]
        entering[indices] = 0.0
    pipe.send(_End(time.monotonic(), time.process_time() - cpu_s, entering, len(mine)))
    del x
    shared.close()
