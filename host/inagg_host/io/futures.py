"""Futures of operations, completed in the order of the operations, on threads where callbacks may block.

What users chain to a future runs on the thread that completes it. On the transport's thread it would stop the network.
And what submits further operations there must do so in the same order on all ranks: so callbacks begin in the order in
which operations are done, which is the same everywhere, and one begins when those before it have ended or wait for
something (as PowerSGD's do, for an operation of their own, which might else be completed behind them, that is, never).
That is as far as it goes: what a callback submits after it has waited, and what other threads submit meanwhile, comes
in an order that differs between ranks.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Self

import numpy.typing as npt

from inagg_host.errors import FORKED, AllReduceError

from . import exit_hooks

WAITS_AFTER_S = 0.005
"""A callback that takes longer counts as waiting. That it waits for a `Work` is known at once; what else it waits for,
such as a future of torch, cannot be seen."""


class CallbackExecutor:
    """Calls what is submitted, in that order, on threads of its own: as many as wait for something at the same time."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()
        self._news = threading.Condition()
        self._running: _Run | None = None  # what began last, unless it has ended or waits
        self._spare = 0  # threads that wait for something to do
        self._closed = False
        self._threads: set[threading.Thread] = set()
        exit_hooks.callbacks.add(self)

    def submit(self, call: Callable[[], None]) -> None:
        """Have ``call`` called soon. RuntimeError: it is closed, or the interpreter is ending and has no threads."""
        with self._news:
            if self._closed:
                raise RuntimeError("it is closed")
            self._need_spare()
            self._queue.append(call)
            self._news.notify()

    def shutdown(self, limit_s: float | None = None) -> bool:
        """Return when all is called that was submitted, but for what calls this; False: that is not so after
        ``limit_s``, and goes on."""
        with self._news:
            self._closed = True
            self._news.notify_all()
            return self._news.wait_for(lambda: not self._threads - {threading.current_thread()}, limit_s)

    def lose_threads(self) -> None:
        """See `exit_hooks.ThreadOwner`."""
        self._news, self._threads, self._closed = threading.Condition(), set(), True

    def _need_spare(self) -> None:
        if self._spare == 0:
            thread = threading.Thread(target=self._serve, name="inagg-completion", daemon=True)
            thread.start()
            self._threads.add(thread)
            self._spare += 1

    def _look_after_next(self) -> None:
        """Have a thread ready for what comes next, should what runs wait; where there are no more threads, this one
        does it when it comes back. With the lock."""
        if self._queue:
            with suppress(RuntimeError):
                self._need_spare()

    def _serve(self) -> None:
        with self._news:
            try:
                while (call := self._next()) is not None:
                    self._run(call)
            finally:
                self._spare -= 1
                self._threads.discard(threading.current_thread())
                self._news.notify_all()

    def _run(self, call: Callable[[], None]) -> None:
        run = self._running = _Run(self)
        self._spare -= 1
        self._look_after_next()
        self._news.release()
        try:
            with run:
                call()
        finally:
            self._news.acquire()
            self._ends(run)
            self._spare += 1

    def _next(self) -> Callable[[], None] | None:
        """Wait for something that may begin; None: there will be nothing."""
        while True:
            if self._queue:
                left_s = 0.0 if self._running is None else self._running.since_s + WAITS_AFTER_S - time.monotonic()
                if left_s <= 0:
                    return self._queue.popleft()
                self._news.wait(left_s)
            elif self._closed or self._spare > 1:
                return None
            else:
                self._news.wait()

    def _ends(self, run: _Run) -> None:
        """Note that ``run`` has ended, or waits. With the lock."""
        if self._running is run:
            self._running = None
            self._news.notify()

    def waits(self, run: _Run) -> None:
        """``run`` waits for something: the next may begin."""
        with self._news:
            self._look_after_next()
            self._ends(run)


class _Run:
    """One call of a `CallbackExecutor`, while it runs."""

    here = threading.local()

    def __init__(self, callbacks: CallbackExecutor) -> None:
        self.callbacks, self.since_s = callbacks, time.monotonic()

    def __enter__(self) -> None:
        self.here.run = self

    def __exit__(self, *exception: object) -> None:
        self.here.run = None


@contextmanager
def waiting() -> Iterator[None]:
    """A context around what waits for a `Work`: if a callback of another does, it is not to hold up those after it."""
    run: _Run | None = getattr(_Run.here, "run", None)
    if run is not None:
        run.callbacks.waits(run)
    yield


class Work(Future[npt.NDArray[Any]]):
    """An operation on its way: a future of the sums, which calls what is chained to it in the order of operations, on a
    thread where that may block."""

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._order = threading.Lock()
        self._chained = False
        self._process = os.getpid()

    def result(self, timeout: float | None = None) -> npt.NDArray[Any]:
        """The sums, when they are there. Raises what went wrong, or TimeoutError (and it goes on)."""
        self._refuse_if_forked()
        with waiting():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None if the sums are there; waits as `result`."""
        self._refuse_if_forked()
        with waiting():
            return super().exception(timeout)

    def _refuse_if_forked(self) -> None:
        if os.getpid() != self._process and not self.done():  # nobody here would complete it
            raise AllReduceError(FORKED)

    def add_done_callback(self, fn: Callable[[Self], object]) -> None:
        """Have ``fn`` called with this when it is done, after what is chained to operations before it."""
        with self._order:
            self._chained = True
        super().add_done_callback(fn)  # type: ignore[arg-type]

    def finish(self, result: npt.NDArray[Any] | BaseException, callbacks: CallbackExecutor) -> None:
        """Complete it: here, if that only wakes who waits for it, else on a thread of ``callbacks``."""

        def complete() -> None:
            if isinstance(result, BaseException):
                self.set_exception(result)
            else:
                self.set_result(result)

        with self._order:
            if not self._chained:
                complete()
                return
        try:
            callbacks.submit(complete)
        except RuntimeError:  # the interpreter is ending, and starts no threads
            complete()
