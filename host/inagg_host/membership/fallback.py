"""Going on without the switch: what the network left unfinished, and what comes after, on the inner group.

All ranks do the same steps in the same order on the inner group, on a thread of their own. First they tell each other
what they are left with, and bring what was begun to the same state (`core.reconcile`). Then, before each task, one
small sum tells them whether it is the same on all, and whether all are back in the network.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from inagg_host.codec.staging import Arriving
from inagg_host.config import Config
from inagg_host.core import RanksDisagree
from inagg_host.core.failure import other_operation
from inagg_host.core.operation import signature_of
from inagg_host.core.reconcile import InnerGroup, agree, salvage, unfinished
from inagg_host.errors import CLOSED_SUMMING, AllReduceError
from inagg_host.stats import Counters
from inagg_host.task import Task
from inagg_wire.scale import FloatType, from_bfloat16, to_bfloat16

from .network import Network
from .reconnector import Reconnector

log = logging.getLogger("inagg")

CLOSE_S = 5.0
"""How long `Fallback.close` waits for what the inner group is doing. Gloo cannot be interrupted."""

Mask = npt.NDArray[np.bool_] | None
"""Mask of a task's elements that have no sums yet; None: none has."""
Pending = tuple[Task, Mask]
_ALL: Final[Mask] = None

REASON = "switch-unavailable"
"""The reason code in the log and in `Counters.inner`."""


class Left(IntEnum):
    """State of a rank when it falls back: the first thing that the ranks tell each other."""

    NOTHING = 0  # it was not in the network
    NETWORK = 1  # results of a network that broke
    DISAGREEMENT = 2  # that all ranks reduce the same is not true, and no group can sum that


