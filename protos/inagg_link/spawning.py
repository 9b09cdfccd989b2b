"""Start a process of `multiprocessing`, whole or not at all, whatever signals come meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

from inagg_link.signals import Deferred


def start_deaf(process: BaseProcess, numbers: Iterable[signal.Signals]) -> None:
    """Start a spawned process in which the signals ``numbers`` are blocked from its first moment, until it says
    otherwise: those that a terminal sends to all, and on which only the parent is to act.

    A handler that raises in this process is called when the other has all that it needs: left without, that one would
    print a traceback. It is killed before what the handler raised is raised here.
    """
    try:
        with Deferred():
            # Not among what follows, since it unblocks the signals.
            resource_tracker.ensure_running()
            # A process inherits which signals are blocked, so there is no moment in which one could hit it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except BaseException:
        if process.pid is not None:
            process.kill()
            process.join()
        raise
