"""What the transport is doing at a time: the seconds of each phase, and the ranges of a profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from inagg_host.io import phases
from inagg_host.io.phases import Phase, Ranges, Stopwatch, trace_with


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where ranges leave their names as they begin and end."""
    seen: list[str] = []

    @contextmanager
    def span(name: str) -> Iterator[None]:
        seen.append(f"+{name}")
        yield
        seen.append(f"-{name}")

    monkeypatch.setattr(phases, "_tracers", [])
    trace_with(span)
    return seen


def test_each_phase_counts_its_own_seconds() -> None:
    times = iter([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    seconds = np.zeros(len(Phase))
    watch = Stopwatch(seconds, Ranges(), lambda: next(times))
    for phase in (Phase.NETWORK, Phase.DECODE, Phase.ENCODE, Phase.NETWORK, None, Phase.IDLE, Phase.ENCODE):
        watch.begin(phase)
    assert {phase: seconds[phase] for phase in Phase} == {
        Phase.NETWORK: 1.0 + 8.0, Phase.DECODE: 2.0, Phase.ENCODE: 4.0, Phase.IDLE: 32.0,
    }  # fmt: skip


def test_one_range_at_a_time(traced: list[str]) -> None:
    watch = Stopwatch(np.zeros(len(Phase)), Ranges())
    for phase in (Phase.NETWORK, Phase.ENCODE, None):
        watch.begin(phase)
    assert traced == ["+inagg::network", "-inagg::network", "+inagg::encode", "-inagg::encode"]


def test_a_tracer_may_decline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "_tracers", [])
    trace_with(lambda name: None)
    watch = Stopwatch(np.zeros(len(Phase)), Ranges())
    watch.begin(Phase.NETWORK)
    watch.begin(None)
