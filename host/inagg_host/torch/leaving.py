"""What is left when its owner is gone, on a thread of its own.

The garbage collector may run on any thread and between any two steps of it: while it holds a lock, or on one that
leaving a job waits for. So it only puts what is to be done into a queue, which may be done anywhere
(`queue.SimpleQueue`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger("inagg")

_left: SimpleQueue[Callable[[], None]] = SimpleQueue()
_lock = threading.Lock()
_process = 0
"""In which the thread runs: a process that was forked has none, and leaves no job."""


def begin() -> None:
    """To be called before `leave`, where threads can be started."""
    global _process
    with _lock:
        if _process != os.getpid():
            _process = os.getpid()
            threading.Thread(target=_run, name="inagg-leave", daemon=True).start()


def leave(close: Callable[[], None]) -> None:
    """Have ``close`` called soon. For `__del__`."""
    _left.put(close)


def _run() -> None:
    while True:
        close = _left.get()
        try:
            close()
        except Exception:
            log.exception("a job that nobody needs any more could not be left")
        del close
