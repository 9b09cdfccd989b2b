"""Block quantization wins by the number of workers where d >> n^3, and loses where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from inagg_host.compress.optim.quantize import RowCompressor, block_steps, uniform_steps, varying_steps
from inagg_host.compress.optim.smoothness import Smoothness, stacked

from .model import Experiment, Line, Outcome, Plot, Relation, Run, SettingsError, Source
from .quadratic import Effort, Quadratics, over
from .regressions import Method, of_quadratics, solved

CONVEXITY = 1e-2
SIZES = {2: (16, 64, 512, 4096), 4: (64, 512, 2048, 8192), 8: (64, 512), 16: (64,)}
"""Workers -> dimensions."""
TINY_SIZES = {2: (16, 64), 4: (16,)}
LIMIT = 40_000
CONTROL, CONTROL_TOLERANCE = 0.43, 0.1
"""Bits of DIANA+ with one norm over those with n, and how much that differs between seeds and sizes."""
MUCH_LARGER = 100
"""From where on d counts as much larger than n^3."""


def one_block_each(workers: int, d: int, rng: np.random.Generator) -> Quadratics:
    """Coordinates are cut into n blocks. Worker i's function bends by 1 along half of block i, by mu elsewhere."""
    hessians = np.full((workers, workers, d // workers), CONVEXITY)
    for i in range(workers):
        hessians[i, i, : d // workers // 2] = 1.0
    return Quadratics(hessians.reshape(workers, d), rng.standard_normal((workers, d)))


def efforts(workers: int, d: int, accuracy: float, settings: Run) -> tuple[Effort, Effort, Effort]:
    """DIANA with one norm and a budget of d/n; DIANA+ with n norms and a budget of d/n^2; and, to tell what the norms
    do from what the matrices do, DIANA+ with one norm, steps that follow the matrix, and a budget of d/n^2."""
    problem = of_quadratics(one_block_each(workers, d, settings.generator("problem", workers, d)))
    own = stacked(problem.matrices)
    budget, of_norms = d / workers, d / workers**2

    def effort(name: str, compressor: RowCompressor, matrices: Smoothness | None) -> Effort:
        method = Method(name, compressor, matrices, learns=True)
        return solved(method, problem, settings.generator(name, workers, d), accuracy, LIMIT)[0]

    return (
        effort("diana", uniform_steps(d, budget), None),
        effort("blocks", block_steps(own.diagonal, workers, of_norms), own),
        effort("one norm", varying_steps(own.diagonal, of_norms), own),
    )


def sizes_of(settings: Run) -> Mapping[int, Sequence[int]]:
    """Workers and dimensions: those that were asked for, or the usual ones."""
    usual = TINY_SIZES if settings.tiny else SIZES
    if not settings.workers and not settings.dim:
        return usual
    found = {}
    for n in settings.workers or usual:
        found[n] = (settings.dim,) if settings.dim else usual.get(n, (8 * n, 64 * n, 512 * n))
        for d in found[n]:
            if d % (2 * n):
                raise SettingsError(
                    f"{d} coordinates cannot be cut into {n} equal blocks of two halves: take {2 * n * n}"
                )
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """Bits to equal accuracy, with so many workers and dimensions."""

    n: int
    d: int
    gain: float
    """Ratio of DIANA's bits to those of DIANA+ with n norms."""
    control: float
    """Ratio of those of DIANA+ with one norm to the same."""

    @property
    def cubes(self) -> float:
        """d over n^3."""
        return self.d / self.n**3


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    accuracy = 1e-1 if settings.tiny else 1e-4
    sizes = sizes_of(settings)
    total, done = sum(d for of in sizes.values() for d in of), 0
    found: list[Measured] = []
    for workers, d in [(n, d) for n, of in sizes.items() for d in of]:
        settings.progress(done / total, f"{workers} workers, d = {d}")
        diana, blocks, control = efforts(workers, d, accuracy, settings)
        if not (diana.reached and blocks.reached and control.reached):
            outcome.notes.append(f"n = {workers}, d = {d}: not at {accuracy:g} after {LIMIT} iterations.")
        gain = over(diana.bits, blocks.bits, diana, blocks)
        found.append(Measured(workers, d, gain, over(control.bits, blocks.bits, control, blocks)))
        done += d
    for each in found:
        compare(outcome, each)
    outcome.plots.append(plot(found))
    outcome.notes.append(
        f"Worker i's curvature is in block i of n: 1 along half of its coordinates, {CONVEXITY} elsewhere. DIANA has "
        "one norm and a budget of d/n coordinates; DIANA+ with n blocks has n norms and a budget of d/n^2, and by the "
        "theory about as many rounds. So it saves a factor n, unless the n norms outweigh d/n^2 coordinates: "
        "hence d >> n^3. Bits are those of the gap code, without set-up (32 d for the diagonal). Between d = n^3 and "
        "100 n^3 nothing is claimed, and the picture shows what happens there. The control is DIANA+ with one norm and "
        "steps that follow each coordinate of the matrix: it needs less than half of the bits of n norms. So the "
        "comparison with DIANA shows what the matrices are worth; blocks are for those who cannot have a step for each "
        "coordinate."
    )
    return outcome


def compare(outcome: Outcome, found: Measured) -> None:
    """Claims of one norm and of n, if something is for d over n^3."""
    n, case = found.n, f"n = {found.n}, d = {found.d:,}"
    name = f"{case} (d = {found.cubes:,.3g} n^3): bits of one norm over bits of n norms"
    if found.cubes >= MUCH_LARGER:
        why = "the number of workers; 20 %: the fewer coordinates are sent, the more bits say which"
        outcome.add(name, found.gain, n, 0.2 * n, Source.DERIVED, why, Relation.AT_LEAST)
        outcome.add(
            f"{case}: bits of DIANA+ with one norm over DIANA+ with n norms",
            found.control,
            CONTROL,
            CONTROL_TOLERANCE,
            Source.OURS,
            "the control: both have the matrices. Below 1, so what wins above are the matrices and not the norms",
        )
    elif found.cubes < 1:
        why = "it does not win: n norms of 32 bits are more than the levels that they save"
        outcome.add(name, found.gain, 1.0, 0.0, Source.DERIVED, why, Relation.AT_MOST)


def plot(found: Sequence[Measured]) -> Plot:
    """Bits over bits, against d over n^3."""
    by_count = {each.n: [other for other in found if other.n == each.n] for each in found}
    cubes = [each.cubes for each in found]
    return Plot(
        "block-quantization",
        "Block quantization (n norms) against one norm, to equal accuracy",
        "d / n^3  (1)",
        "bits of DIANA / bits of DIANA+ with n blocks  (1)",
        [
            *(Line(f"n = {n}", [m.cubes for m in of], [m.gain for m in of], "o-") for n, of in by_count.items()),
            *(
                Line(f"n = {n}, DIANA+ in both", [m.cubes for m in of], [m.control for m in of], "x:")
                for n, of in by_count.items()
            ),
            Line("equal", [min(cubes), max(cubes)], [1, 1], "k--"),
        ],
        log_x=True,
        log_y=True,
    )


EXPERIMENT = Experiment(
    name="block-quantization",
    title="Block quantization",
    paper="Wang, Safaryan, Richtarik 2021, section 5",
    claim="One norm for each of n blocks reduces the bits by a factor of the order n where d >> n^3; where d is "
    "smaller it does not.",
    run=run,
    row=9,
)
