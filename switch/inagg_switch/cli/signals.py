"""Signals to a switch: SIGINT and SIGTERM stop it, while it starts and when it serves; at SIGHUP it reads secrets and
certificates again."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:  # it imports gRPC, and the signals come first
    import asyncio

    from ..service.server import GrpcServer

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
EXIT_STOPPED: Final = 0
EXIT_FAILED: Final = 1
SLOW_S: Final = 2.0
"""Seconds after which files that are still being read count as not read."""
UNCHANGED: Final = "secrets and certificates stay as they were"

log = structlog.get_logger("inagg.switch")


class Stopped(BaseException):
    """A signal to stop came while the switch was starting."""


@contextmanager
def signals_raise() -> Iterator[None]:
    """Inside, the first signal to stop raises `Stopped`, as long as nobody else listens; then they are ignored, so that
    what was opened is closed in peace, and stay so afterwards: what is left is the end of the process, whose exit
    status is known. So is SIGHUP: what it would have read again is not read yet. For the main thread, which alone has
    signals."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        if signal.getsignal(STOP_SIGNALS[0]) is not signal.SIG_IGN:
            for number, handler in before.items():
                signal.signal(number, handler)


def hear_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None], server: GrpcServer) -> None:
    """asyncio takes the signals over: nothing is raised from here on. ``stop`` is called for each to stop; at SIGHUP
    ``server`` reads its files again."""
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, Reloads(server).begin)


def ignore_signals(loop: asyncio.AbstractEventLoop) -> None:
    """Have further signals do nothing: what is left to do is quick."""
    for number in (*STOP_SIGNALS, signal.SIGHUP):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


class Reloads:
    """Reads the files of a server again, on a thread: one on a file system that hangs, or a named pipe, would stop the
    event loop, and with it all jobs."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._begun_s: float | None = None  # when it began to read them, if it does
        self._again = False

    def begin(self) -> None:
        """Read them; if that is going on, once more after it."""
        with self._lock:
            begun_s, self._again = self._begun_s, True
            if begun_s is None:
                self._begun_s = time.monotonic()
        if begun_s is None:
            try:
                threading.Thread(target=self._read, name="inagg-reload", daemon=True).start()
            except RuntimeError as error:
                self._begun_s = None
                log.error("not_reloaded", why=str(error), then=UNCHANGED)
        elif (since_s := time.monotonic() - begun_s) > SLOW_S:
            why = f"the files have been read for {since_s:.0f} s, since an earlier SIGHUP: look at their file system"
            log.error("not_reloaded", why=why, then=UNCHANGED)

    def _read(self) -> None:
        while True:
            with self._lock:
                if not self._again:
                    self._begun_s = None
                    return
                self._again = False
            reload(self._server)


def reload(server: GrpcServer) -> None:
    """Secrets and certificates may have changed."""
    from ..service.security import SecurityError

    try:
        server.reload()
    except (SecurityError, OSError) as error:
        log.error("not_reloaded", why=str(error), then=UNCHANGED)
    else:
        log.info("reloaded", what="secrets and certificates", secrets=len(server.secrets.by_name))
