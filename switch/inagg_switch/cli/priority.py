"""Priorities where processors are scarce: data planes come first, the control service after them."""

from __future__ import annotations

import os
import threading
from typing import Final

LESS: Final = 10
"""Steps of niceness (sched(7)): about a tenth of the time that a shard gets, if both have enough to do. (Measured:
100,000 hostile calls make sums take 1.3 to 1.6 times as long; with 5 steps 2.1 times, with no more calls answered.)"""


def yield_to_shards() -> None:
    """Let this thread, and those that it starts from now on, come after the data planes.

    To be called when shards and the threads that start them again are there: a process cannot become less nice again.
    """
    thread = threading.get_native_id()
    nice = os.getpriority(os.PRIO_PROCESS, thread)  # on Linux each thread has its own
    os.setpriority(os.PRIO_PROCESS, thread, min(19, nice + LESS))
