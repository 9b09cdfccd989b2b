"""A thread that calls what it is given, one after the other.

The interpreter's end waits for it, but only when jobs have been left: what is called may wait for sums, which then
fail. To go on without it would not do, see `futures.LAST_S`.
"""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from .futures import LAST_S

T = TypeVar("T")


class InTurn:
    """As `concurrent.futures.ThreadPoolExecutor` with one thread, for which the interpreter's end waits before jobs are
    left."""

    def __init__(self, name: str) -> None:
        """``name``: of the thread, which starts with the first call."""
        self._name = name
        self._given: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Have it called; what it returns, or raises. Raises RuntimeError after `shutdown`."""
        done = Future[T]()

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    result = call(*arguments)
                except BaseException as error:  # it belongs to whoever waits for it
                    done.set_exception(error)
                else:
                    done.set_result(result)

        with self._lock:
            if self._closed:
                raise RuntimeError("it is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
                _running.add(self)
            self._given.put(run)
        return done

    def shutdown(self, limit_s: float | None = None) -> None:
        """Return when all is called that was submitted, or after ``limit_s``. No error if called twice."""
        with self._lock:
            self._closed = True
            self._given.put(None)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(limit_s)

    def _serve(self) -> None:
        while (run := self._given.get()) is not None:
            run()
            del run  # else what is over would be kept until there is more to do


_running = weakref.WeakSet[InTurn]()


@atexit.register  # when this is imported: after `futures`, and before any job, and what is registered last comes first
def _finish() -> None:
    # A gather of Gloo's may not hear that all is over, so there is a limit.
    for turn in list(_running):
        turn.shutdown(LAST_S)
