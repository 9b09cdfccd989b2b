"""The second moment of natural compression, of the reference codec exactly and of the encoder that ships."""

from __future__ import annotations

from fractions import Fraction
from statistics import NormalDist

import numpy as np

from inagg_wire import codec
from inagg_wire.formats import job_format

from .enumeration import WIDTH, encoder_integers, unit_for
from .model import Experiment, Line, Outcome, Plot, Relation, Run, Source
from .rounding import encoded, natural

NINE_EIGHTHS = Fraction(9, 8)
TIE_WIDTH = 8
"""Bits of a noise word in the enumeration at 4/3; any even number gives the same."""
ALIGNED = -100
"""Magnitudes of N(0, 1) below 2^-100 do not matter, and nor does how they are cut off."""


def at_four_thirds() -> Fraction:
    """E C(x)^2 / x^2 at x = 4/3, by enumerating the rounding rule `codec.carries` for p = 1/3.

    4/3 is no binary float, so p has endless bits. A noise word of an even width w meets the first w of them: one word
    in 2^w is a tie, and then what is left of p is 1/3 again. So the probability P of rounding up satisfies
    P = (ups + P) / 2^w, where ups are the words that round up at once.
    """
    third, words = Fraction(1, 3), 1 << TIE_WIDTH

    class Tie(Exception):
        pass

    def spell(first: int, index: int) -> int:
        if index:
            raise Tie
        return first

    ups = 0
    for word in range(words):
        try:
            ups += codec.carries(third, lambda index, word=word: spell(word, index), TIE_WIDTH)  # type: ignore[misc]
        except Tie:
            left = third * words - int(third * words)
            assert left == third
    probability = Fraction(ups, words - 1)
    return ((1 - probability) * 1 + probability * 4) / Fraction(4, 3) ** 2


def normal_second_moment() -> float:
    """E C(x)^2 / E x^2 for x ~ N(0, 1), octave by octave: for 2^e <= x < 2^(e+1), E C(x)^2 = 3 x 2^e - 2 * 4^e."""
    normal, total = NormalDist(), 0.0
    for e in range(ALIGNED, 6):
        low, high = 2.0**e, 2.0 ** (e + 1)
        first_moment = normal.pdf(low) - normal.pdf(high)  # of the density over the octave
        total += 2 * (3 * low * first_moment - 2 * low**2 * (normal.cdf(high) - normal.cdf(low)))
    return total


