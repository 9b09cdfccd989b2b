"""Threads with things to do: the interpreter's end waits for them, and a process that was forked has none of them.

A daemon thread that asks for Python's lock in a destructor of PyTorch's when the interpreter has ended aborts the
process ("terminate called without an active exception"). So the end waits for such threads, but not before jobs have
been left, since what is called there may wait for sums, which then fail.
"""

from __future__ import annotations

import atexit
import itertools
import os
import weakref
from typing import Protocol

LAST_S = 5.0
"""How long it waits for each: a gather of Gloo's, for one, may not hear that all is over."""


class ThreadOwner(Protocol):
    """An object that has threads."""

    def shutdown(self, limit_s: float | None = None) -> bool:
        """Return when all is called that was submitted, but for what calls this; False: that is not so after
        ``limit_s``, and goes on. Nothing more can be submitted. No error if called twice."""
        ...

    def lose_threads(self) -> None:
        """Forget the threads: this process is a child of `os.fork`, and they are the parent's. Nothing more can be
        submitted, and nothing is waited for. Whoever had its lock when that happened is not there to give it back."""
        ...


serial, callbacks = weakref.WeakSet[ThreadOwner](), weakref.WeakSet[ThreadOwner]()
"""Owners that are shut down at the end, the first ones first."""


def _all() -> list[ThreadOwner]:
    return list(itertools.chain(serial, callbacks))


@atexit.register  # when this is imported, so before any job: what was registered last is called first
def _finish() -> None:
    for waited in _all():
        waited.shutdown(LAST_S)


def _lose_threads() -> None:
    for waited in _all():
        waited.lose_threads()


os.register_at_fork(after_in_child=_lose_threads)
