"""Going on without the switch: what the network left unfinished, and what comes after, on the inner group.

All ranks do the same steps in the same order on the inner group, on a thread of their own. Before each task they agree,
by one small sum, whether all of them are back in the network.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from inagg_wire.scale import FloatType

from .counters import Counters
from .engine.salvage import InnerGroup, salvage
from .errors import AllReduceError
from .network import Network
from .task import Task

log = logging.getLogger("inagg")

RETRY_S = 1.0
"""How long to wait between two attempts to come back to the network."""

Mask = npt.NDArray[np.bool_] | None
"""Which elements of a task have no sums yet; None: none has."""
Pending = tuple[Task, Mask]
_ALL: Final[Mask] = None

REASON = "switch-unavailable"
"""The reason code in the log and in `Counters.inner`."""


class Fallback:
    """Does tasks on ``group`` until all ranks are back in the network, then hands the rest to it.

    ``join`` makes a new `Network`, or raises `AllReduceError`; when all ranks have one, ``back`` is called with it and
    with the tasks that it has to do before those in `drain`. ``finish`` completes a task.
    """

    def __init__(
        self,
        group: InnerGroup,
        ranks: int,
        counters: Counters,
        join: Callable[[], Network],
        back: Callable[[Network, list[Task]], None],
        finish: Callable[[Task, AllReduceError | None], None],
    ) -> None:
        self._group, self._ranks, self._counters = group, ranks, counters
        self._join, self._back, self._finish = join, back, finish
        self._queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._network: Network | None = None
        self._thread: threading.Thread | None = None

    def start(self, broken: Network | None, tasks: list[Task], why: str) -> None:
        """Begin, with what ``broken`` left; None: there never was a network."""
        log.error("[%s] going on without the switch, on the inner group: %s", REASON, why)
        self._thread = threading.Thread(target=self._run, args=(broken, tasks), name="inagg-fallback", daemon=True)
        self._thread.start()
        self._start_return()

    def submit(self, task: Task) -> None:
        """Do a task, after those before it. For any thread."""
        self._queue.put(task)

    def drain(self) -> list[Task]:
        """Take back the tasks that are not begun."""
        tasks = []
        while not self._queue.empty():
            if (task := self._queue.get()) is not None:
                tasks.append(task)
        return tasks

    def close(self) -> None:
        """Stop after the task that is being done; the others fail."""
        self._closed.set()
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # --- on the fallback's thread ---

    def _run(self, broken: Network | None, tasks: list[Task]) -> None:
        left: deque[Pending] = deque((task, _ALL) for task in tasks)
        failure: AllReduceError | None = None
        try:
            if broken is not None:
                self._salvage(broken, left)
        except Exception as error:  # of the inner group, whatever it is: the tasks must not wait for ever
            failure = _no_way(error)
        while True:
            task, pending = left.popleft() if left else (self._queue.get(), _ALL)
            if task is None:
                return
            if self._closed.is_set():
                failure = failure or AllReduceError("closed before the sums were there")
            if failure is not None:
                self._finish(task, failure)
                continue
            try:
                # A task that is done in part is so on all ranks; the others may be done by whoever can.
                if pending is None and self._all_back():
                    self._hand_over([task, *(task for task, _ in left)])
                    return
                self._reduce(task, pending)
            except Exception as error:
                failure = _no_way(error)
                self._finish(task, failure)

    def _salvage(self, broken: Network, left: deque[Pending]) -> None:
        """Finish what the network had begun as far as other ranks have the results; note what of it is pending."""
        engine = broken.engine
        for _ in salvage(engine, self._group):
            self._finish(left.popleft()[0], None)
        for i, (operation, blocks) in enumerate(engine.unfinished()):  # in the order in which they began, as ``left``
            task = left[i][0]
            assert task.values.size == operation.values.size
            if not blocks.all():
                left[i] = task, np.repeat(blocks, engine.epoch.lanes)[: task.values.size]

    def _reduce(self, task: Task, pending: npt.NDArray[np.bool_] | None) -> None:
        """Sum the ``pending`` elements of a task on the inner group."""
        where = slice(None) if pending is None else pending
        sums = _widen(task.values.reshape(-1)[where], task.float_type)
        if sums.size:
            self._group.all_reduce(sums)
        if task.divisor != 1:
            sums /= task.divisor
        task.target.reshape(-1)[where] = _narrow(sums, task.float_type)
        self._counters.inner[REASON] = self._counters.inner.get(REASON, 0) + 1
        self._finish(task, None)

    # --- coming back ---

    def _all_back(self) -> bool:
        """Whether all ranks have a network that works; agreed on, so the same on all."""
        if self._network is not None and self._network.failure is not None:
            self._network.close()
            self._network = None
            self._start_return()
        ready = np.array([self._network is not None], np.float32)
        self._group.all_reduce(ready)
        return int(ready[0]) == self._ranks

    def _hand_over(self, tasks: list[Task]) -> None:
        assert self._network is not None  # all ranks are back, so this one is
        log.warning("back in the network")
        self._back(self._network, tasks)

    def _start_return(self) -> None:
        threading.Thread(target=self._come_back, name="inagg-return", daemon=True).start()

    def _come_back(self) -> None:
        while not self._closed.wait(RETRY_S):
            try:
                network = self._join()
            except AllReduceError as error:
                log.debug("not back yet: %s", error)
                continue
            self._network = network
            if self._closed.is_set():
                network.close()
            return


def _no_way(error: Exception) -> AllReduceError:
    failure = AllReduceError(f"neither the switch nor the inner group can be used: {error}")
    failure.__cause__ = error
    return failure


def _widen(values: npt.NDArray[Any], float_type: FloatType) -> npt.NDArray[Any]:
    """A copy, as a type that the inner group sums: float32 for the narrow ones."""
    if float_type is FloatType.BFLOAT16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float64 if float_type is FloatType.FLOAT64 else np.float32)


def _narrow(sums: npt.NDArray[Any], float_type: FloatType) -> npt.NDArray[Any]:
    """Rounded to nearest even."""
    if float_type is not FloatType.BFLOAT16:
        with np.errstate(over="ignore"):
            return sums.astype(float_type.dtype)
    bits = sums.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(sums), 0x7FC0, rounded).astype(np.uint16)
