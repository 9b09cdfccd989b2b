"""Lines for people while something is compiled here, or another process has it. It needs no Numba."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SAY_EVERY_S: Final = 5.0

Tell = Callable[[int], None]
"""Told, whenever there is news, how many functions a process has begun to compile."""


class Progress:
    """A `Tell` that says it in words: when it begins, and now and then; that it waits for others, once.
    Those may compile, or load what is in the cache: that is not known here."""

    def __init__(self, say: Callable[[str], None], what: str, first: int = 0) -> None:
        """``what`` is compiled; ``first``: the count until now."""
        self._say, self._what, self._first = say, what, first
        self._begun = self._waits = False
        self._said_s = time.monotonic()

    def __call__(self, count: int) -> None:
        now_s, done = time.monotonic(), count - self._first
        if done and not self._begun:
            self._begun, self._said_s = True, now_s
            self._say(f"compiling {self._what} for this machine, once: that takes about half a minute")
        elif now_s - self._said_s >= SAY_EVERY_S and not (self._waits and not done):
            self._said_s, self._waits = now_s, not done
            waits = f"waiting for another process of this machine, which loads or compiles {self._what}"
            self._say(f"compiling {self._what}: {done} functions so far" if done else waits)
