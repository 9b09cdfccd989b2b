"""The noise terms alpha and beta of two-way compression, against the noise that is measured."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inagg_host.compress import Key, Natural, RandK, Unbiased, noise_terms

from ..switch_process import SwitchProcess
from .cluster import Cluster, open_cluster
from .logistic import Array, Logistic, parity_of_digits
from .model import Experiment, Line, Outcome, Plot, Relation, Run, Source
from .rounding import Z_MAX

BATCH = 8
L2 = 1e-2


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


def measure(
    cluster: Cluster, problems: list[Logistic], x: Array, rounds: int, rng: np.random.Generator
) -> tuple[float, float, float, float, list[float]]:
    """At x: sigma^2 (the largest of the workers'), zeta^2, |grad f|^2, and E|g|^2 of what comes back, over rounds; and
    by round, how much longer what came back is than the sum, along the sum's signs."""
    gradients = np.stack([p.gradient(x) for p in problems])
    mean = gradients.mean(axis=0)
    natural, n = Natural(), len(problems)
    deviations, squares, longer = np.zeros(n), 0.0, list[float]()
    for _ in range(rounds):
        batches = [rng.integers(len(p.labels), size=BATCH) for p in problems]
        drawn = [stochastic(p, x, rows) for p, rows in zip(problems, batches, strict=True)]
        deviations += [float(((g - full) ** 2).sum()) for g, full in zip(drawn, gradients, strict=True)]
        (total,) = cluster.sums(natural, [[g.astype(np.float32)] for g in drawn])
        squares += float(((total.astype(np.float64) / n) ** 2).sum())
        exact = np.sum(drawn, axis=0)
        longer.append(float(np.sign(exact) @ (total - exact)) / float(np.abs(exact).sum()))
    zeta = float(((gradients - mean) ** 2).sum(axis=1).mean())
    return float(deviations.max()) / rounds, zeta, float(mean @ mean), squares / rounds, longer


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
    w = bound.w
    minimizer = Logistic(*parity_of_digits(), L2).minimizer
    points = {"the start": 0.0, "half the way": 0.5, "the minimum": 1.0}
    plain: list[float] = []
    compressed: list[float] = []
    measured: list[float] = []
    labels: list[float] = []
    names: list[str] = []
    longer: list[float] = []
    for workers in counts:
        problems = parts_of(workers)
        for place, (name, share) in enumerate(points.items()):
            settings.progress((counts.index(workers) + place / 3) / len(counts), f"{workers} workers, at {name}")
            rng = settings.generator("batches", workers, place)
            job = f"noise-{workers}-{place}"
            # A switch of its own: the switch's noise depends on the slots that a job leases.
            with (
                SwitchProcess() as switch,
                open_cluster(switch.control, workers, "nat8", settings.seed, job) as cluster,
            ):
                sigma, zeta, square, second, more = measure(cluster, problems, share * minimizer, rounds, rng)
            longer += more
            terms = noise_terms(w, w, workers, sigma, zeta)
            allowed = terms.second_moment(square)
            outcome.add(
                f"n = {workers}, at {name}: E|g|^2 over alpha + beta |grad f|^2",
                second / allowed,
                1.0,
                0.02,
                Source.PAPER,
                f"theorem 9; alpha = {terms.alpha:.3g}, beta = {terms.beta:.4f}, |grad f|^2 = {square:.3g}; a bound, "
                f"and 2 % for the mean of {rounds} rounds",
                Relation.AT_MOST,
            )
            without = noise_terms(0, 0, workers, sigma, zeta).second_moment(square)
            outcome.add(
                f"n = {workers}, at {name}: E|g|^2 over that of float32 sums",
                second / without,
                1.0,
                0.35,
                Source.DERIVED,
                "from 1 (no noise added) to (w+1)^2 = 1.27; sigma^2 is the largest of the workers', so it can be "
                "below 1 too",
            )
            labels.append(len(labels) + 1.0)
            names.append(f"n = {workers}, at {name}")
            plain.append(without)
            compressed.append(allowed)
            measured.append(second)
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
    outcome.plots.append(
        Plot(
            "noise",
            "Second moment of the gradient after two-way natural compression",
            "workers and point  (case)",
            "E|g|^2  (1)",
            [
                Line("alpha + beta |grad f|^2, the bound", labels, compressed, "v"),
                Line("measured through the switch", labels, measured, "o"),
                Line("float32 sums (w = 0)", labels, plain, "_"),
            ],
            log_y=True,
            names=names,
        )
    )
    outcome.notes.append(
        f"Logistic regression on the parity of digits, other digits on each worker, batches of {BATCH}; w_W = w_M = "
        "1/8 of natural compression, sigma^2 and zeta^2 as measured, every sum through the software switch in nat8. "
        "alpha = (w_M+1)(w_W+1) sigma^2/n + (w_M+1) w_W zeta^2/n, beta = 1 + w_M + (w_M+1) w_W/n."
    )
    return outcome


EXPERIMENT = Experiment(
    name="noise",
    title="Noise terms of two-way compression",
    paper="Horvath et al. 2019, section 3.2, theorem 9",
    claim="E|g|^2 <= alpha + beta |grad f|^2 for the gradient g that comes back from the aggregator.",
    run=run,
)
