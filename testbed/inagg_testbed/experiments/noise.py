"""The noise terms alpha and beta of two-way compression, against the noise that is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inagg_host.compress import Key, Natural, NoiseTerms, RandK, Unbiased, noise_terms

from ..switch_process import SwitchProcess
from .cluster import Cluster, open_cluster
from .logistic import Array, Logistic, parity_of_digits
from .model import Experiment, Line, Outcome, Plot, Relation, Run, Source
from .rounding import Z_MAX

BATCH = 8
L2 = 1e-2
POINTS = {"the start": 0.0, "half the way": 0.5, "the minimum": 1.0}
"""Where gradients are measured, as a share of the way to the minimum."""


def parts_of(workers: int) -> list[Logistic]:
    """Logistic regression on the parity of digits; each worker has the digits of other classes more than others."""
    samples, labels = parity_of_digits()
    # Stable, as ties come out otherwise on processors with other vector instructions.
    order = np.argsort(samples[:, :32].sum(axis=1) - samples[:, 32:].sum(axis=1), kind="stable")
    return [Logistic(samples[mine], labels[mine], L2) for mine in np.array_split(order, workers)]


def stochastic(problem: Logistic, x: Array, rows: npt.NDArray[np.int64]) -> Array:
    """The gradient over a batch of samples."""
    part = Logistic(problem.samples[rows], problem.labels[rows], problem.l2)
    return part.gradient(x)


@dataclass(frozen=True, slots=True)
class Measured:
    """Gradients of so many workers at a point, over rounds."""

    workers: int
    point: str
    sigma: float
    """sigma^2, the largest of the workers'."""
    zeta: float
    """zeta^2."""
    square: float
    """|grad f|^2."""
    second: float
    """E|g|^2 of what comes back."""
    longer: list[float]
    """Excess of what came back over the sum, along the sum's signs, by round."""

    @property
    def name(self) -> str:
        return f"n = {self.workers}, at {self.point}"

    def terms(self, w: float) -> NoiseTerms:
        """The theory's, with w both ways."""
        return noise_terms(w, w, self.workers, self.sigma, self.zeta)

    def expected(self, w: float) -> float:
        """E|g|^2 by these."""
        return self.terms(w).second_moment(self.square)


def measure(cluster: Cluster, point: str, x: Array, rounds: int, rng: np.random.Generator) -> Measured:
    """At x, over so many rounds."""
    n = len(cluster.workers)
    problems = parts_of(n)
    gradients = np.stack([p.gradient(x) for p in problems])
    mean = gradients.mean(axis=0)
    deviations, squares, longer = np.zeros(n), 0.0, list[float]()
    for _ in range(rounds):
        batches = [rng.integers(len(p.labels), size=BATCH) for p in problems]
        drawn = [stochastic(p, x, rows) for p, rows in zip(problems, batches, strict=True)]
        deviations += [float(((g - full) ** 2).sum()) for g, full in zip(drawn, gradients, strict=True)]
        (total,) = cluster.sums(Natural(), [[g.astype(np.float32)] for g in drawn])
        squares += float(((total.astype(np.float64) / n) ** 2).sum())
        exact = np.sum(drawn, axis=0)
        longer.append(float(np.sign(exact) @ (total - exact)) / float(np.abs(exact).sum()))
    zeta = float(((gradients - mean) ** 2).sum(axis=1).mean())
    return Measured(n, point, float(deviations.max()) / rounds, zeta, float(mean @ mean), squares / rounds, longer)


