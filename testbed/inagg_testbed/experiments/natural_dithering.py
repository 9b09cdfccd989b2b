"""Natural dithering has the distribution of natural compression after standard dithering."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from inagg_wire import reencode
from inagg_wire.formats import job_format

from .dithering_variance import natural_variances
from .enumeration import WIDTH, composed, encoder_integers, natural_dithering, unit_for
from .model import Experiment, Line, Outcome, Plot, Run, Source
from .rounding import Rounding, encoded

LEVELS = 7
"""Levels of nat4."""


def shipped(outcome: Outcome, settings: Run) -> None:
    """The compiled encoder of nat4, on values over all of its levels and below them."""
    blocks, lanes = (40, 512) if settings.tiny else (3000, 1440)
    rng = settings.generator("shipped")
    values = np.exp2(-rng.uniform(0, 9, lanes)) * rng.choice([-1.0, 1.0], lanes)
    values[0] = 1.0  # the norm
    inputs = np.tile(values.astype(np.float32), (blocks, 1))
    x = inputs.astype(np.float64).reshape(-1)
    rounded = encoded("nat4", inputs, settings.seed).reshape(-1)
    gap = np.maximum(np.exp2(np.floor(np.log2(np.abs(x)))), 2.0 ** (1 - LEVELS))  # between the levels around x
    errors, variances = np.sign(x) * (rounded - x) / gap, natural_variances(x, 1.0, LEVELS) / gap**2
    rounding = Rounding(errors, variances, lanes)
    rounding.add_to(
        outcome, "the encoder that ships, nat4", "magnitudes from the norm to an eighth of the lowest level"
    )


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    definitions(outcome, 4 if settings.tiny else 8)
    settings.progress(0.3, "encoder and switch, all noise of both")
    line = codecs(outcome, 8 if settings.tiny else WIDTH)
    settings.progress(0.8, "the encoder that ships")
    shipped(outcome, settings)
    outcome.plots.append(
        Plot(
            "natural-dithering",
            f"Natural dithering with {LEVELS} levels (nat4), all noise enumerated",
            "|x| / norm  (1)",
            "variance of the code's value / norm^2  (1)",
            [line],
        )
    )
    return outcome


def definitions(outcome: Outcome, most: int) -> None:
    """Add what the paper defines, of up to ``most`` levels."""
    differ = points = 0
    for s in range(2, most + 1):
        # all levels of both and points between, thirds, sevenths and elevenths
        grid = {Fraction(j, d) for d in (1 << (s + 2), 3 * 7 * 11) for j in range(d + 1)}
        differ += sum(natural_dithering(y, s) != composed(y, s) for y in grid)
        points += len(grid)
    outcome.add(
        "definitions: points where the two distributions differ, in fractions",
        differ,
        0,
        0,
        Source.DERIVED,
        f"exact: {points} points of [0, 1], s = 2 to {most}",
    )


def codecs(outcome: Outcome, width: int) -> Line:
    """The reference codec's nat4 against the switch's arithmetic on fix32; the variance of the former, by input."""
    nat4, fix32 = job_format("nat4"), job_format("fix32")
    unit = unit_for(nat4, 1.0)
    inputs = [j / (1 << width) for j in range((1 << width) + 1)]
    direct = encoder_integers(nat4, unit, inputs, width)
    # In units of nat4's lowest level 1/64, fix32's encoder is standard dithering with u = 64 = 2^(s-1) levels.
    top = 1 << (LEVELS - 1)
    dithered = encoder_integers(fix32, unit, inputs, width)
    noise = np.arange(top, dtype=np.uint32)
    levels = reencode.natural_levels(np.repeat(np.arange(top + 1), top), 0, np.tile(noise, top + 1))
    levels = levels.reshape(top + 1, top)
    differ, variances = 0, []
    for column in range(len(inputs)):
        after = np.bincount(levels[dithered[:, column]].ravel(), minlength=LEVELS + 1)
        before = np.bincount(reencode.bit_length(direct[:, column]), minlength=LEVELS + 1)
        differ += not np.array_equal(after, before * top)
        mean = float(direct[:, column].mean()) / top
        variances.append(float((direct[:, column] / top - mean).var()))
    outcome.add(
        "reference codec: inputs where nat4's encoder and the switch's C_nat of dithered integers differ",
        differ,
        0,
        0,
        Source.DERIVED,
        f"exact: {len(inputs)} inputs, all noise of encoder and switch, as counts",
    )
    return Line("nat4's encoder", inputs, variances)


EXPERIMENT = Experiment(
    name="natural-dithering",
    title="Natural dithering is natural compression of standard dithering",
    paper="Horvath et al. 2019, section 4; derived: D_nat^{p,s} = C_nat o D_sta^{p,2^(s-1)} in distribution",
    claim="D_nat with s levels and C_nat after D_sta with 2^(s-1) levels have equal distributions.",
    run=run,
    row=3,
)
