"""Runs of the simulator for as long as one likes, on all cores."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from .runs import BLOCKS, check_run

SOAK_BLOCKS = 150
CHUNK_RUNS = 20
TELL_EVERY_S = 10.0


@dataclass(slots=True)
class Tally:
    """What some runs came to. ``failed``: seeds, and why."""

    runs: int = 0
    events: int = 0
    contributions: int = 0
    restarts: int = 0
    failed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.runs += other.runs
        self.events += other.events
        self.contributions += other.contributions
        self.restarts += other.restarts
        self.failed += other.failed

    def counts(self) -> dict[str, int]:
        """By what it counts."""
        return {
            "runs": self.runs,
            "events": self.events,
            "contributions": self.contributions,
            "new epochs": self.restarts,
            "failed": len(self.failed),
        }

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {what}" for what, count in self.counts().items())


def replay_command(seed: int, blocks: int = BLOCKS, *, tree: bool = False) -> str:
    """What to type to see a run again."""
    options = (f" --blocks {blocks}" if blocks != BLOCKS else "") + (" --tree" if tree else "")
    return f".venv/bin/python -m tests.host.sim --seed {seed}{options}"


def check_runs(first: int, count: int, blocks: int = BLOCKS, *, tree: bool = False) -> Tally:
    """Runs ``first`` to ``first + count - 1``. Raises nothing."""
    tally = Tally(runs=count)
    for seed in range(first, first + count):
        try:
            outcome = check_run(seed, blocks, tree=tree)
        except Exception as error:
            tally.failed.append(
                (seed, f"{type(error).__name__}: {error}\n    {replay_command(seed, blocks, tree=tree)}")
            )
        else:
            tally.events += outcome.events
            tally.contributions += outcome.contributions
            tally.restarts += outcome.epochs - 1
    return tally


def soak(seconds: float, first: int, blocks: int, processes: int, *, tree: bool = False) -> Tally:
    """Runs from seed ``first`` on, for so long. Prints how it goes, and each seed that fails."""
    total, seed, start_s, told_s = Tally(), first, time.monotonic(), 0.0
    print(f"runs of up to about {blocks} blocks, from seed {first} on, for {seconds:.0f} s", flush=True)
    pending: set[Future[Tally]] = set()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        while True:
            passed_s = time.monotonic() - start_s
            while passed_s < seconds and len(pending) < 2 * processes:
                pending.add(pool.submit(check_runs, seed, CHUNK_RUNS, blocks, tree=tree))
                seed += CHUNK_RUNS
            if not pending:
                break
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                tally = future.result()
                total.add(tally)
                for failed, why in tally.failed:
                    print(f"seed {failed} failed: {why}", flush=True)
            if passed_s - told_s > TELL_EVERY_S:
                told_s = passed_s
                print(total, flush=True)
    print(total, flush=True)
    return total
