"""DIANA+ against DIANA by the number of workers, and by the clock: in one process, and through the switch."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from inagg_host.compress import Compressor, TernGrad
from inagg_host.compress.optim.diana import diana_step
from inagg_host.compress.optim.shifted import Shifted
from inagg_host.compress.optim.smoothness import shared_smoothness

from ..switch_process import SwitchProcess
from .cluster import Cluster, open_cluster
from .labelled import like_a9a, load
from .logistic import Array
from .model import Experiment, Line, Outcome, Plot, Relation, Run, Source
from .quadratic import Effort, over
from .regressions import L2, Problem, few_features, methods, problems, solved

COUNTS = (2, 4, 8, 16)
PEOPLE = 4000
LIMIT = 40_000
ACCURACY, ACCURACY_THROUGH_SWITCH = 1e-4, 1e-2
DIANA, PLUS, SHARED = "DIANA", "DIANA+ varying steps", "DIANA+ varying steps, one shared matrix"
LANES = 64
"""Lanes of a datagram: gradients are short."""
APART = 1
"""The number of a vector that is none of the iterate's, for a round that is not timed: it ends the start."""


@dataclass(frozen=True, slots=True)
class Timed:
    """An effort, the theory's step size, and what it took by the clock."""

    effort: Effort
    step: float
    seconds: float

    @property
    def iteration_us(self) -> float:
        """Microseconds that an iteration took."""
        return 1e6 * self.seconds / self.effort.iterations


def data_of(settings: Run, workers: int) -> tuple[str, Array, Array]:
    """Name, samples and labels: of the file that was given, or people made as those of a9a."""
    if settings.data is None:
        data = like_a9a(settings.generator("data"), 160 if settings.tiny else PEOPLE)
    else:
        data = load(settings.data)
    return few_features(data, workers)


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    counts = settings.workers or ((2, 4) if settings.tiny else COUNTS)
    name, samples, labels = data_of(settings, max(counts))
    accuracy, limit = (0.5, 300) if settings.tiny else (ACCURACY, LIMIT)
    found: dict[tuple[str, int], Timed] = {}
    for place, workers in enumerate(counts):
        problem = problems(samples, labels, workers)[1]
        for number, method in enumerate(m for m in methods(problem, workers, samples.shape[1])):
            if method.name in (DIANA, PLUS, SHARED):
                settings.progress(0.7 * (place + number / 9) / len(counts), f"{workers} workers: {method.name}")
                start_s = time.perf_counter()
                rng = settings.generator(method.name, workers)
                effort, step = solved(method, problem, rng, accuracy, limit)
                found[method.name, workers] = Timed(effort, step, time.perf_counter() - start_s)
    for workers in counts:
        compare(outcome, found, workers)
    settings.progress(0.7, "through the switch")
    through_the_switch(outcome, problems(samples, labels, counts[0])[1], settings)
    outcome.plots.append(
        Plot(
            "smoothness-workers",
            f"Logistic regression, {name}: DIANA+ by the number of workers",
            "workers  (1)",
            "iterations to equal accuracy  (1)",
            [
                Line(each, list(counts), [float(found[each, n].effort.iterations) for n in counts], style)
                for each, style in ((DIANA, "o--"), (PLUS, "o-"), (SHARED, "s-"))
            ],
            log_x=True,
            log_y=True,
        )
    )
    rows = [
        f"| {n} | {each} | {t.effort.iterations:,} | {t.effort.bits:,.0f} | {t.iteration_us:.0f} |"
        for (each, n), t in found.items()
    ]
    outcome.notes.append(
        f"{name}: {samples.shape[0]:,} samples of {samples.shape[1]} features, cut into parts of the workers in the "
        f"order of the sums of their features (ties in the order of the file). l2 = {L2}, budgets of d/n coordinates, "
        f"step sizes and alpha of the theory, until |x - x*|^2 is {accuracy:g} of what it was. In one process a step "
        "of DIANA+ is the longer one, as each worker's vector meets a matrix of d x d twice:\n\n"
        "| workers | method | iterations | bits a worker | microseconds an iteration |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
    )
    return outcome


