"""Row 2: what the switch makes of a sum is exactly natural compression of that sum."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from inagg_wire.formats import job_format

from .enumeration import counted, natural_compression, natural_dithering, switch_integers
from .model import Experiment, Line, Outcome, Plot, Run

SHOWN = 256
"""Sums in the picture."""


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    nat8 = job_format("nat8")
    bits = 6 if settings.tiny else 11
    sums = np.arange(-(1 << bits) + 1, 1 << bits)
    differ, total, reencoded_total = 0, Fraction(0), Fraction(0)
    moments = []
    for i, v in enumerate(sums.tolist()):
        if i % 256 == 0:
            settings.progress(0.6 * i / sums.size, "sums through the switch's arithmetic")
        k = max(abs(v).bit_length() - 1, 0)
        got = counted(switch_integers(nat8, 4, np.array([v]), k))
        differ += got != natural_compression(Fraction(v))
        mean = sum((x * p for x, p in got.items()), Fraction(0))
        reencoded_total, total = reencoded_total + abs(mean), total + abs(v)
        if 0 < v < SHOWN:
            moments.append(float(sum((x * x * p for x, p in got.items()), Fraction(0)) / v**2))
    outcome.add(
        "sums whose re-encoding is not distributed as C_nat of the sum",
        differ,
        0,
        0,
        f"exact: all {sums.size} sums of magnitude below 2^{bits}, all noise",
    )
    outcome.add("mean of the re-encoded sums over mean of the sums", reencoded_total / total, 1, 0, "exact: unbiased")

    settings.progress(0.6, "sums in the window of nat4")
    nat4, differ, workers = job_format("nat4"), 0, 2 if settings.tiny else 8
    top = nat4.top(workers) << nat4.result_shift(workers)
    for v in range(workers * nat4.top(workers) + 1):
        k = max(v.bit_length() - 1, nat4.result_shift(workers))
        got = counted(switch_integers(nat4, workers, np.array([v]), k))
        want = natural_dithering(Fraction(v, top), nat4.result_levels(workers))
        differ += got != {x * top: p for x, p in want.items()}
    outcome.add(
        "nat4: sums whose re-encoding is not natural dithering of the sum",
        differ,
        0,
        0,
        f"exact: all sums that {workers} workers can have, all noise",
    )
    outcome.plots.append(
        Plot(
            "re-encoding",
            "The switch's re-encoding: second moment of every sum",
            "sum of the workers' integers  (units)",
            "E result^2 / sum^2  (1)",
            [
                Line("switch, all noise enumerated", list(range(1, len(moments) + 1)), moments, "."),
                Line("9/8, the bound of C_nat", [1, len(moments)], [1.125, 1.125], "--"),
            ],
            log_x=True,
        )
    )
    return outcome


EXPERIMENT = Experiment(
    name="re-encoding",
    title="The switch's re-encoding is natural compression",
    paper="Horvath et al. 2019, definition 2; our integer form of it (protos/README.md, What the switch computes)",
    claim="Adding noise below the leading one and taking the leading one again has exactly the distribution of C_nat "
    "of the sum, so its mean is the sum.",
    run=run,
    row=2,
)
