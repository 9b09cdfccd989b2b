"""A thread that calls what it is given, one after the other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from . import exit_hooks

T = TypeVar("T")


class SerialExecutor:
    """A `concurrent.futures.ThreadPoolExecutor` with one thread; but for those the interpreter's end waits before jobs
    are left, for this one after that (`exit_hooks`)."""

    def __init__(self, name: str) -> None:
        """``name``: of the thread, which starts with the first call."""
        self._name = name
        self._given: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Have it called; what it returns, or raises. Raises RuntimeError after `shutdown`, and where there are no more
        threads."""
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
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
                exit_hooks.serial.add(self)
            self._given.put(run)
        return done

    def shutdown(self, limit_s: float | None = None) -> bool:
        """See `exit_hooks.ThreadOwner`."""
        with self._lock:
            self._closed = True
            self._given.put(None)
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(limit_s)
        return not thread.is_alive()

    def lose_threads(self) -> None:
        """See `exit_hooks.ThreadOwner`."""
        self._lock, self._thread, self._closed = threading.Lock(), None, True

    def _serve(self) -> None:
        while (run := self._given.get()) is not None:
            run()
            del run  # else what is over would be kept until there is more to do


def shutdown_all(waited: Iterable[exit_hooks.ThreadOwner], limit_s: float) -> bool:
    """Shut them down, one after the other; False: after ``limit_s`` for all of them not all is over, and goes on."""
    until_s = time.monotonic() + limit_s
    return all([one.shutdown(max(0.0, until_s - time.monotonic())) for one in waited])
