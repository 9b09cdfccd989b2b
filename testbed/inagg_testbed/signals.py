"""How a command of ours ends when it is told to: SIGTERM and SIGHUP unwind it as Ctrl-C does, so that it cleans up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminated(KeyboardInterrupt):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
        """As a shell says it of a process that the signal has ended."""


@contextmanager
def terminated_like_ctrl_c() -> Iterator[None]:
    """Meanwhile SIGTERM and SIGHUP raise `Terminated` in the main thread, which must be the one that enters.

    A signal that was ignored (nohup) stays ignored.
    """

    def raise_it(number: int, _frame: FrameType | None) -> None:
        raise Terminated(number)

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.signal(number, raise_it)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Meanwhile Ctrl-C, SIGTERM and SIGHUP wait: for what must not stop half way.

    Processes that are started meanwhile inherit that they wait, for ever: start none.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
