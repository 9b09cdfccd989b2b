"""Real processes to kill: a switch, and ranks that sum one tensor after the other and say what came of each."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import time
import zlib
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_testbed.switch_process import SwitchProcess

SIZES = (1, 700, 4096, 33)
LANES = 64
PATIENCE_S = 60.0


def values(rank: int, step: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What ``rank`` brings to ``step``."""
    rng = np.random.default_rng([rank, step])
    return rng.standard_normal(SIZES[step % len(SIZES)], np.float32)


def start_switch(before: SwitchProcess | None = None) -> SwitchProcess:
    """A switch with short limits; where the one ``before`` was, if that is given."""
    limits = ("--heartbeat-limit", "1", "--rejoin-limit", "2", "--stall-after", "1")
    if before is None:
        return SwitchProcess(*limits)
    return SwitchProcess(*limits, control=before.control, data=before.data)


def _rank(connection: Connection, rank: int, steps: int, options: dict[str, Any]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with AllReduce(rank=rank, **options) as all_reduce:
            for step in range(steps):
                sums = all_reduce(values(rank, step))
                connection.send((step, zlib.crc32(sums.tobytes())))
            epochs = all_reduce.counters.epochs
        connection.send(("end", epochs))
    except AllReduceError as error:
        connection.send(("error", str(error)))


class Ranks:
    """Rank processes; what they say is collected in ``said``, by rank."""

    def __init__(self, count: int, steps: int | list[int], **options: Any) -> None:
        """``steps``: how many; a list has those of each rank."""
        context = multiprocessing.get_context("spawn")
        self.said: list[list[tuple[Any, Any]]] = [[] for _ in range(count)]
        self._pipes: list[Any] = []
        self.processes: list[Any] = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            mine = steps if isinstance(steps, int) else steps[rank]
            arguments = (theirs, rank, mine, {"workers": count, "lanes": LANES, "window": 16, **options})
            self.processes.append(context.Process(target=_rank, args=arguments, daemon=True))
            self.processes[-1].start()
            theirs.close()
            self._pipes.append(ours)
        self._open = list(self._pipes)

    def hear(self, rank: int, until: Any) -> Any:
        """Collect what all ranks say until ``rank`` says ``until`` (a step, "end" or "error"); what came with it."""
        deadline = time.monotonic() + PATIENCE_S
        while until not in (said := dict(self.said[rank])):
            # All of them are listened to: one that is not would be stopped by a full pipe.
            ready = multiprocessing.connection.wait(self._open, max(0.0, deadline - time.monotonic()))
            assert ready, f"no rank says anything; rank {rank} has come to {self.said[rank][-1:]}"
            for pipe in ready:
                try:
                    self.said[self._pipes.index(pipe)].append(cast(Connection, pipe).recv())
                except EOFError:
                    self._open.remove(pipe)
        return said[until]

    def sums(self, rank: int) -> list[Any]:
        """The checksums of the results that ``rank`` has had."""
        return [said for step, said in self.said[rank] if isinstance(step, int)]

    def leave(self) -> None:
        """Wait until all have left the job and ended."""
        for process in self.processes:
            process.join(PATIENCE_S)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
