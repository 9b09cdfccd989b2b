"""Every compressor: its measured error against what it promises, and its bits per element in real packets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inagg_host.compress import Compressor, Contraction, Key, NoBound, Unbiased, parse
from inagg_host.compress.natural import NATURAL_W

from ..switch_process import SwitchProcess
from .cluster import bytes_up, job_format, open_cluster
from .model import Experiment, Line, Outcome, Plot, Relation, Run, Source
from .rounding import Z_MAX, Rounding

Floats = npt.NDArray[np.float64]

IN_SWITCH = {
    "natural": 1.0,
    "natural_dithering:p=inf,s=7,shared=true": 1.0,
    "dithering:p=inf,s=127,shared=true": 1.0,
    "terngrad:clip=0": 1.0,
    "randk:k=0.1": 0.1,
    "randk:k=0.1,scaled=false": 0.1,
    "natural+randk:k=0.1": 0.1,
}
"""Compressors that the switch sums -> share of the elements that travel."""
GATHERED = {
    "natural_dithering:p=1,s=4": 4.0,
    "natural_dithering:p=2,s=7": 4.0,
    "natural_dithering:p=inf,s=7": 4.0,
    "dithering:p=1,s=15": 5.0,
    "qsgd:p=2,s=7": 4.0,
    "terngrad:clip=0,scaler=own": 2.0,
    "topk:k=0.01": 0.01 * (32 + 32),
    "natural+topk:k=0.1": 0.1 * (32 + 9),
}
"""Compressors that need a gather -> bits an element: codes of ceil(log2(2 s + 1)) bits, or an index and a value."""
OTHERS = ("blocktopk:k=0.25,block=8", "ultrasparse:k=0.5", "natural+qsgd:p=2,s=7")
"""Compressors of which only the error is measured: what they send depends on the vectors."""


OVERHEAD_BYTES = 8
FLOAT_BITS = 32
TOLERANCE = 0.01
RARE_DRAWS = 20
"""So often a coordinate is to come that is all there is of the vector: by chance it never does once in 10^8 times."""
SIGMAS = 4


def vectors(d: int, rng: np.random.Generator) -> dict[str, Floats]:
    """One of each distribution."""
    return {
        "Gaussian": rng.standard_normal(d),
        "heavy tails": rng.standard_t(2, d),
        "one large": np.concatenate([[float(d)], rng.standard_normal(d - 1)]),
        "all equal": np.full(d, 4 / 3),  # the worst of natural compression
    }


def drawn(compressor: Compressor, d: int, draws: int, dtype: npt.DTypeLike, settings: Run) -> Rounding:
    """Errors on a Gaussian vector, in units of its root mean square; the theory's variances are not asked for."""
    x = settings.generator("mean", d).standard_normal(d).astype(dtype)
    errors = [np.sign(x) * (compressor(x, Key(settings.seed, step=step)) - x) for step in range(draws)]
    # Neither draws depend on each other, nor coordinates of one.
    return Rounding(np.concatenate(errors), np.ones(d * draws), d if d % 8 else d // 8)


def error(compressor: Compressor, x: Floats, draws: int, seed: int, sigmas: int = SIGMAS) -> float:
    """E|C(x) - x|^2 over |x|^2: the mean of so many draws, less ``sigmas`` of its standard errors."""
    squares = [float(((compressor(x, Key(seed, step=step)) - x) ** 2).sum()) for step in range(draws)]
    low = np.mean(squares) - sigmas * np.std(squares, ddof=1) / np.sqrt(draws)
    return max(0.0, float(low)) / float((x**2).sum())


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest error of a compressor, over its bound."""

    ratio: float
    where: str


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    dimensions, draws, elements = ((16,), 5, 4000) if settings.tiny else ((16, 256, 4096), 60, 200_000)
    dimensions = (settings.dim,) if settings.dim else dimensions
    ratios: dict[str, float] = {}
    specs = [*IN_SWITCH, *GATHERED, *OTHERS]
    for place, spec in enumerate(specs):
        settings.progress(0.7 * place / len(specs), spec)
        found = measure(spec, dimensions, draws, settings)
        if isinstance(found, NoBound):
            outcome.notes.append(f"{spec}: no bound is promised ({found.why}).")
        else:
            errors(outcome, spec, found, draws, dimensions[-1], settings)
            ratios[spec] = found.ratio
    outcome.plots.append(plot(ratios))
    costs: dict[str, tuple[float, float]] = {}
    with SwitchProcess() as switch:
        for place, spec in enumerate([*IN_SWITCH, *GATHERED]):
            settings.progress(0.7 + 0.3 * place / len(specs), f"{spec}: packets")
            sent = measured_bits(spec, switch.control, f"compressors-{place}", elements, settings)
            packets(outcome, spec, sent, elements)
            if isinstance(parse(spec).bound(dimensions[-1]), Unbiased):
                costs[spec] = sent, error_share(spec, dimensions[-1], draws, settings)
    compare(outcome, costs)
    return outcome


def measure(spec: str, dimensions: Sequence[int], draws: int, settings: Run) -> Worst | NoBound:
    """Over all dimensions and distributions; or why nothing is promised."""
    compressor, worst, where = parse(spec), 0.0, ""
    for d in dimensions:
        bound = compressor.bound(d)
        if isinstance(bound, NoBound):
            return bound
        allowed = bound.w if isinstance(bound, Unbiased) else 1 - bound.kept
        enough = draws
        if isinstance(bound, Contraction) and TOLERANCE < bound.kept < 1 and not settings.tiny:
            enough = max(draws, math.ceil(RARE_DRAWS / bound.kept))  # if it never comes, the error is 1
        for name, x in vectors(d, settings.generator(spec, d)).items():
            ratio = error(compressor, x, enough, settings.seed) / allowed if allowed else 0.0
            if ratio >= worst:
                worst, where = ratio, f"{name}, d = {d}"
    return Worst(worst, where)


def errors(outcome: Outcome, spec: str, found: Worst, draws: int, d: int, settings: Run) -> None:
    """The worst error, and the mean one if there should be none."""
    bound = parse(spec).bound(d)
    outcome.add(
        f"{spec}: measured error over {'1 - k/d' if isinstance(bound, Contraction) else 'w'}, the worst case",
        found.ratio,
        1.0,
        TOLERANCE,
        Source.PAPER,
        f"a bound; {found.where}; means of {draws} draws or more, less {SIGMAS} standard errors; 1 % for a rare "
        "coordinate that none of the draws has met",
        Relation.AT_MOST,
    )
    for dtype in ("float64", "float32") if isinstance(bound, Unbiased) else ():
        outcome.add(
            f"{spec}: mean error, {dtype}",
            drawn(parse(spec), d, 5 * draws, dtype, settings).z,
            0,
            Z_MAX,
            Source.DERIVED,
            f"unbiased; {5 * draws} draws of a Gaussian vector, d = {d}",
            unit="standard errors",
        )


def plot(ratios: dict[str, float]) -> Plot:
    """Errors over bounds, by compressor."""
    cases = [number + 1.0 for number in range(len(ratios))]
    return Plot(
        "compressors",
        "Measured error over what is promised, worst of all distributions",
        "compressor  (case)",
        "E|C(x) - x|^2 / bound  (1)",
        [Line("measured", cases, [*ratios.values()], "o"), Line("the bound", [1, len(cases)], [1, 1], "k--")],
        names=[*ratios],
    )


def packets(outcome: Outcome, spec: str, sent: float, elements: int) -> None:
    """Bits an element that were ``sent``, against the formats."""
    reference, why = expected_bits(spec, elements)
    outcome.add(
        f"{spec}: bits an element, sent",
        sent,
        reference,
        8 * OVERHEAD_BYTES / elements + 1e-9 if spec in GATHERED else 1e-9,
        Source.DERIVED,
        f"exact, of {elements:,} elements: {why}",
        unit="bits",
    )


def error_share(spec: str, d: int, draws: int, settings: Run) -> float:
    """E|C(x) - x|^2 over |x|^2 of a Gaussian vector: the mean of the draws."""
    compressor, x = parse(spec), settings.generator("share", d).standard_normal(d)
    return error(compressor, x, draws, settings.seed, sigmas=0)


def compare(outcome: Outcome, costs: dict[str, tuple[float, float]]) -> None:
    """Bits against variance, and what both together save: SGD with C in B(w) takes w + 1 times the iterations of SGD
    where noise rules (Horvath et al. 2019, table 1). ``costs``: bits an element and w, both measured."""
    speed_ups = {spec: FLOAT_BITS / (bits * (1 + w)) for spec, (bits, w) in costs.items()}
    outcome.add(
        "natural: bits times iterations saved, over float32",
        FLOAT_BITS / (costs["natural"][0] * (1 + NATURAL_W)),
        3.2,
        0.1,
        Source.PAPER,
        "table 1, 32 / (9 * 9/8) with a sign and 8 bits of exponent; ours has 8 bits and headers, and w = 1/8 as there",
        Relation.AT_LEAST,
    )
    outcome.plots.append(
        Plot(
            "bits-variance",
            "Bits against variance, unbiased compressors, a Gaussian vector",
            "bits an element, sent  (bit)",
            "E|C(x) - x|^2 / |x|^2  (1)",
            [Line(spec, [bits], [w], "o" if spec in IN_SWITCH else "^") for spec, (bits, w) in costs.items()],
            log_x=True,
            log_y=True,
        )
    )
    rows = [
        f"| {spec} | {costs[spec][0]:.2f} | {costs[spec][1]:.3g} | {speed_ups[spec]:.2f} |"
        for spec in sorted(speed_ups, key=lambda spec: -speed_ups[spec])
    ]
    outcome.notes.append(
        "Bits and iterations together, 32 / (bits (1 + w)), of a Gaussian vector of the largest dimension, "
        "with w as measured:\n\n| compressor | bits | w | times less than float32 |\n|---|---|---|---|\n"
        + "\n".join(rows)
    )


def measured_bits(spec: str, switch: str, job: str, elements: int, settings: Run) -> float:
    """Bits an element that one of two workers sends to have a vector summed: UDP payloads, or its part of a gather."""
    compressor = parse(spec)
    rows = [settings.generator(spec, rank).standard_normal(elements).astype(np.float32) for rank in range(2)]
    with open_cluster(switch, 2, job_format(compressor), settings.seed, job) as cluster:
        cluster.sums(compressor, [[row] for row in rows])
        worker = cluster.workers[0]
        return 8 * (worker.link.up.payload_bytes + worker.exchange.counts["gathered-bytes"]) / elements


def expected_bits(spec: str, elements: int) -> tuple[float, str]:
    """Return bits an element by the formats, and how they come about."""
    if spec in GATHERED:
        return GATHERED[spec], "its own bytes in a gather; 8 bytes: a norm or a count, and a length"
    compressor = parse(spec)
    fmt, share = job_format(compressor), IN_SWITCH[spec]
    rounds = 2 if compressor.scale(np.ones(1, np.float32)) is not None else 0
    why = f"{fmt}, {share:g} of the elements; headers, scales and a last datagram that is not full included"
    return 8 * bytes_up(fmt, 2, round(share * elements), rounds) / elements, why


EXPERIMENT = Experiment(
    name="compressors",
    title="What each compressor promises, and what it sends",
    paper="Horvath et al. 2019, sections 2 and 4; Stich et al. 2018, section 2; Wen et al. 2017, section 3",
    claim="Every compressor is in its class: E|C(x) - x|^2 <= w |x|^2, or <= (1 - k/d) |x|^2; and sends so many bits.",
    run=run,
)
