"""Inner groups of threads in one process: what salvage and fallback use, without a process group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from inagg_host.core.reconcile import Bytes

PATIENCE_S = 30.0
T = TypeVar("T")


class Meeting:
    """Where threads meet to tell each other something."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._barrier = threading.Barrier(ranks, timeout=PATIENCE_S)
        self._told: list[tuple[str, Any]] = [("", None)] * ranks

    def exchange(self, rank: int, what: str, value: Any) -> list[Any]:
        """What all ranks tell. All must do the same."""
        self._told[rank] = what, value
        self._barrier.wait()
        told = list(self._told)
        self._barrier.wait()  # nobody tells the next thing before all have heard this one
        assert len({told_what for told_what, _ in told}) == 1, told
        return [told_value for _, told_value in told]

    def end(self) -> None:
        """From now on everything raises, as when a rank has died."""
        self._barrier.abort()

    def groups(self) -> list[ThreadGroup]:
        """One for each rank."""
        return [ThreadGroup(self, rank) for rank in range(self.ranks)]


class ThreadGroup:
    """One rank's `inagg_host.core.reconcile.InnerGroup`. ``calls``: what was called, in order."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank
        self.calls: list[str] = []

    def _exchange(self, what: str, value: Any) -> list[Any]:
        self.calls.append(what)
        return self._meeting.exchange(self._rank, what, value)

    def gather(self, data: bytes) -> list[bytes]:
        return self._exchange("gather", data)

    def broadcast(self, data: Bytes, source: int) -> None:
        data[:] = self._exchange(f"broadcast of {data.size} from {source}", data.copy())[source]

    def all_reduce(self, values: npt.NDArray[Any]) -> None:
        told = self._exchange(f"all_reduce of {values.size} {values.dtype}", values.copy())
        values[:] = np.sum(told, axis=0)


def on_all(groups: Sequence[ThreadGroup], call: Callable[[int, ThreadGroup], T]) -> list[T]:
    """Call ``call`` with each rank and its group, all at once."""
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(call, range(len(groups)), groups))