def shipped(outcome: Outcome, settings: Run) -> tuple[list[float], list[float]]:
    """The compiled encoder, over mantissas of six bits and 4/3 in seven octaves; (mantissa, second moment) measured."""
    blocks, lanes = (40, 448) if settings.tiny else (3000, 64 * 24)
    mantissas = 1 + np.arange(64) / 64
    mantissas[21] = 4 / 3
    rng = settings.generator("shipped")
    values = np.tile(mantissas, lanes // 64) * np.exp2(rng.integers(-6, 1, lanes)) * rng.choice([-1.0, 1.0], lanes)
    inputs = np.tile(values.astype(np.float32), (blocks, 1))
    x, rounded = inputs.astype(np.float64).reshape(-1), encoded("nat8", inputs, settings.seed).reshape(-1)
    natural(rounded, x, lanes).add_to(outcome, "the encoder that ships", "nat8, float32, mantissas of six bits")
    squares = ((rounded / x) ** 2).reshape(blocks, -1, 64).mean(axis=1)
    error = float(squares[:, 21].std(ddof=1)) / np.sqrt(blocks)
    outcome.add(
        "the encoder that ships: second moment at 4/3",
        float(squares[:, 21].mean()),
        NINE_EIGHTHS,
        4.5 * error,
        Source.PAPER,
        f"theorem 1; {blocks * lanes // 64:,} draws; 4.5 standard errors",
    )
    return mantissas.tolist(), squares.mean(axis=0).tolist()


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    width = 6 if settings.tiny else WIDTH
    outcome.add(
        "reference codec: second moment at 4/3",
        at_four_thirds(),
        NINE_EIGHTHS,
        0,
        Source.PAPER,
        "theorem 1; exact: all noise words, in fractions",
    )
    settings.progress(0.2, "all mantissas")
    exact = octave(outcome, width)
    settings.progress(0.5, "normal values")
    normals(outcome, 256 if settings.tiny else 4096, width)
    settings.progress(0.8, "the encoder that ships")
    drawn = shipped(outcome, settings)
    outcome.plots.append(
        Plot(
            "second-moment",
            "Natural compression: second moment over one octave",
            "|x| / 2^floor(log2 |x|)  (1)",
            "E C(x)^2 / x^2  (1)",
            [
                Line("reference codec, all noise", *exact),
                Line("the encoder that ships, drawn", *drawn, "."),
                Line("9/8, the bound", [1, 2], [1.125, 1.125], "--"),
            ],
        )
    )
    return outcome


def octave(outcome: Outcome, width: int) -> tuple[list[float], list[float]]:
    """The reference codec, over all mantissas of ``width`` bits; (mantissa, second moment)."""
    fmt = job_format("nat8")
    mantissas = [Fraction(m, 1 << width) for m in range(1 << width)]
    integers = encoder_integers(fmt, unit_for(fmt, 1.0), [float(1 + m) / 2 for m in mantissas], width)
    integers >>= fmt.levels(1) - 2  # in units of the power of two below the inputs: 1 or 2
    squares = (integers**2).sum(axis=0).tolist()
    moments = [Fraction(s, 1 << width) / (1 + m) ** 2 for s, m in zip(squares, mantissas, strict=True)]
    theory = [(1 + 3 * m) / (1 + m) ** 2 for m in mantissas]
    outcome.add(
        f"reference codec: mantissas of {width} bits whose second moment is not (1+3m)/(1+m)^2",
        sum(a != b for a, b in zip(moments, theory, strict=True)),
        0,
        0,
        Source.DERIVED,
        "from definition 2: to 1 with probability 1 - m, to 2 with m; exact: all noise words",
    )
    outcome.add(
        f"reference codec: largest second moment over mantissas of {width} bits",
        max(moments),
        NINE_EIGHTHS,
        0,
        Source.PAPER,
        "w = 1/8, theorem 1; exact",
        Relation.AT_MOST,
    )
    return [float(1 + m) for m in mantissas], [float(moment) for moment in moments]


def normals(outcome: Outcome, count: int, width: int) -> None:
    """The reference codec, over the upper half of ``count`` quantiles of N(0, 1)."""
    fmt, normal = job_format("nat8"), NormalDist()
    quantiles = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count // 2, count)])
    # Cut to as many mantissa bits as the enumerated noise decides about.
    mantissa, exponent = np.frexp(quantiles)
    cut = np.ldexp(np.round(mantissa * (1 << (width + 1))) / (1 << (width + 1)), exponent)
    unit = unit_for(fmt, float(cut.max()))
    integers = encoder_integers(fmt, unit, cut.tolist(), width)
    measured = float((integers.astype(np.float64) ** 2).mean(axis=0).sum() * float(unit) ** 2 / (cut**2).sum())
    outcome.add(
        "reference codec: second moment of N(0, 1), a sample's",
        measured,
        1.0812,
        1e-3,
        Source.OURS,
        "the reference is 5e-4 below the integral, as the mean of a sample can be; so the tolerance is twice that",
    )
    outcome.add(
        "reference codec: second moment of N(0, 1), the integral",
        measured,
        normal_second_moment(),
        1e-4,
        Source.DERIVED,
        f"all noise of {count // 2} quantiles, whose distance from the integral halves with twice as many",
    )


EXPERIMENT = Experiment(
    name="second-moment",
    title="Second moment of natural compression",
    paper="Horvath et al. 2019 (arXiv 1905.10988), theorem 1",
    claim="E C(x)^2 <= 9/8 x^2, with equality at |x| = 4/3 2^e; 1.0812 on average for N(0, 1).",
    run=run,
    row=1,
)
