"""What signals do to a switch: SIGINT and SIGTERM stop it, while it starts and when it serves; at SIGHUP it reads
secrets and certificates again."""

from __future__ import annotations

import signal
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

log = structlog.get_logger("inagg.switch")


class Stopped(BaseException):
    """A signal to stop came while the switch was starting."""


@contextmanager
def signals_raise() -> Iterator[None]:
    """Inside, the first signal to stop raises `Stopped`, as long as nobody else listens; then they are ignored, so that
    what was opened is closed in peace. So is SIGHUP: what it would have read again is not read yet. For the main
    thread, which alone has signals."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def hear_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None], server: GrpcServer) -> None:
    """asyncio takes the signals over: nothing is raised from here on. ``stop`` is called for each to stop; at SIGHUP
    ``server`` reads its files again."""
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, reload, server)


def ignore_signals(loop: asyncio.AbstractEventLoop) -> None:
    """What is left to do is quick."""
    for number in (*STOP_SIGNALS, signal.SIGHUP):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def reload(server: GrpcServer) -> None:
    """Secrets and certificates may have changed."""
    from ..service.security import SecurityError

    try:
        server.reload()
    except (SecurityError, OSError) as error:
        log.error("not_reloaded", why=str(error), then="secrets and certificates stay as they were")
    else:
        log.info("reloaded", what="secrets and certificates", secrets=len(server.secrets.by_name))
