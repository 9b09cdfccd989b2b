"""Finalizers of jobs whose owner is gone, on a thread of their own.

The garbage collector may run on any thread and between any two steps of it: while it holds a lock, or on one that
leaving a job waits for. So it only puts what is to be done into a queue, which may be done anywhere
(`queue.SimpleQueue`).

The interpreter's end waits for that thread, for the reason that `inagg_host.io.exit_hooks` tells, and before those
threads.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger("inagg")

_left: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
"""Calls to make; None after the last."""
_lock = threading.Lock()
_thread: threading.Thread | None = None
_process = 0
"""Process in which the thread runs: one that was forked has none, and leaves no job."""


def start() -> None:
    """Start the thread: to be called before `submit`, where threads can be started."""
    global _process, _thread
    with _lock:
        if _process != os.getpid():
            thread = threading.Thread(target=_run, name="inagg-leave", daemon=True)
            thread.start()
            _process, _thread = os.getpid(), thread


def submit(close: Callable[[], None]) -> None:
    """Have ``close`` called soon, or, at the interpreter's end, when jobs have been left, not at all. For `__del__`."""
    _left.put(close)


@atexit.register
def _finish() -> None:
    if _thread is not None and _process == os.getpid():
        _left.put(None)
        _thread.join()


def _run() -> None:
    while (close := _left.get()) is not None:
        try:
            close()
        except Exception:
            log.exception("a job that nobody needs any more could not be left")
        del close
