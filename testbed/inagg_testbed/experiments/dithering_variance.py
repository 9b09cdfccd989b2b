"""The variance of standard over natural dithering with equally many levels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inagg_host.compress import Dithering, Key, NaturalDithering

from .model import Experiment, Line, Outcome, Plot, Run, Source
from .rounding import Rounding

Array = npt.NDArray[np.float64]


def standard_variances(x: Array, norm: float, s: int) -> Array:
    """E (D(x) - x)^2 of D_sta with levels j / s of ``norm``: each rounding has variance p (1 - p) / s^2."""
    y = np.abs(x) / norm * s
    p = y - np.floor(y)
    variances: Array = p * (1 - p) * (norm / s) ** 2
    return variances


def natural_variances(x: Array, norm: float, s: int) -> Array:
    """E (D(x) - x)^2 of D_nat with levels 0, 2^(1-s), ..., 1 of ``norm``: (y - below) (above - y) for each y."""
    y = np.abs(x) / norm
    lowest = 2.0 ** (1 - s)
    below = np.where(y >= lowest, 2.0 ** np.floor(np.log2(np.maximum(y, lowest))), 0.0)
    above = np.where(y >= lowest, 2 * below, lowest)
    variances: Array = (y - below) * np.maximum(above - y, 0) * norm**2
    return variances


def ratio(x: Array, p: float, s: int) -> float:
    """Variance of D_sta^{p,s} over that of D_nat^{p,s} at ``x``, in closed form over the noise."""
    norm = float(np.linalg.norm(x, p))
    return float(standard_variances(x, norm, s).sum()) / float(natural_variances(x, norm, s).sum())


def shipped(outcome: Outcome, settings: Run, d: int, draws: int) -> float:
    """The compressors that ship, p = 2 and s = 8, on a Gaussian vector; the ratio of their measured variances."""
    x = settings.generator("shipped").standard_normal(d)
    norm, s, sizes = float(np.linalg.norm(x)), 8, []
    ways = ((Dithering(p=2, s=s), standard_variances), (NaturalDithering(p=2, s=s), natural_variances))
    for compressor, variances in ways:
        drawn = np.concatenate([compressor(x, Key(settings.seed, step=step)) - x for step in range(draws)])
        rounding = Rounding(np.tile(np.sign(x), draws) * drawn, np.tile(variances(x, norm, s), draws), d // 10)
        rounding.add_to(outcome, f"{compressor.name} that ships, p = 2, s = {s}", f"d = {d:,}, Gaussian")
        sizes.append(float((drawn**2).sum()))
    return sizes[0] / sizes[1]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Gaussian vectors, so many of each kind, that are drawn one after another."""

    rng: np.random.Generator
    draws: int

    def mean_ratio(self, d: int, p: float, s: int) -> tuple[float, float]:
        """The mean of `ratio`, and its standard error."""
        values = [ratio(self.rng.standard_normal(d), p, s) for _ in range(self.draws)]
        return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(self.draws))


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    large, small = (1000, 200) if settings.tiny else (100_000, 1000)
    vectors = Vectors(settings.generator("vectors"), 2 if settings.tiny else 20)
    outcome.add(
        f"the compressors that ship: ratio of variances, p = 2, d = {large:,}, s = 8",
        shipped(outcome, settings, large, 3 if settings.tiny else 40),
        30.7,
        0.05 * 30.7,
        Source.PAPER,
        "measured over all draws of one vector; 2.5 % for the reference's digits, and as much for the vector",
    )
    in_closed_form(outcome, vectors, large, small)
    outcome.plots.append(plot(vectors, large, small))
    outcome.notes.append(
        "The gain is one of the 2-norm in high dimensions, where all |x| / norm are far below the lowest level 1/s of "
        "standard dithering. With the maximum norm, which the switch's shared scales use, the values spread over the "
        "levels, even steps fit them better, and with the same number of levels standard dithering has the smaller "
        "variance. (Natural dithering needs fewer bits in the sum: its codes are exponents.)"
    )
    return outcome


def in_closed_form(outcome: Outcome, vectors: Vectors, large: int, small: int) -> None:
    """Ratios of variances over all noise."""
    for s, reference in ((4, 2.0), (8, 30.7), (12, 244.0)):
        measured, error = vectors.mean_ratio(large, 2, s)
        outcome.add(
            f"p = 2, d = {large:,}, s = {s}",
            measured,
            reference,
            0.025 * reference,
            Source.PAPER,
            f"in closed form; the reference has two or three digits, so 2.5 %; the mean of {vectors.draws} draws has "
            f"error {error:.2g}",
        )
    measured, error = vectors.mean_ratio(small, np.inf, 8)
    outcome.add(
        f"p = inf, d = {small:,}, s = 8 (it reverses)",
        measured,
        0.4,
        0.05,
        Source.OURS,
        f"in closed form; the reference has one digit; the mean of {vectors.draws} draws has error {error:.2g}",
    )


def plot(vectors: Vectors, large: int, small: int) -> Plot:
    """Ratios of variances by the number of levels."""
    levels, cases = list(range(2, 15)), (("p = 2", large, 2.0), ("p = inf", small, np.inf))
    lines = [
        Line(f"{name}, d = {d:,}, Gaussian", levels, [vectors.mean_ratio(d, p, s)[0] for s in levels], "o-")
        for name, d, p in cases
    ]
    return Plot(
        "dithering-variance",
        "Variance of standard over natural dithering, same number of levels",
        "levels s  (1)",
        "variance of D_sta / variance of D_nat  (1)",
        [*lines, Line("equal", [2, 14], [1, 1], "k--")],
        log_y=True,
    )


EXPERIMENT = Experiment(
    name="dithering-variance",
    title="Variance of standard and natural dithering",
    paper="Horvath et al. 2019, section 4 and its figure on the variance of D_sta and D_nat",
    claim="With the 2-norm and s = 4, 8, 12 levels, standard dithering of a Gaussian vector of 100,000 has 2.0, 30.7 "
    "and 244 times the variance of natural dithering; with the maximum norm (d = 1000, s = 8) only 0.4 times.",
    run=run,
    row=4,
)
