"""How many runs systems have, which are measured in turns: what else the machine does changes from one second to the
next."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

RUNS_MIN: Final = 5
RUNS_MAX: Final = 200
"""As many tell a median well enough, unless somebody asks for more time than they take."""
TURNS: Final = 10
"""So often each system has its turn."""


def turns(run_s: float, seconds: float, systems: int, whole: bool) -> Iterator[int]:
    """For each turn, how many runs each of ``systems`` does in it, if a run takes ``run_s``: for some ``seconds`` each,
    within the bounds on runs. ``whole``: there are further turns until so much time has passed."""
    runs = int(min(RUNS_MAX, max(RUNS_MIN, seconds / run_s)))
    count = min(TURNS, runs)
    of_turn = -(-runs // count)
    end_s = time.monotonic() + seconds * systems
    for _ in range(count):
        yield of_turn
    while whole and time.monotonic() < end_s:
        yield of_turn
