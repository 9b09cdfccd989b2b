"""Futures of operations, completed on threads where callbacks may block.

What users chain to a future runs on the thread that completes it. On the transport's thread it would stop the
network, and something that waits for another operation would wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy.typing as npt

from inagg_host.stats import OperationCounters

THREADS = 4


class Work:
    """An operation on its way. ``result`` waits for it; ``add_done_callback`` is called when it is done."""

    def __init__(self) -> None:
        self._future: Future[npt.NDArray[Any]] = Future()
        self._future.set_running_or_notify_cancel()
        self._lock = threading.Lock()
        self._chained = False
        self.counters: OperationCounters | None = None
        """What it took; None before the end, and if it did not go through the switch."""

    def done(self) -> bool:
        """Whether the sums, or the reason why there are none, are there."""
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> npt.NDArray[Any]:
        """The sums, when they are there. Raises what went wrong, or TimeoutError (and it goes on)."""
        return self._future.result(timeout_s)

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """What went wrong, or None if the sums are there."""
        return self._future.exception(timeout_s)

    def add_done_callback(self, call: Callable[[Work], None]) -> None:
        """Have ``call`` called with this when it is done, on a thread where it may block."""
        with self._lock:
            self._chained = True
        self._future.add_done_callback(lambda _: call(self))

    def finish(self, result: npt.NDArray[Any] | BaseException, pool: ThreadPoolExecutor) -> None:
        """Complete it: here, if that only wakes who waits for it, else on ``pool``."""
        with self._lock:
            if not self._chained:
                self._set(result)
                return
        try:
            pool.submit(self._set, result)
        except RuntimeError:  # the interpreter is ending and has stopped the pool, before it calls what atexit knows
            self._set(result)

    def _set(self, result: npt.NDArray[Any] | BaseException) -> None:
        if isinstance(result, BaseException):
            self._future.set_exception(result)
        else:
            self._future.set_result(result)


def make_pool() -> ThreadPoolExecutor:
    """Threads to complete works on; what is chained to one may wait for another."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="inagg-completion")
