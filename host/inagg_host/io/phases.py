"""Phases of the transport's work: counted in seconds, and shown to a profiler that asks for it.

No torch here: `inagg_host.torch.tracing` is who hands over its profiler's ranges, when it is imported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Any


class Phase(IntEnum):
    """The value is where its seconds are in an array of them."""

    ENCODE = 0
    """Finding scales and encoding."""
    NETWORK = 1
    """System calls that send and receive."""
    DECODE = 2
    IDLE = 3
    """Waiting for the network or for other ranks."""

    @property
    def range(self) -> str:
        """Its name in a trace."""
        return f"inagg::{self.name.lower()}"


Tracer = Callable[[str], AbstractContextManager[object] | None]

_tracers: list[Tracer] = []


def trace_with(tracer: Tracer) -> None:
    """Have ``tracer`` called with the name of each phase that begins; the range that it returns lasts as long as the
    phase. None: nobody records. It replaces the one before."""
    _tracers[:] = [tracer]


def tracing() -> bool:
    """Whether a range would be recorded now."""
    return bool(_tracers) and _tracers[0](Phase.NETWORK.range) is not None


class Ranges:
    """One phase at a time, for a profiler. Not thread-safe: for whoever holds the transport's turn."""

    def __init__(self) -> None:
        self._phase: Phase | None = None
        self._range: AbstractContextManager[object] | None = None

    def begin(self, phase: Phase | None) -> None:
        """End the phase that is on, and begin another (None: none)."""
        if phase is self._phase:
            return
        self._phase = phase
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
        if _tracers and phase is not None:
            self._range = _tracers[0](phase.range)
            if self._range is not None:
                self._range.__enter__()


class Stopwatch:
    """One phase at a time, counted in seconds and shown to a profiler. Not thread-safe, as `Ranges`."""

    def __init__(self, phases: Any, ranges: Ranges, clock: Callable[[], float] = time.monotonic) -> None:
        """``phases``: an array of seconds, in the order of `Phase`, to which they are added."""
        self._phases, self._ranges, self._clock = phases, ranges, clock
        self._phase: Phase | None = None
        self._since_s = 0.0

    def begin(self, phase: Phase | None) -> float:
        """End the phase that is on, and begin another (None: none). The time."""
        now_s = self._clock()
        if self._phase is not None:
            self._phases[self._phase] += now_s - self._since_s
        self._phase, self._since_s = phase, now_s
        self._ranges.begin(phase)
        return now_s