class Fallback:
    """Does tasks on ``group`` until all ranks are back in the network, then hands the rest to it.

    ``join`` makes a new `Network`, or raises `AllReduceError`, soon after the event that it is given is set. When all
    ranks have one, ``back`` is called with it and with the tasks that it has to do before those in `drain`.
    ``finish`` completes a task. Should the inner group fail too, so does every task, with both reasons.
    """

    def __init__(
        self,
        group: InnerGroup,
        config: Config,
        counters: Counters,
        join: Callable[[threading.Event], Network],
        back: Callable[[Network, list[Task]], None],
        finish: Callable[[Task, AllReduceError | None], None],
    ) -> None:
        self._group, self._config, self._counters = group, config, counters
        self._reconnector, self._back, self._finish = Reconnector(join, config.who), back, finish
        self._queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._why = ""
        self._lock = threading.Lock()
        self._left: deque[Pending] = deque()
        """Tasks that the network had taken on and that are not done, oldest first. Of the fallback's thread."""
        self._doing: Task | None = None
        self._abandoned: list[Task] | None = None
        """Closed while the inner group was at work: nothing is written any more, and these were finished then."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inagg-fallback", daemon=True)

    def start(self, broken: Network | None, tasks: list[Task], why: Exception) -> None:
        """Begin, with what ``broken`` left; None: there never was a network."""
        self._why = str(why)
        log.error("[%s] %s goes on without the switch, on the inner group: %s", REASON, self._config.who, why)
        self._left.extend((task, _ALL) for task in tasks)
        self._broken = broken
        self._state = Left.NETWORK if broken is not None else Left.NOTHING
        if isinstance(why.__cause__, RanksDisagree):
            self._state = Left.DISAGREEMENT
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Do a task, after those before it. For any thread."""
        self._queue.put(task)

    def drain(self) -> list[Task]:
        """Take back the tasks that are not begun."""
        tasks = []
        with suppress(queue.Empty):  # the fallback's thread may take the last one meanwhile
            while True:
                if (task := self._queue.get_nowait()) is not None:
                    tasks.append(task)
        return tasks

    def close(self) -> None:
        """Stop after the task that is being done, or after `CLOSE_S`; what is not done fails."""
        self._closed.set()
        self._reconnector.stop()
        self._queue.put(None)
        if self._thread is threading.current_thread() or not self._thread.is_alive():
            return
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            return
        with self._lock:
            left = [task for task, _ in list(self._left)]
            tasks = self._abandoned = [*([self._doing] if self._doing else []), *left, *self.drain()]
            self._left.clear()
            self._queue.put(None)  # the first one is among what was drained
        log.warning("%s: closed while the inner group still waits for another rank", self._config.who)
        for task in tasks:
            self._finish(task, AllReduceError(CLOSED_SUMMING))

    # --- on the fallback's thread ---

    def _run(self) -> None:
        failure: AllReduceError | None = None
        try:
            self._begin()
        except Exception as error:  # of the inner group, whatever it is: the tasks must not wait for ever
            failure = self._no_way(error)
        while True:
            task, pending = self._left.popleft() if self._left else (self._queue.get(), _ALL)
            if task is None:
                return
            self._doing = task
            if self._closed.is_set():
                failure = failure or AllReduceError(CLOSED_SUMMING)
            if failure is not None:
                self._end(task, failure)
                continue
            try:
                # A task that is done in part is so on all ranks; the others may be done by whoever can.
                if pending is None and self._all_back(task):
                    self._hand_over(task)
                    return
                self._reduce(task, pending)
            except Exception as error:
                failure = self._no_way(error)
                self._end(task, failure)

    def _begin(self) -> None:
        """Tell each other what is left, and make the best of it."""
        answers = self._group.gather(bytes([self._state]) + self._why.encode())
        for answer in answers:
            if answer[0] == Left.DISAGREEMENT:
                raise AllReduceError(answer[1:].decode())
        # If one was not in the network, nothing was summed there.
        if self._broken is not None and all(answer[0] == Left.NETWORK for answer in answers):
            self._salvage(self._broken)
        self._reconnector.start()

    def _salvage(self, broken: Network) -> None:
        """Finish what the network had begun as far as other ranks have the results; note what of it is pending."""
        engine = broken.engine
        for _ in salvage(engine, self._group):
            self._end(self._left.popleft()[0], None)
        for i, (operation, blocks) in enumerate(unfinished(engine)):  # in the order in which they began, as ``_left``
            task = self._left[i][0]
            assert task.values.size == operation.request.values.size
            if not blocks.all():
                piece = task.out.size  # or all of it
                lanes = np.repeat(blocks.reshape(task.values.size // piece, -1), engine.epoch.lanes, axis=1)
                self._left[i] = task, lanes[:, :piece].reshape(-1)

    def _reduce(self, task: Task, pending: Mask) -> None:
        """Sum the ``pending`` elements of a task on the inner group."""
        if task.float_type is None:
            self._take_maxima(task)
            return
        if isinstance(task.codec, Arriving):
            task.codec.wait()
        where = np.ones(task.values.size, np.bool_) if pending is None else pending
        sums = _widen(task.values[where], task.float_type)
        if sums.size:
            self._group.all_reduce(sums)
        if task.divisor != 1:
            sums /= task.divisor
        with self._lock:
            if self._abandoned is None:
                if task.contributed is not None:  # before the target, which may be the values
                    task.contributed[where] = task.values[where]
                begin = self._config.rank * task.out.size if task.scatters else 0
                mine = where[begin : begin + task.out.size]
                before = int(np.count_nonzero(where[:begin]))
                task.out[mine] = _narrow(sums, task.float_type)[before : before + np.count_nonzero(mine)]
        self._done(task)

    def _take_maxima(self, task: Task) -> None:
        """The maxima of bytes."""
        rows = [np.frombuffer(row, np.uint8) for row in self._group.gather(task.values.tobytes())]
        with self._lock:
            if self._abandoned is None:
                task.out[:] = np.max(rows, axis=0)
        self._done(task)

    def _done(self, task: Task) -> None:
        self._counters.inner[REASON] = self._counters.inner.get(REASON, 0) + 1
        self._end(task, None)

    def _end(self, task: Task, failure: AllReduceError | None) -> None:
        with self._lock:
            self._doing = None
            if task in (self._abandoned or ()):
                return
        self._finish(task, failure)

    def _no_way(self, error: Exception) -> AllReduceError:
        """The inner group failed too: why neither way can be gone."""
        self._reconnector.stop()
        if isinstance(error, AllReduceError):
            return error
        failure = AllReduceError(f"{self._why}; and the inner group cannot be used either: {error}")
        failure.__cause__ = error
        return failure

    # --- coming back ---

    def _all_back(self, task: Task) -> bool:
        """Whether all ranks have a network that works; agreed on, so the same on all. Raises AllReduceError, on all, if
        the next task is not the same on all."""
        signature = signature_of(task, self._config.workers if task.scatters else 1)
        back = agree(self._group, self._config.workers, self._reconnector.is_back(), signature)
        if back is None:
            cause = other_operation(task.values.size, task.float_type, task.divisor)
            raise AllReduceError(str(cause)) from cause
        return back == self._config.workers

    def _hand_over(self, task: Task) -> None:
        network = self._reconnector.take()
        if network is None:  # closed meanwhile
            self._end(task, AllReduceError(CLOSED_SUMMING))
            return
        carried = self._counters.inner.get(REASON, 0)
        log.warning("[%s] over: %s is back in the network; %d sums so far went to the inner group", REASON,
                    self._config.who, carried)  # fmt: skip
        self._back(network, [task, *(task for task, _ in self._left)])


def _widen(values: npt.NDArray[Any], float_type: FloatType) -> npt.NDArray[Any]:
    """A copy, as a type that the inner group sums: float32 for the narrow ones."""
    if float_type is FloatType.BFLOAT16:
        return from_bfloat16(values)
    return values.astype(np.float64 if float_type is FloatType.FLOAT64 else np.float32)


def _narrow(sums: npt.NDArray[Any], float_type: FloatType) -> npt.NDArray[Any]:
    """Rounded to nearest even."""
    if float_type is FloatType.BFLOAT16:
        return to_bfloat16(sums)
    with np.errstate(over="ignore"):
        return sums.astype(float_type.dtype)
