"""Signals whose handler raises, for tests of what must be done whole all the same."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker, util
from types import FrameType
from typing import Any

import pytest

NUMBER = signal.SIGALRM
TAKEN_S = 0.05
"""Within this time another thread has taken a signal."""


class Interrupted(BaseException):
    """No Exception, as KeyboardInterrupt is none."""


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """A handler."""
    raise Interrupted


def set_handler(handler: Any) -> Any:
    """Of `NUMBER`; the one before."""
    return signal.signal(NUMBER, handler)


@pytest.fixture
def handler_as_before() -> Iterator[None]:
    """Of `NUMBER`, after the test."""
    before = signal.getsignal(NUMBER)
    yield
    set_handler(before)


@contextmanager
def handled(handler: Any = interrupt) -> Iterator[None]:
    """Have `NUMBER` handled meanwhile, and another thread there which may take it: as those of OpenBLAS do."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, daemon=True)
    before = signal.signal(NUMBER, handler)
    thread.start()
    try:
        yield
    finally:
        signal.signal(NUMBER, before)
        over.set()
        thread.join()


def come(number: signal.Signals = NUMBER) -> None:
    """Send this process a signal, which any of its threads may take; then time passes."""
    os.kill(os.getpid(), number)
    time.sleep(TAKEN_S)


def come_in_the_midst_of_a_start(monkeypatch: pytest.MonkeyPatch, which: int = 1) -> None:
    """Have `NUMBER` come when the start of a process, the ``which``-th, is half done: it has been forked, and has not
    been told yet what it is to do."""
    resource_tracker.ensure_running()  # a process, too, which counts not
    spawn, left = util.spawnv_passfds, which

    def spawn_half(*arguments: Any) -> int:
        nonlocal left
        pid: int = spawn(*arguments)
        left -= 1
        if left == 0:
            come()
        return pid

    monkeypatch.setattr(util, "spawnv_passfds", spawn_half)
