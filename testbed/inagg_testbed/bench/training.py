"""Time to a loss and to an accuracy, bytes and milliseconds a step: ways to train on several machines, side by side.

How the loss falls by the step does not depend on the links, and what a step takes does not depend on the seed. So each
system trains to the end once a seed, over links without a rate, and its steps are timed over each link by short runs
with the same networks and batches, in which systems take turns; seconds on a link are steps times what a step takes
there, the median over turns.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..progress import Doing
from ..temporary import TemporaryFolder
from ..topology import Topology, inside, open_topology, start_target
from ..topology.link import UNSHAPED
from .children import Child, ask, crew, receive_all
from .training_ranks import Outcome, Phase, Run, rank_main, together
from .training_systems import BASELINE, SYNC_EVERY, WARM_UP, why_not
from .training_tasks import TASKS

START_LIMIT_S, RUN_LIMIT_S = 240.0, 900.0
EVALUATIONS = 20
TIMED_STEPS = WARM_UP + 2 * SYNC_EVERY
TURNS = 3
"""So often each system's steps are timed over a link, with all others' between: machines are faster and slower from one
minute to the next."""
BROKEN_OFF = "broken off"
TARGET_SHARE = 0.75
"""The target is what the baseline has reached after this share of its steps, in the mean over seeds."""


@dataclass
class Found:
    """Results of a task and system. ``curve``: step, mean loss and accuracy; ``phases``: warm-up and after, by link,
    medians of ``turns``."""

    task: str
    system: str
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    phases: dict[str, tuple[Phase, Phase]] = field(default_factory=dict)
    failed: str | None = None
    turns: dict[str, list[tuple[Phase, Phase]]] = field(default_factory=dict)

    def timed(self, link: str, warm_up: Phase, steady: Phase) -> None:
        """Take in a turn over a link."""
        turns = self.turns.setdefault(link, [])
        turns.append((warm_up, steady))
        first, second = (together(of_turns, statistics.median) for of_turns in zip(*turns, strict=True))
        self.phases[link] = first, second

    def at_step(self, link: str, step: int, value: Callable[[Phase], float]) -> float:
        """Seconds, or bytes, until a step is done."""
        warm_up, steady = self.phases[link]
        return min(step, WARM_UP) * value(warm_up) + max(0, step - WARM_UP) * value(steady)

    def reached(self, which: int, target: float) -> int | None:
        """The step at which the mean loss (1) was as low, or the mean accuracy (2) as high; None if never."""
        sign = (1, -1)[which - 1]
        return next((point[0] for point in self.curve if sign * point[which] <= sign * target), None)


def _seconds(phase: Phase) -> float:
    return phase.seconds


def _bytes(phase: Phase) -> float:
    return phase.bytes_up + phase.bytes_down


def bench_training(
    found: list[Found], tasks: Sequence[str], systems: Sequence[str], links: Sequence[str], workers: int, seeds: int,
    steps: int | None, progress: Doing, data: Path | None = None,
) -> None:  # fmt: skip
    """Add the results of each task and system to ``found``; those until then, where it is interrupted. Needs root, for
    the links."""
    found += [Found(task, system, failed=why_not(system)) for task in tasks for system in systems]
    try:
        _all_rounds(found, systems, links, workers, seeds, steps, progress, data)
    finally:
        for one in found:
            if one.failed is None and not one.curve:
                one.failed = BROKEN_OFF


def rounds(links: Sequence[str]) -> int:
    """Number of rounds that `bench_training` tells of, for each system."""
    return 1 + TURNS * len(links)


def _all_rounds(
    found: Sequence[Found], systems: Sequence[str], links: Sequence[str], workers: int, seeds: int, steps: int | None,
    progress: Doing, data: Path | None,
) -> None:  # fmt: skip
    """Train to the end, and then time steps over each link."""
    # Of the links one may be unshaped, too.
    for link, turns in [(UNSHAPED, 0), *((link, TURNS) for link in links)]:
        with ExitStack() as stack:
            topology = stack.enter_context(open_topology(workers, link))
            switch = stack.enter_context(start_target("software", topology, []))
            environment = {"INAGG_SWITCH": switch.control}
            for turn, system in itertools.product(range(turns or 1), systems):
                mine = [one for one in found if one.system == system and one.failed is None]
                progress(f"{system}, {f'steps over {link}, turn {turn + 1} of {turns}' if turns else 'to the end'}")
                try:
                    _one_system(topology, environment, link if turns else None, system, mine, seeds, steps, data)
                except (RuntimeError, TimeoutError) as error:
                    for one in mine:
                        one.failed = _told(str(error))


def _told(text: str) -> str:
    """The line of a traceback that says what happened: PyTorch prints others below it."""
    lines = text.strip().splitlines()
    return next((line for line in reversed(lines) if "Error: " in line), lines[-1])


def _one_system(
    topology: Topology, environment: dict[str, str], link: str | None, system: str, found: Sequence[Found], seeds: int,
    steps: int | None, data: Path | None,
) -> None:  # fmt: skip
    """Time its steps over ``link``; None: train to the end with each seed."""
    if not found:
        return
    workers = len(topology.workers)
    with TemporaryFolder("training") as directory, crew() as children:
        for rank, node in enumerate(topology.workers):
            arguments = node, rank, workers, system, f"{directory}/store", environment
            children.append(Child(f"rank {rank}", inside, node, rank_main, *arguments))
        receive_all(children, START_LIMIT_S)

        def run(what: Run) -> list[Outcome]:
            return ask(children, what, RUN_LIMIT_S)

        for one in found:
            whole = steps or TASKS[one.task].steps
            if link is not None:
                outcomes = run(Run(one.task, 0, TIMED_STEPS, None, data))
                phases = zip(*((outcome.warm_up, outcome.steady) for outcome in outcomes), strict=True)
                one.timed(link, *(together(of_ranks, statistics.mean) for of_ranks in phases))
                continue
            every = max(SYNC_EVERY, whole // EVALUATIONS // SYNC_EVERY * SYNC_EVERY)
            curves = [run(Run(one.task, seed, whole, every, data))[0].curve for seed in range(seeds)]
            one.losses, one.accuracies = ([curve[-1][which] for curve in curves] for which in (1, 2))
            one.curve = [
                (points[0][0], statistics.mean(p[1] for p in points), statistics.mean(p[2] for p in points))
                for points in zip(*curves, strict=True)
            ]


def lines_of(found: Sequence[Found], links: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A line of results for each task and system, against the baseline if it was among them."""
    for one in found:
        line: dict[str, Any] = {"bench": "training", "task": one.task, "system": one.system}
        if one.failed is not None:
            yield line | {"failed": one.failed}
            continue
        base = next((f for f in found if (f.task, f.system, f.failed) == (one.task, BASELINE, None)), None)
        line |= {
            "loss": statistics.mean(one.losses), "losses": one.losses,
            "accuracy": statistics.mean(one.accuracies), "steps": one.curve[-1][0], "curve": one.curve,
        }  # fmt: skip
        targets = {}
        if base is not None:
            at = base.curve[round(TARGET_SHARE * (len(base.curve) - 1))]
            targets = {"loss": (1, at[1]), "accuracy": (2, at[2])}
            line |= {f"target_{name}": value for name, (_, value) in targets.items()}
        for link in (link for link in links if link in one.phases):  # others were not reached
            warm_up, steady = one.phases[link]
            line[link] = {
                "warm_up": asdict(warm_up), "steady": asdict(steady),
                "seconds": one.at_step(link, line["steps"], _seconds),
                "bytes": one.at_step(link, line["steps"], _bytes),
            }  # fmt: skip
            for name, (which, target) in targets.items():
                step = one.reached(which, target)
                line[f"{name}_at_step"] = step
                line[link][f"seconds_to_{name}"] = None if step is None else one.at_step(link, step, _seconds)
        yield line
