"""Measure what the cost model needs, on this machine, in minutes; kept with a date until asked for anew."""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from inagg_switch.cli.words import age_text
from inagg_wire.formats import job_format

from .. import cache
from ..profiles.compute import nothing
from ..progress import Doing
from .model import Costs, Sample, fit_costs
from .racks import FLAT_FORMATS
from .wire import GLOO

Network = Literal["loopback", "veth"]
"""Path of datagrams: the loopback interface, or pairs of interfaces between namespaces (needs root)."""

SAMPLE_S = 0.1
"""Time for each all-reduce in each turn, roughly."""
TURNS, RUNS_MIN, RUNS_MAX = 3, 1, 33
"""Each is measured so many times, with all others between: a machine has slower and faster moments."""
COLD_FROM, COLD_ELEMENTS = 1 << 20, 1 << 24
"""All-reduces from so many elements on are measured one after another, over so many elements in all, 64 MiB of float32
on each worker: gradients of a real step are in no cache when their turn comes."""
KERNEL_ELEMENTS = 1 << 22
BATCH_DATAGRAMS = 44
"""Datagrams that the engine gives to a kernel at a time."""
USUALLY = "in two or three minutes on a quiet machine"
SYSTEMS = (GLOO, *FLAT_FORMATS)


@dataclass(frozen=True, slots=True)
class Plan:
    """All-reduces to measure with one number of workers. ``link``: as `open_topology` takes it."""

    workers: int
    link: str | None
    systems: tuple[str, ...] = SYSTEMS
    elements: tuple[int, ...] = (1 << 14, 1 << 20, 1 << 23, 1 << 25)
    """64 KiB, 4 MiB, 32 MiB of float32, as buckets are, and 128 MiB, as the largest layers' are."""

    @property
    def steps(self) -> int:
        """Number of steps that `measure` tells of."""
        return 1 + TURNS * len(self.systems) * len(self.elements)


PLANS: dict[Network, tuple[Plan, ...]] = {
    "loopback": tuple(Plan(workers, None) for workers in (2, 4, 8)),
    "veth": (
        *(Plan(workers, "none") for workers in (2, 4, 8)),
        # where a link of 1 Gbit/s and the processors take about as long as each other
        Plan(4, "1gbit", (GLOO, "nat8", "dith8-exact", "fix32"), (1 << 20, 1 << 22)),
    ),
}
"""Plans that a calibration measures, by network."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measurements, with date and network. ``kernels``: seconds for an element in the host's kernels, by format:
    finding scales, encoding and decoding; a part of the workers' CPU time."""

    date: str
    network: Network
    samples: tuple[Sample, ...]
    kernels: dict[str, float]
    foreign_load: float
    """The share of the cores that something else used meanwhile, the most that was seen, 0 to 1."""

    def costs(self) -> dict[str, Costs]:
        """The fitted constants of every system."""
        return fit_costs(self.samples)


def from_kept(kept: dict[str, Any]) -> Calibration:
    """From what `cache.load` returned. Raises KeyError or TypeError for another version's file."""
    samples = tuple(Sample(**sample) for sample in kept["samples"])
    return Calibration(kept["date"], kept["network"], samples, dict(kept["kernels"]), kept["foreign_load"])


def calibration(network: Network, again: bool = False, progress: Doing = lambda _: None) -> Calibration:
    """Return this machine's calibration: from the cache if it is there and not ``again``, else measured and kept. What
    was measured before an interruption is kept, too, and not measured anew."""
    kept = None if again else cache.load(f"calibration-{network}")
    if kept is not None:
        try:
            return from_kept(kept)
        except (KeyError, TypeError):
            progress("the calibration that was kept is of another version: measuring anew")
    unfinished = f"calibration-{network}-unfinished"
    shape = [field.name for field in fields(Sample)]
    done: dict[str, Any] | None = None if again else cache.load(unfinished)
    if done is None or done.get("shape") != shape:
        done = {"shape": shape, "plans": {}}
    plans: dict[str, dict[str, Any]] = done["plans"]
    todo = [plan for plan in PLANS[network] if repr(plan) not in plans]
    steps = sum(plan.steps for plan in todo) + ("kernels" not in done) * len(FLAT_FORMATS)
    numbers, start_s = itertools.count(1), time.monotonic()

    def counted(what: str) -> None:
        number, taken_s = next(numbers), time.monotonic() - start_s
        left = f"{age_text(taken_s / (number - 1) * (steps - number + 1))} left" if number > 1 else USUALLY
        progress(f"calibrating, once, {left}: {number} of {steps}, {what}")

    if "kernels" not in done:
        done["kernels"] = measure_kernels(counted)
        cache.keep(unfinished, done)
    for plan in todo:
        found, load = measure(plan, counted)
        plans[repr(plan)] = {"samples": [asdict(s) for s in found], "foreign_load": load}
        cache.keep(unfinished, done)
    each = [plans[repr(plan)] for plan in PLANS[network]]
    content = {
        "network": network, "samples": [sample for one in each for sample in one["samples"]],
        "kernels": done["kernels"], "foreign_load": max(one["foreign_load"] for one in each),
    }  # fmt: skip
    kept = cache.keep(f"calibration-{network}", content)
    cache.path(unfinished).unlink(missing_ok=True)
    return from_kept(kept)


def measure(plan: Plan, progress: Doing = lambda _: None) -> tuple[list[Sample], float]:
    """The all-reduces of a plan, and `StepRanks.foreign_load`."""
    from ..bench.step_ranks import StepRun, open_step_ranks
    from ..topology import LinkSpec

    workers, rate = plan.workers, LinkSpec.parse(plan.link).rate_bits_per_s if plan.link else 0.0
    progress(f"starting {workers} workers")
    each = [(elements, system) for elements in plan.elements for system in plan.systems]
    count = {elements: max(1, COLD_ELEMENTS // elements) if elements >= COLD_FROM else 1 for elements in plan.elements}
    runs: dict[tuple[int, str], int] = {}
    measured: dict[tuple[int, str], list[StepRun]] = {key: [] for key in each}
    with open_step_ranks(workers, plan.systems, plan.link) as ranks:
        for _ in range(TURNS):
            for key in each:
                elements, system = key
                progress(f"{workers} workers, {elements * 4 >> 10:,} KiB, {system}")
                bare = nothing([elements] * count[elements])
                if key not in runs:
                    estimate_s = min(ranks.run(system, bare, 2).seconds)
                    runs[key] = round(min(RUNS_MAX, max(RUNS_MIN, SAMPLE_S / estimate_s)))
                measured[key].append(ranks.run(system, bare, runs[key]))
        load = ranks.foreign_load
    found = []
    for (elements, system), turns in measured.items():
        run = StepRun.together(turns)
        seconds, worker_s, switch_s = (s / count[elements] for s in (run.median_s, run.worker_cpu_s, run.switch_cpu_s))
        found.append(Sample(system, workers, elements, seconds, worker_s, switch_s, rate))
    return found, load


def measure_kernels(progress: Doing = lambda _: None) -> dict[str, float]:
    """Seconds for an element, by format, on one core: `Calibration.kernels`."""
    from inagg_wire.scale import FloatType

    from ..bench.kernels import measure_all

    found: dict[str, float] = {}
    for name in FLAT_FORMATS:
        progress(f"kernels of {name}")
        rates = measure_all(
            [job_format(name)], [FloatType.FLOAT32], workers=4, elements=KERNEL_ELEMENTS,
            batch_datagrams=BATCH_DATAGRAMS, runs=3,
        )  # fmt: skip
        found[name] = sum(1 / rate.elements_per_s for rate in rates)
    return found
