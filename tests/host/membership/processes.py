"""Real processes to kill: a switch, and ranks that sum one tensor after the other and say what came of each."""

from __future__ import annotations

import logging
import multiprocessing.connection
import os
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Self, cast

import numpy as np

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_host.membership.fallback import REASON
from inagg_testbed.switch_process import SwitchProcess

from .spawning import CONTEXT

SIZES = (1, 700, 4096, 33)
LANES = 64
PATIENCE_S = 60.0
Array = np.ndarray[Any, np.dtype[np.float32]]


def start_switch(*options: str, before: SwitchProcess | None = None) -> SwitchProcess:
    """A switch with short limits; where the one ``before`` was, if that is given."""
    limits = ("--heartbeat-limit", "1", "--rejoin-limit", "2", "--stall-after", "1", *options)
    if before is None:
        return SwitchProcess(*limits)
    return SwitchProcess(*limits, control=before.control, data=before.data)


@dataclass(frozen=True, slots=True)
class Script:
    """What the ranks do. ``options`` are those of `AllReduce`."""

    steps: int
    """How many sums, at most."""
    options: dict[str, Any]
    large: int = -1
    """A step whose tensor takes half a second or so: the one to be disturbed in."""
    large_elements: int = 6 << 20
    exact: bool = False
    """Values whose sums the switch and the inner group give alike: powers of two. A sum that is another is reported."""
    store: str = ""
    """A file through which the ranks find each other for the inner group; none without."""
    until_back: bool = False
    """End soon after the sums have gone to the inner group and then through the switch again."""

    def but(self, **options: Any) -> Script:
        """The same with other options."""
        return replace(self, options=self.options | options)

    def values(self, rank: int, step: int) -> Array:
        """What ``rank`` brings to ``step``."""
        size = self.large_elements if step == self.large else SIZES[step % len(SIZES)]
        if self.exact:
            weight = 1 << max(0, rank - 1)  # 1, 1, 2, 4: the sum over ranks is a power of two as well
            return np.float32(weight) * np.exp2((np.arange(size) + step) % 8, dtype=np.float32)
        return np.random.default_rng([rank, step]).standard_normal(size, np.float32)


def _rank(connection: Connection, rank: int, script: Script) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    loud: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            loud.append(record.getMessage())

    log = logging.getLogger("inagg")
    log.addHandler(Listener(logging.ERROR))
    log.propagate = False
    inner = None
    if script.store:
        from torch._C._distributed_c10d import FileStore

        from inagg_host.torch.inner import ArrayGroup

        workers = script.options["workers"]
        inner = ArrayGroup(FileStore(script.store, workers), rank, workers, timedelta(seconds=PATIENCE_S))
    try:
        with AllReduce(rank=rank, inner=inner, **script.options) as all_reduce:
            _sum_all(connection, rank, script, all_reduce)
            counters = all_reduce.counters
        connection.send(("end", counters.epochs))
        connection.send(("inner", counters.inner.get(REASON, 0)))
    except AllReduceError as error:
        connection.send(("error", str(error)))
    connection.send(("loud", loud))


def _sum_all(connection: Connection, rank: int, script: Script, all_reduce: AllReduce) -> None:
    workers, last, went_inner = all_reduce.config.workers, script.steps, 0
    for step in range(script.steps):
        if step > last:
            return
        values = script.values(rank, step)
        if step == script.large:
            connection.send(("large", step))
        sums = all_reduce(values)
        if script.exact:
            expected = sum(script.values(r, step) for r in range(workers))
            assert isinstance(expected, np.ndarray)
            assert sums.tobytes() == expected.tobytes(), f"step {step} is not the sum"
        connection.send((step, zlib.crc32(sums.tobytes())))
        inner = all_reduce.counters.inner.get(REASON, 0) if script.until_back else 0
        if inner and inner == went_inner:
            last = min(last, step + 5)
        went_inner = inner


class Ranks:
    """Rank processes; what they say is collected in ``said``, by rank."""

    def __init__(self, scripts: Sequence[Script]) -> None:
        """One for each rank."""
        self.said: list[list[tuple[Any, Any]]] = [[] for _ in scripts]
        self._pipes: list[Any] = []
        self.processes: list[Any] = []
        defaults = {"workers": len(scripts), "lanes": LANES, "window": 16}
        for rank, script in enumerate(scripts):
            ours, theirs = CONTEXT.Pipe()
            mine = replace(script, options=defaults | script.options)
            self.processes.append(CONTEXT.Process(target=_rank, args=(theirs, rank, mine), daemon=True))
            self.processes[-1].start()
            theirs.close()
            self._pipes.append(ours)
        self._open = list(self._pipes)

    def hear(self, rank: int, until: Any) -> Any:
        """Collect what all ranks say until ``rank`` says ``until`` (a step, "end", "error", ...); what came with it."""
        deadline = time.monotonic() + PATIENCE_S
        while until not in (said := dict(self.said[rank])):
            assert self._listen(deadline - time.monotonic()), (
                f"no rank says anything; rank {rank} has come to {self.said[rank][-1:]}"
            )
            assert self._pipes[rank] in self._open or until in dict(self.said[rank]), (
                f"it ended: {self.said[rank][-3:]}"
            )
        return said[until]

    def _listen(self, timeout_s: float) -> bool:
        """Take what there is; whether anything came. All are listened to, since a full pipe would stop a rank."""
        ready = multiprocessing.connection.wait(self._open, max(0.0, timeout_s))
        for pipe in ready:
            try:
                self.said[self._pipes.index(pipe)].append(cast(Connection, pipe).recv())
            except (EOFError, ConnectionResetError):
                self._open.remove(pipe)
        return bool(ready)

    def in_the_middle(self, after_s: float = 0.05) -> None:
        """Return when all ranks are in the middle of the large step."""
        step = max(self.hear(rank, "large") for rank in range(len(self.processes)))
        time.sleep(after_s)
        while self._listen(0.0):
            pass
        assert not any(step in dict(said) for said in self.said), "a larger step is needed here"

    def sums(self, rank: int) -> list[Any]:
        """The checksums of the results that ``rank`` has had."""
        return [said for step, said in self.said[rank] if isinstance(step, int)]

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
