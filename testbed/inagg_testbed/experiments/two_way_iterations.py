"""Iterations of SGD with compression both ways, against (w_W + 1)(w_M + 1)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inagg_host.compress import Compressor, Key, Natural, RandK, Unbiased, noise_terms

from .model import Experiment, Line, Outcome, Plot, Relation, Run, Source

TARGET = 0.02
"""Target of E|x|^2, which is 1 at the start; the gradients' variance sigma^2 is 1."""
STEP_FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Steps that are tried, over the one whose noise alone would stay at the target."""
REPEATS, LIMIT, HOPELESS = 4, 5000, 5
"""Runs, of which the mean is taken; and iterations at most, in all and over those of the theory."""
WAYS: dict[str, Compressor | None] = {
    "none": None,
    "natural": Natural(),
    "rand-k, 1/2": RandK(0.5),
    "rand-k, 1/4": RandK(0.25),
}


def w_of(compressor: Compressor | None, d: int) -> float:
    """Return w of the compressor's B(w); 0 without one."""
    if compressor is None:
        return 0.0
    bound = compressor.bound(d)
    assert isinstance(bound, Unbiased)
    return bound.w


def expected(alpha: float, beta: float, step: float) -> int:
    """Iterations on |x|^2 / 2 by theorem 9 with equality: E|x - step g|^2 = (1 - 2 step + step^2 beta) E|x|^2 +
    step^2 alpha."""
    error = 1.0
    for number in range(1, LIMIT + 1):
        error = (1 - 2 * step + step**2 * beta) * error + step**2 * alpha
        if error <= TARGET:
            return number
    return LIMIT


def iterations(
    up: Compressor | None, down: Compressor | None, step: float, workers: int, d: int, settings: Run, limit: int
) -> int:
    """Iterations until the mean of |x|^2 over some runs is at the target; ``limit`` at most."""
    rng = settings.generator("noise", workers, d)
    x = np.full((REPEATS, d), 1 / np.sqrt(d))
    for number in range(1, limit + 1):
        for repeat in range(REPEATS):
            gradients = x[repeat] + rng.standard_normal((workers, d)) / np.sqrt(d)
            if up is not None:  # a seed for each worker, as rand-k of one seed has the same coordinates on all
                keys = [Key((settings.seed + 1) * 1000 + rank, 0, number, repeat) for rank in range(workers)]
                gradients = np.stack([up(g, key) for g, key in zip(gradients, keys, strict=True)])
            mean = gradients.mean(axis=0)
            x[repeat] -= step * (mean if down is None else down(mean, Key(settings.seed, 0, number, repeat)))
        if float((x**2).sum()) / REPEATS <= TARGET:
            return number
    return limit


@dataclass(frozen=True, slots=True)
class Measured:
    """Iterations with one compression up and one down."""

    up: str
    down: str
    factor: float
    """(w_W + 1)(w_M + 1)."""
    theory: int
    count: int


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    d = settings.dim or (64 if settings.tiny else 512)
    (workers,) = settings.workers or (4,)
    ways = [*WAYS][::3] if settings.tiny else [*WAYS]
    found = []
    for place, (up, down) in enumerate(itertools.product(ways, ways)):
        settings.progress(place / len(ways) ** 2, f"{up} up, {down} down")
        found.append(measure(up, down, workers, d, settings))
    for each in found:
        compare(outcome, each)
    outcome.add(
        "exponent of (w_W + 1)(w_M + 1) in the iterations",
        float(np.polyfit(np.log([each.factor for each in found]), np.log([each.count for each in found]), 1)[0]),
        1.0,
        0.1,
        Source.PAPER,
        "section 3.3 and table 1: where noise rules, iterations are in proportion to it; 10 %: beta has 1 + w_W/n in "
        "the place of 1 + w_W, which counts where steps are large",
    )
    outcome.plots.append(plot(found, workers, d))
    rows = [f"| {up} | " + " | ".join(f"{each.count:,}" for each in found if each.up == up) + " |" for up in ways]
    outcome.notes.append(
        f"f = |x|^2 / 2, gradients x + noise of variance 1, {workers} workers, each with its own coordinates of "
        "rand-k; the mean is compressed again. Iterations by what goes up (rows) and down:\n\n"
        f"| up | {' | '.join(ways)} |\n|---|{'---|' * len(ways)}\n" + "\n".join(rows)
    )
    return outcome


def measure(up: str, down: str, workers: int, d: int, settings: Run) -> Measured:
    """The fewest iterations with all of the steps, and the fewest by the theory."""
    w_up, w_down = w_of(WAYS[up], d), w_of(WAYS[down], d)
    terms = noise_terms(w_up, w_down, workers, 1.0)
    steps = [factor * 2 * TARGET / (terms.alpha + terms.beta * TARGET) for factor in STEP_FACTORS]
    theory = min(expected(terms.alpha, terms.beta, step) for step in steps)
    limit = min(20 if settings.tiny else LIMIT, HOPELESS * theory)
    count = min(iterations(WAYS[up], WAYS[down], step, workers, d, settings, limit) for step in steps)
    return Measured(up, down, (w_up + 1) * (w_down + 1), theory, count)


def compare(outcome: Outcome, found: Measured) -> None:
    """Iterations by theorem 9."""
    exact = "natural" not in (found.up, found.down)
    outcome.add(
        f"{found.up} up, {found.down} down: iterations",
        found.count,
        found.theory,
        max(2.0, 0.15 * found.theory),
        Source.DERIVED,
        f"theorem 9, which rand-k meets with equality, step by step; (w_W + 1)(w_M + 1) = {found.factor:.3g}; "
        "the fewest with five step sizes; five seeds were within 10 % of it"
        if exact
        else "theorem 9; natural compression of Gaussian vectors has less than w = 1/8",
        Relation.NEAR if exact else Relation.AT_MOST,
    )


def plot(found: Sequence[Measured], workers: int, d: int) -> Plot:
    """Iterations against (w_W + 1)(w_M + 1)."""
    shown = sorted(found, key=lambda each: each.factor)
    factors = [each.factor for each in shown]
    return Plot(
        "two-way-iterations",
        f"SGD with compression both ways, {workers} workers, d = {d}: iterations to E|x|^2 = {TARGET}",
        "(w_W + 1)(w_M + 1)  (1)",
        "iterations, best of five step sizes  (1)",
        [
            Line("measured", factors, [float(each.count) for each in shown], "o"),
            Line("theorem 9 with equality", factors, [float(each.theory) for each in shown], "x"),
        ],
        log_x=True,
        log_y=True,
    )


EXPERIMENT = Experiment(
    name="two-way-iterations",
    title="Iterations against the noise of both ways",
    paper="Horvath et al. 2019, section 3.3 and table 1",
    claim="SGD with C_W on the workers and C_M on the aggregator takes (w_W + 1)(w_M + 1) times as many iterations "
    "where the gradients' noise rules.",
    run=run,
)
