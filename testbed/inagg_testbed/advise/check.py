"""Predictions against measurements: the same steps, on this machine, by the cost model and by real processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..profiles import profile
from ..profiles.compute import Compute, assumed_rate
from ..progress import Doing
from ..topology import LinkSpec
from .model import Costs
from .predict import predict
from .wire import GLOO

FLOPS_PER_S = 5e12
"""Computation that is assumed, so that some of communication is hidden and some is not: a modest GPU."""


@dataclass(frozen=True, slots=True)
class Case:
    """A training to predict and to measure: with Gloo and with ``format``."""

    model: str
    workers: int
    link: str | None
    format: str = "nat8"


LINK_CASES = (
    Case("resnet110", 2, "100mbit"),
    Case("resnet50", 2, "1gbit"),
    Case("alexnet", 2, "none"),
    Case("resnet110", 4, "100mbit", "nat4"),
    Case("resnet50", 4, "1gbit", "fix32"),
    Case("gpt2", 4, "1gbit"),
    Case("resnet50", 4, "10gbit"),
    Case("resnet110", 8, "1gbit"),
    Case("resnet50", 8, "1gbit"),
    Case("alexnet", 8, "10gbit"),
)
"""Ten cases over shaped links: sizes from 7 MB to 500 MB, 2 to 8 workers, 100 Mbit/s to what the machine carries."""

LOOPBACK_CASES = (
    *(
        Case(model, workers, None, format_)
        for workers in (2, 4, 8)
        for model, format_ in (("resnet110", "nat8"), ("resnet50", "nat8"), ("alexnet", "nat4"))
    ),
    Case("resnet50", 4, None, "fix32"),
)
"""Ten cases for who may not make namespaces."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A prediction beside its measurement."""

    case: Case
    system: str
    predicted_s: float
    measured_s: float
    cpu_busy: float
    """The share of the cores that was busy while it was measured, with anything."""
    foreign_load: float
    """The share of the cores that something else used before."""

    @property
    def error(self) -> float:
        """Relative to what was measured: 0.1 is predicted 10 % too long."""
        return self.predicted_s / self.measured_s - 1


def _place(case: Case) -> tuple[int, str]:
    return case.workers, case.link or ""


def steps_of(cases: Sequence[Case], runs: int) -> int:
    """Number of steps that `check` tells of: starts of workers, and steps of both systems, with one that warms up."""
    return len(set(map(_place, cases))) + 2 * (1 + runs) * len(cases)


def check(
    cases: Sequence[Case], costs: Mapping[str, Costs], runs: int, progress: Doing = lambda _: None
) -> Iterator[Checked]:
    """Measure every case, with Gloo and with its format in turns, for so many ``runs`` of a step, and predict it."""
    from ..bench.step_ranks import StepRun, open_step_ranks

    for (workers, link), group in groupby(sorted(cases, key=_place), key=_place):
        mine = list(group)
        systems = [GLOO, *dict.fromkeys(case.format for case in mine)]
        progress(f"starting {workers} workers, link {link or 'loopback'}")
        with open_step_ranks(workers, systems, link or None) as ranks:
            for case in mine:
                compute = compute_of(case)
                rate = LinkSpec.parse(link).rate_bits_per_s if link else 0.0
                predictions = predict(compute, costs, [case.format], workers, rate, "one-machine")
                found: dict[str, list[StepRun]] = {GLOO: [], case.format: []}
                for number in range(1 + runs):
                    for system, of_system in found.items():
                        progress(f"{case.model}, {workers} workers, {link or 'loopback'}, {system}")
                        run = ranks.run(system, compute, 1)
                        if number:  # the first one warms up
                            of_system.append(run)
                for prediction in predictions:
                    measured = StepRun.together(found[prediction.system])
                    yield Checked(
                        case, prediction.system, prediction.time.step_s, measured.median_s, measured.cpu_busy,
                        ranks.foreign_load,
                    )  # fmt: skip


def compute_of(case: Case) -> Compute:
    """The computation that a case assumes."""
    found = profile(case.model)
    return assumed_rate(found, found.batch, FLOPS_PER_S)