def compare(outcome: Outcome, found: dict[tuple[str, int], Timed], workers: int) -> None:
    """Iterations, and seconds in one process."""
    plain = found[DIANA, workers]
    for name in (PLUS, SHARED):
        plus = found[name, workers]
        outcome.add(
            f"n = {workers}: iterations of DIANA over {name}",
            over(plain.effort.iterations, plus.effort.iterations, plain.effort, plus.effort),
            plus.step / plain.step,
            0.1 * plus.step / plain.step,
            Source.DERIVED,
            "the ratio of the step sizes of the theory, which has n by its budget d/n alone; 10 %: the first steps are "
            "not at the asymptotic rate",
        )
    outcome.add(
        f"n = {workers}: seconds of DIANA over {PLUS}, in one process",
        over(plain.seconds, found[PLUS, workers].seconds, plain.effort, found[PLUS, workers].effort),
        1.0,
        0.0,
        Source.OURS,
        "fewer iterations are worth more than what multiplications by the matrices take",
        Relation.AT_LEAST,
        timed=True,
    )


def through_the_switch(outcome: Outcome, problem: Problem, settings: Run) -> None:
    """Ternary DIANA (2 bits a coordinate), and ternary DIANA+ with one matrix, through the switch: rounds and seconds.

    Ternary rounding of y has variance at most |y|_inf |y_j| in coordinate j. So E|C(y) - y|_L^2 <= |y| sum L_jj |y_j|
    <= |diag L| |y|^2: cal is |diag L|, and w is at most sqrt(d), with L = I.
    """
    workers, d = len(problem.matrices), problem.minimizer.size
    shared = shared_smoothness(problem.matrices)
    limit = 20 if settings.tiny else 20_000
    w = np.sqrt(d)
    cases = {
        "DIANA": (Shifted(TernGrad(clip=0), 1 / (1 + w)), w * problem.largest),
        "DIANA+": (Shifted(TernGrad(clip=0), 1 / (1 + w), shared), float(np.linalg.norm(shared.diagonal))),
    }
    rounds, seconds, steps = {}, {}, {}
    with SwitchProcess() as switch:
        for place, (name, (compressor, cal)) in enumerate(cases.items()):
            settings.progress(0.75 + 0.12 * place, f"through the switch: {name}")
            steps[name] = diana_step(problem.smoothness, cal, workers)
            job = f"smoothness-workers-{place}"
            with open_cluster(switch.control, workers, "tern", settings.seed, job, lanes=LANES) as cluster:
                cluster.sums(compressor, [[row] for row in problem.gradients(problem.minimizer)], first=APART)
                start_s = time.perf_counter()
                rounds[name] = descend(cluster, compressor, problem, steps[name], limit)
                seconds[name] = time.perf_counter() - start_s
    ratio = steps["DIANA+"] / steps["DIANA"]
    outcome.add(
        f"through the switch, {workers} workers: rounds of ternary DIANA over DIANA+ with one shared matrix",
        rounds["DIANA"] / rounds["DIANA+"],
        ratio,
        0.15 * ratio,
        Source.DERIVED,
        f"the ratio of the step sizes of the theory; {rounds['DIANA']:,} and {rounds['DIANA+']:,} rounds",
    )
    outcome.add(
        f"through the switch, {workers} workers: seconds of ternary DIANA over DIANA+ with one shared matrix",
        seconds["DIANA"] / seconds["DIANA+"],
        1.0,
        0.0,
        Source.OURS,
        f"fewer rounds are worth more than what the matrix takes: {1e3 * seconds['DIANA'] / rounds['DIANA']:.2g} and "
        f"{1e3 * seconds['DIANA+'] / rounds['DIANA+']:.2g} ms a round, on loopback",
        Relation.AT_LEAST,
        timed=True,
    )


def descend(cluster: Cluster, compressor: Compressor, problem: Problem, step: float, limit: int) -> int:
    """Rounds until |x - x*|^2 is `ACCURACY_THROUGH_SWITCH` of what it was."""
    x = np.zeros(problem.minimizer.size)
    enough = ACCURACY_THROUGH_SWITCH * float(problem.minimizer @ problem.minimizer)
    for number in range(1, limit + 1):
        (total,) = cluster.sums(compressor, [[row] for row in problem.gradients(x)])
        x = x - step * total / len(problem.matrices)
        if float(((x - problem.minimizer) ** 2).sum()) <= enough:
            return number
    return limit


EXPERIMENT = Experiment(
    name="smoothness-workers",
    title="Smoothness-aware methods by the number of workers, and by the clock",
    paper="Wang, Safaryan, Richtarik 2021, section 6 and its appendix",
    claim="DIANA+ with matrices needs fewer iterations than DIANA by the ratio of their step sizes, for 2 to 16 "
    "workers, and less time although each step multiplies by a matrix.",
    run=run,
)