def shared_terms(outcome: Outcome, settings: Run) -> None:
    """rand-k, whose coordinates all workers share: their errors do not cancel, and the terms must say so."""
    workers, d, draws = 4, 64, 200 if settings.tiny else 20_000
    gradient = settings.generator("shared").standard_normal(d)  # the same on all workers
    randk, square = RandK(0.1), float(gradient @ gradient)
    bound = randk.bound(d)
    assert isinstance(bound, Unbiased)
    second = np.mean([float((randk(gradient, Key(settings.seed, 0, step)) ** 2).sum()) for step in range(draws)])
    for name, terms, relation in (
        ("as if they were their own", noise_terms(bound.w, 0, workers, 0.0), Relation.AT_LEAST),
        ("shared", noise_terms(0, 0, workers, 0.0, shared=bound.w), Relation.NEAR),
    ):
        outcome.add(
            f"rand-k of equal gradients on {workers} workers: E|g|^2 over beta |grad f|^2, coordinates {name}",
            float(second) / terms.second_moment(square),
            1.0,
            0.05,
            Source.DERIVED,
            "the mean of C(g) with one C is C of the mean: nothing is divided by n" if relation is Relation.NEAR
            else "theorem 9 is for independent workers, and does not hold here",
            relation,
        )  # fmt: skip


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    counts, rounds = ((2,), 20) if settings.tiny else (settings.workers or (2, 4, 8), 400)
    bound = Natural().bound(1)
    assert isinstance(bound, Unbiased)
    found = measure_all(counts, rounds, settings)
    for each in found:
        compare(outcome, each, bound.w)
    longer = [share for each in found for share in each.longer]
    outcome.add(
        "gradients that come back: mean error along their signs",
        float(np.mean(longer)) / (float(np.std(longer, ddof=1)) / np.sqrt(len(longer))),
        0,
        Z_MAX,
        Source.DERIVED,
        f"unbiased, both ways; {len(longer):,} rounds",
        unit="standard errors",
    )
    shared_terms(outcome, settings)
    outcome.plots.append(plot(found, bound.w))
    outcome.notes.append(
        f"Logistic regression on the parity of digits, other digits on each worker, batches of {BATCH}; w_W = w_M = "
        "1/8 of natural compression, sigma^2 and zeta^2 as measured, every sum through the software switch in nat8. "
        "alpha = (w_M+1)(w_W+1) sigma^2/n + (w_M+1) w_W zeta^2/n, beta = 1 + w_M + (w_M+1) w_W/n."
    )
    return outcome


def measure_all(counts: Sequence[int], rounds: int, settings: Run) -> list[Measured]:
    """At three points, with each number of workers."""
    minimizer = Logistic(*parity_of_digits(), L2).minimizer
    found = []
    for turn, workers in enumerate(counts):
        for place, (point, share) in enumerate(POINTS.items()):
            settings.progress((turn + place / 3) / len(counts), f"{workers} workers, at {point}")
            rng = settings.generator("batches", workers, place)
            job = f"noise-{workers}-{place}"
            # A switch of its own: the switch's noise depends on the slots that a job leases.
            with (
                SwitchProcess() as switch,
                open_cluster(switch.control, workers, "nat8", settings.seed, job) as cluster,
            ):
                found.append(measure(cluster, point, share * minimizer, rounds, rng))
    return found


def compare(outcome: Outcome, found: Measured, w: float) -> None:
    """E|g|^2 against theorem 9, and against that of float32 sums."""
    terms = found.terms(w)
    outcome.add(
        f"{found.name}: E|g|^2 over alpha + beta |grad f|^2",
        found.second / found.expected(w),
        1.0,
        0.02,
        Source.PAPER,
        f"theorem 9; alpha = {terms.alpha:.3g}, beta = {terms.beta:.4f}, |grad f|^2 = {found.square:.3g}; a bound, "
        f"and 2 % for the mean of {len(found.longer)} rounds",
        Relation.AT_MOST,
    )
    outcome.add(
        f"{found.name}: E|g|^2 over that of float32 sums",
        found.second / found.expected(0),
        1.0,
        0.35,
        Source.DERIVED,
        "from 1 (no noise added) to (w+1)^2 = 1.27; sigma^2 is the largest of the workers', so it can be below 1 too",
    )


def plot(found: Sequence[Measured], w: float) -> Plot:
    """Second moments, case by case."""
    cases = [number + 1.0 for number in range(len(found))]
    return Plot(
        "noise",
        "Second moment of the gradient after two-way natural compression",
        "workers and point  (case)",
        "E|g|^2  (1)",
        [
            Line("alpha + beta |grad f|^2, the bound", cases, [each.expected(w) for each in found], "v"),
            Line("measured through the switch", cases, [each.second for each in found], "o"),
            Line("float32 sums (w = 0)", cases, [each.expected(0) for each in found], "_"),
        ],
        log_y=True,
        names=[each.name for each in found],
    )


EXPERIMENT = Experiment(
    name="noise",
    title="Noise terms of two-way compression",
    paper="Horvath et al. 2019, section 3.2, theorem 9",
    claim="E|g|^2 <= alpha + beta |grad f|^2 for the gradient g that comes back from the aggregator.",
    run=run,
)
