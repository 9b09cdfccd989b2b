"""How many runs systems have, which are measured in turns: what else the machine does changes from one second to the
next."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

Found = TypeVar("Found")

RUNS_MIN: Final = 5
RUNS_MAX: Final = 200
"""So many runs tell a median well enough, unless somebody asks for more time than they take."""
TURNS: Final = 10
"""So often each system has its turn."""


def turns(run_s: float, seconds: float, systems: int, whole: bool) -> Iterator[int]:
    """Yield for each turn how many runs each of ``systems`` does in it, if a run takes ``run_s``: for some ``seconds``
    each, within the bounds on runs. ``whole``: there are further turns until so much time has passed."""
    runs = int(min(RUNS_MAX, max(RUNS_MIN, seconds / run_s)))
    count = min(TURNS, runs)
    of_turn = -(-runs // count)
    end_s = time.monotonic() + seconds * systems
    for _ in range(count):
        yield of_turn
    while whole and time.monotonic() < end_s:
        yield of_turn


def in_turns(
    run: Callable[[str, int], tuple[list[float], Found]], systems: Sequence[str], seconds: float, whole: bool
) -> tuple[dict[str, list[float]], dict[str, list[Found]]]:
    """Measure ``systems`` in `turns`. ``run`` takes one and how many runs to do, and returns the seconds of each and
    what else it has found. Returns the seconds of all runs, and what was found in each turn, by system."""
    for system in systems:
        run(system, 2)  # warm caches, connections and kernels
    estimate_s = max(statistics.median(run(s, 3)[0]) for s in systems)
    times: dict[str, list[float]] = {s: [] for s in systems}
    found: dict[str, list[Found]] = {s: [] for s in systems}
    for runs in turns(estimate_s, seconds, len(systems), whole):
        for system in systems:
            taken, more = run(system, runs)
            times[system] += taken
            found[system].append(more)
    return times, found
