"""How a command of ours ends when it is told to: SIGTERM and SIGHUP unwind it as Ctrl-C does, so that it cleans up."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

AGAIN_S: Final = 0.01


class Terminated(KeyboardInterrupt):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
        """Exit code that a shell tells of a process that the signal has ended."""


@contextmanager
def terminated_like_ctrl_c() -> Iterator[None]:
    """Meanwhile SIGTERM and SIGHUP raise `Terminated` in the main thread, which must be the one that enters.

    A signal that was ignored (nohup) stays ignored. What Ctrl-C or such a signal raised where Python drops all that is
    raised, in a callback of a weak reference or a finalizer, is raised again: an import alone runs thousands of these.
    """

    def raise_it(number: int, _frame: FrameType | None) -> None:
        raise Terminated(number)

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.signal(number, raise_it)
    hook = sys.unraisablehook

    def again(dropped: UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            hook(dropped)
            return
        code = getattr(dropped.exc_value, "exit_code", 128 + signal.SIGINT)
        # Later: raised in here it would be dropped, too.
        sender = threading.Timer(AGAIN_S, os.kill, (os.getpid(), code - 128))
        sender.daemon = True
        sender.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            if signal.getsignal(number) is raise_it:  # else somebody ignores it from now on, such as a switch that ends
                signal.signal(number, handler)
