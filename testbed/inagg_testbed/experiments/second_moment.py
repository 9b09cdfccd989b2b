"""Row 1: the second moment of natural compression, from the encoder that runs on the wire."""

from __future__ import annotations

from fractions import Fraction
from statistics import NormalDist

import numpy as np

from inagg_wire import codec
from inagg_wire.formats import job_format

from .enumeration import WIDTH, encoder_integers, unit_for
from .model import Experiment, Line, Outcome, Plot, Relation, Run

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


def run(settings: Run) -> Outcome:
    fmt = job_format("nat8")
    unit = unit_for(fmt, 1.0)
    outcome = Outcome()
    outcome.add("second moment at 4/3", at_four_thirds(), NINE_EIGHTHS, 0, "exact: all noise words, in fractions")

    settings.progress(0.2, "all mantissas")
    width = 6 if settings.tiny else WIDTH
    mantissas = [Fraction(m, 1 << width) for m in range(1 << width)]
    integers = encoder_integers(fmt, unit, [float(1 + m) / 2 for m in mantissas], width)
    integers >>= fmt.levels(1) - 2  # in units of the power of two below the inputs: 1 or 2
    squares = (integers**2).sum(axis=0).tolist()
    moments = [Fraction(s, 1 << width) / (1 + m) ** 2 for s, m in zip(squares, mantissas, strict=True)]
    theory = [(1 + 3 * m) / (1 + m) ** 2 for m in mantissas]
    wrong = sum(a != b for a, b in zip(moments, theory, strict=True))
    outcome.add(
        f"mantissas of {width} bits whose second moment is not (1+3m)/(1+m)^2", wrong, 0, 0, "exact: all noise words"
    )
    outcome.add(
        f"largest second moment over mantissas of {width} bits",
        max(moments),
        NINE_EIGHTHS,
        0,
        "w = 1/8 (paper, theorem 1); exact",
        Relation.AT_MOST,
    )

    settings.progress(0.5, "normal values")
    count, normal = (256 if settings.tiny else 4096), NormalDist()
    quantiles = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count // 2, count)])
    # Cut to as many mantissa bits as the enumerated noise decides about.
    mantissa, exponent = np.frexp(quantiles)
    cut = np.ldexp(np.round(mantissa * (1 << (width + 1))) / (1 << (width + 1)), exponent)
    unit = unit_for(fmt, float(cut.max()))
    integers = encoder_integers(fmt, unit, cut.tolist(), width)
    measured = float((integers.astype(np.float64) ** 2).mean(axis=0).sum() * float(unit) ** 2 / (cut**2).sum())
    outcome.add(
        "second moment of N(0, 1), the reference's",
        measured,
        1.0812,
        1e-3,
        "the reference is 5e-4 below the integral, as the mean of a sample can be; so the tolerance is twice that",
    )
    outcome.add(
        "second moment of N(0, 1), the integral",
        measured,
        normal_second_moment(),
        1e-4,
        f"all noise of {count // 2} quantiles, whose distance from the integral halves with twice as many",
    )
    outcome.plots.append(
        Plot(
            "second-moment",
            "Natural compression: second moment over one octave",
            "|x| / 2^floor(log2 |x|)  (1)",
            "E C(x)^2 / x^2  (1)",
            [
                Line("encoder, all noise enumerated", [float(1 + m) for m in mantissas], [float(v) for v in moments]),
                Line("9/8, the bound", [1, 2], [1.125, 1.125], "--"),
            ],
        )
    )
    return outcome


EXPERIMENT = Experiment(
    name="second-moment",
    title="Second moment of natural compression",
    paper="Horvath et al. 2019 (arXiv 1905.10988), theorem 1",
    claim="E C(x)^2 <= 9/8 x^2, with equality at |x| = 4/3 2^e; 1.0812 on average for N(0, 1).",
    run=run,
    row=1,
)
