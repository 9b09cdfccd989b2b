"""The switch makes of a sum its natural compression: of the reference codec exactly, and of the switch that runs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.binding import Binding
from inagg_wire.formats import job_format
from inagg_wire.header import Datagram, Header
from inagg_wire.layout import HEADER_BYTES, Kind, Op
from inagg_wire.payload import pack, unpack
from inagg_wire.slots import Lease

from ..switch_process import SwitchProcess
from .enumeration import counted, natural_compression, natural_dithering, switch_integers
from .model import Experiment, Line, Outcome, Plot, Run, Source
from .rounding import natural, switched

SHOWN = 256
"""Sums in the picture."""
LANES = 1448


def shipped(outcome: Outcome, switch: str, workers: int, settings: Run) -> tuple[list[float], list[float]]:
    """The switch that runs, on sums of powers of two, which the workers' encoders do not round; the second moment of
    its results, by sum."""
    blocks = 40 if settings.tiny else 2500
    rng = settings.generator("shipped", workers)
    rows = rng.choice([-8, -4, -2, -1, 0, 1, 2, 4, 8, 16], (workers, blocks * LANES)).astype(np.float32)
    sums = rows.sum(axis=0, dtype=np.float64)
    got = switched(switch, "nat8", list(rows), LANES, settings.seed, f"re-encoding-{workers}")
    natural(got, sums, LANES).add_to(outcome, f"the switch that runs, nat8, {workers} workers", "sums of powers of two")
    magnitudes = np.abs(sums)
    shown = [v for v in range(1, SHOWN) if (magnitudes == v).sum() > 1000]
    return [float(v) for v in shown], [float((got[magnitudes == v] ** 2).mean()) / v**2 for v in shown]


def neighbours(outcome: Outcome, settings: Run) -> None:
    """How errors of neighbouring lanes hang together: the switch's noise is a CRC, which is linear, so in a slot the
    noise of two lanes differs by the same bits in every generation. From the compiled aggregator."""
    slots, generations, workers = (16, 16, 3) if settings.tiny else (128, 64, 3)
    children = tuple(("10.0.0.1", 1 + rank) for rank in range(workers))
    nat8, lease = job_format("nat8"), Lease(0, slots)
    aggregator = Aggregator(slots, LANES)
    aggregator.bind(Binding(1, 1, nat8, LANES, lease, settings.seed, children))
    ones = pack(nat8.up, np.ones(LANES, np.uint32))  # the level of 1; the sum 3 becomes 2 or 4
    errors = np.zeros((generations, slots, LANES), np.int8)
    for generation in range(generations):
        for slot in range(slots):
            head = Header(Kind.CONTRIBUTION, Op.SUM, nat8.up, LANES, 1, 1, slot, 1 + generation)
            data = np.frombuffer(bytearray(Datagram(head, ones).pack()), np.uint8)
            for child in children:
                for sent in aggregator.receive(data, data.size, child, 0.0):
                    codes = unpack(nat8.down(workers), sent.data[HEADER_BYTES:].tobytes())
                    errors[generation, slot] = np.where(codes == 3, 1, -1)
    together = (errors[..., 1:] * errors[..., :-1]).mean(axis=(0, 2))
    outcome.add(
        "correlation of the errors of neighbouring lanes, in the slot where it is largest",
        float(np.abs(together).max()),
        0.877,
        0.001,
        Source.OURS,
        f"sums of 3, {generations} generations of {slots} slots; being linear, it is the same with every seed",
    )
    outcome.add(
        "variance of a block's mean error over that of independent lanes",
        float((errors.mean(axis=2) ** 2).mean()) * LANES,
        0.0442,
        0.001,
        Source.OURS,
        "the same sums: the correlations have both signs, and over all slots and generations a block's errors cancel "
        "better than with independent noise",
    )


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    moments = all_sums(outcome, settings)
    settings.progress(0.6, "sums in the window of nat4")
    window(outcome, 2 if settings.tiny else 8)
    settings.progress(0.8, "the switch that runs")
    with SwitchProcess() as switch:
        drawn = shipped(outcome, switch.control, 4, settings)
        shipped(outcome, switch.control, 6, settings)  # of more than four it adds codes up as they come
    neighbours(outcome, settings)
    outcome.plots.append(
        Plot(
            "re-encoding",
            "The switch's re-encoding: second moment of every sum",
            "sum of the workers' integers  (units)",
            "E result^2 / sum^2  (1)",
            [
                Line("reference codec, all noise", list(range(1, len(moments) + 1)), moments, "."),
                Line("the switch that runs, drawn", *drawn, "x"),
                Line("9/8, the bound of C_nat", [1, len(moments)], [1.125, 1.125], "--"),
            ],
            log_x=True,
        )
    )
    return outcome


def all_sums(outcome: Outcome, settings: Run) -> list[float]:
    """The reference codec's nat8; second moments of the results of the sums 1, 2, ..., over their squares."""
    nat8, bits = job_format("nat8"), 6 if settings.tiny else 11
    sums = np.arange(-(1 << bits) + 1, 1 << bits)
    differ, total, reencoded_total, moments = 0, Fraction(0), Fraction(0), []
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
        "reference codec: sums whose re-encoding is not distributed as C_nat of the sum",
        differ,
        0,
        0,
        Source.DERIVED,
        f"definition 2; exact: all {sums.size} sums of magnitude below 2^{bits}, all noise",
    )
    outcome.add(
        "reference codec: mean of the re-encoded sums over mean of the sums",
        reencoded_total / total,
        1,
        0,
        Source.PAPER,
        "lemma 2, unbiased; exact",
    )
    return moments


def window(outcome: Outcome, workers: int) -> None:
    """The reference codec's nat4, whose results have a lowest level."""
    nat4, differ = job_format("nat4"), 0
    top = nat4.top(workers) << nat4.result_shift(workers)
    for v in range(workers * nat4.top(workers) + 1):
        k = max(v.bit_length() - 1, nat4.result_shift(workers))
        got = counted(switch_integers(nat4, workers, np.array([v]), k))
        want = natural_dithering(Fraction(v, top), nat4.result_levels(workers))
        differ += got != {x * top: p for x, p in want.items()}
    outcome.add(
        "reference codec, nat4: sums whose re-encoding is not natural dithering of the sum",
        differ,
        0,
        0,
        Source.DERIVED,
        f"definition of D_nat; exact: all sums that {workers} workers can have, all noise",
    )


EXPERIMENT = Experiment(
    name="re-encoding",
    title="The switch's re-encoding is natural compression",
    paper="Horvath et al. 2019, definition 2; our integer form of it (protos/README.md, What the switch computes)",
    claim="Adding noise below the leading one and taking the leading one again has exactly the distribution of C_nat "
    "of the sum, so its mean is the sum.",
    run=run,
    row=2,
)
