"""TernGrad through the switch, on an MLP for the digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from inagg_host.compress import Floats, TernGrad

from ..switch_process import SwitchProcess
from ..training.data import load_digits
from ..training.loop import accuracy
from ..training.model import DigitsCNN, seeded
from .cluster import Cluster, open_cluster
from .model import Experiment, Line, Outcome, Plot, Relation, Run, Source
from .rounding import Rounding
from .training import DigitsMLP, Plan, Sum, check_batch, float_sum, train

APART = 1000
"""The number of a vector that is none of the model's."""
EPOCHS, BATCH, LEARNING_RATE = 40, 128, 0.1
"""The same for float32. The learning rate falls to zero: with a constant one the noise of ternary gradients remains."""


class Watched:
    """Sums through the cluster, and which multiples of the scaler came out, layer by layer."""

    def __init__(self, cluster: Cluster, compressor: TernGrad) -> None:
        self._cluster, self._compressor = cluster, compressor
        self.multiples: set[int] = set()
        self.odd = 0
        """Sums that are no whole multiple of the layer's scaler."""

    def __call__(self, vectors: Sequence[Sequence[Floats]]) -> list[Floats]:
        """The sums."""
        sums = self._cluster.sums(self._compressor, vectors)
        for number, total in enumerate(sums):
            largest = max(self._compressor.scale(mine[number]) or 0.0 for mine in vectors)
            if largest:
                ratios = total / agreed(largest)  # 9 bits and 6: all of this is exact
                self.odd += int((ratios != np.round(ratios)).sum())
                self.multiples |= set(np.unique(ratios).astype(int).tolist())
        return sums


def agreed(largest: float) -> float:
    """The scaler that MAX rounds make of the largest magnitude: rounded up to 9 bits."""
    mantissa, exponent = math.frexp(largest)
    return math.ldexp(math.ceil(mantissa * 512), exponent - 9)


def all_levels(workers: int) -> list[list[Floats]]:
    """A vector for each worker whose sums, ternary without chance, are -n, ..., n times the scaler 1."""
    wanted = np.arange(-workers, workers + 1)
    return [[np.where(np.abs(wanted) > rank, np.sign(wanted), 0).astype(np.float32)] for rank in range(workers)]


def shipped(outcome: Outcome, switch: str, settings: Run) -> None:
    """TernGrad's sums of known vectors, without clipping: each is -s, 0 or s for each worker."""
    workers, d, draws = 4, 20_000, 3 if settings.tiny else 60
    vectors = [[settings.generator("shipped", rank).standard_normal(d).astype(np.float32)] for rank in range(workers)]
    rows = np.stack([mine.astype(np.float64) for (mine,) in vectors])
    scaler, exact = agreed(float(np.abs(rows).max())), rows.sum(axis=0)
    errors = []
    with open_cluster(switch, workers, "tern", settings.seed, "terngrad-bias") as cluster:
        for _ in range(draws):
            (total,) = cluster.sums(TernGrad(clip=0), vectors)
            errors.append(np.sign(exact) * (total - exact) / scaler)
    variances = (np.abs(rows) / scaler * (1 - np.abs(rows) / scaler)).sum(axis=0)
    rounding = Rounding(np.concatenate(errors), np.tile(variances, draws), d // 10)
    rounding.add_to(outcome, f"sums of {workers} workers", "TernGrad that ships, through the switch, without clipping")


def band(shown: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """The least and the most of each."""
    return [min(of) for of in shown], [max(of) for of in shown]


USUAL = Plan(4, EPOCHS, BATCH, LEARNING_RATE, decay=True)


@dataclass(frozen=True, slots=True)
class Ablation:
    """TernGrad in another way, of four workers; ``behind``: points of accuracy by which it may be less than float32."""

    name: str
    compressor: TernGrad
    behind: float
    make: Callable[[], nn.Module] = DigitsMLP
    plan: Plan = USUAL
    flat: bool = False
    """All parameters as one vector, with one scaler."""


CLIPPED = TernGrad(clip=2.5, scaler="layer")
ABLATIONS = (
    Ablation("without clipping", TernGrad(clip=0, scaler="layer"), 1.0),
    Ablation("one scaler for all layers", CLIPPED, 1.0, flat=True),
    Ablation("each worker's own scaler", TernGrad(clip=2.5, scaler="own"), 1.0),
    Ablation("Adam", CLIPPED, 2.5, plan=Plan(4, EPOCHS, BATCH, 2e-3, decay=True, adam=True)),
    Ablation("a CNN", CLIPPED, 1.0, DigitsCNN, Plan(4, EPOCHS // 2, BATCH, LEARNING_RATE / 2, decay=True)),
)


def ablate(outcome: Outcome, switch: str, settings: Run) -> None:
    """Measure what clipping and scalers by layer are worth, and other optimizers and networks."""
    training, testing = load_digits()
    rows, floats = [], dict[tuple[object, Plan], float]()
    for place, ablation in enumerate(ABLATIONS[:1] if settings.tiny else ABLATIONS):
        settings.progress(0.75 + 0.05 * place, ablation.name)
        plan = replace(ablation.plan, seed=settings.seed, epochs=1 if settings.tiny else ablation.plan.epochs)
        if (ablation.make, plan) not in floats:
            model = seeded(ablation.make, settings.seed)
            train(model, training, plan, float_sum)
            floats[ablation.make, plan] = accuracy(model, testing)
        with open_cluster(switch, plan.workers, "tern", settings.seed, f"terngrad-ablation-{place}") as cluster:

            def summed(
                vectors: Sequence[Sequence[Floats]], cluster: Cluster = cluster, ablation: Ablation = ablation
            ) -> Sequence[Floats]:
                if not ablation.flat:
                    return cluster.sums(ablation.compressor, vectors)
                (total,) = cluster.sums(ablation.compressor, [[np.concatenate(parts)] for parts in vectors])
                return np.split(total, np.cumsum([part.size for part in vectors[0]])[:-1])

            model = seeded(ablation.make, settings.seed)
            train(model, training, plan, summed)
        tern, dense = 100 * accuracy(model, testing), 100 * floats[ablation.make, plan]
        outcome.add(
            f"N = 4, {ablation.name}: accuracy of TernGrad less that of float32",
            tern - dense,
            0.0,
            ablation.behind,
            Source.OURS,
            f"three seeds stayed half a point or more within it; {100 / len(testing):.2f} points are one digit",
            Relation.AT_LEAST,
            unit="points",
        )
        rows.append(f"{ablation.name}: {tern:.1f} and {dense:.1f} %")
    outcome.notes.append("TernGrad and float32 in other ways, 4 workers, one seed: " + "; ".join(rows) + ".")


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    training, testing = load_digits()
    counts = settings.workers or ((2,) if settings.tiny else (2, 4, 16))
    check_batch(BATCH, *counts)
    epochs, seeds = (1, 1) if settings.tiny else (EPOCHS, settings.seeds or 2)
    compressor = CLIPPED
    total, done = 2 * seeds * len(counts), 0
    curves: list[tuple[int, list[float], list[float]]] = []

    def trained(workers: int, seed: int, summed: Sum) -> float:
        nonlocal done
        settings.progress(0.75 * done / total, f"{workers} workers, seed {seed}")
        done += 1
        model = seeded(DigitsMLP, seed)
        train(model, training, Plan(workers, epochs, BATCH, LEARNING_RATE, decay=True, seed=seed), summed)
        return accuracy(model, testing)

    with SwitchProcess() as switch:
        shipped(outcome, switch.control, settings)
        for workers in counts:
            floats, terns = [], []
            seen: set[int] = set()
            odd = levels = 0
            for seed in range(settings.seed, settings.seed + seeds):
                floats.append(trained(workers, seed, float_sum))
                with open_cluster(switch.control, workers, "tern", seed, f"terngrad-{workers}-{seed}") as cluster:
                    (sums,) = cluster.sums(TernGrad(clip=0), all_levels(workers), first=APART)
                    levels = len(set(sums.tolist()))
                    watched = Watched(cluster, compressor)
                    terns.append(trained(workers, seed, watched))
                    seen |= watched.multiples
                    odd += watched.odd
            outcome.add(
                f"N = {workers}: accuracy of TernGrad less that of float32",
                100 * (float(np.mean(terns)) - float(np.mean(floats))),
                0.0,
                0.5,
                Source.OURS,
                f"half a point, as in the reference; mean of {seeds} seeds, {100 / len(testing):.2f} points are one "
                "digit",
                unit="points",
            )
            outcome.add(
                f"N = {workers}: levels of the sum",
                levels,
                2 * workers + 1,
                0,
                Source.PAPER,
                "section 3; exact: different sums of all combinations that matter, through the switch without clipping",
            )
            outcome.add(
                f"N = {workers}: sums in training that are not among these levels",
                odd + len([m for m in seen if abs(m) > workers]),
                0,
                0,
                Source.DERIVED,
                f"exact; {len(seen)} of the levels were met, of -{workers} to {workers} times the layer's scaler",
            )
            curves.append((workers, [100 * value for value in floats], [100 * value for value in terns]))
        ablate(outcome, switch.control, settings)
    outcome.plots.append(
        Plot(
            "terngrad",
            f"TernGrad through the switch: MLP for digits, {epochs} epochs",
            "workers  (1)",
            "test accuracy, mean of the seeds and all of them  (%)",
            [
                Line(label, [n for n, *_ in curves], [float(np.mean(of)) for of in shown], style, *band(shown))
                for label, shown, style in (
                    ("float32", [floats for _, floats, _ in curves], "o-"),
                    ("TernGrad, 2 bits up", [terns for *_, terns in curves], "s--"),
                )
            ],
            y_limits=(90, 100),
        )
    )
    outcome.notes.append(
        "Layer by layer, clipped at 2.5 standard deviations, with the layer's scaler shared by MAX rounds (rounded up "
        "to 9 bits), -1, 0, 1 in two bits up and the exact sum down (4 bits for up to 7 workers, else 8). Replicas "
        f"start equal and never send parameters. SGD with momentum 0.9, a batch of {BATCH} for all workers together, "
        f"and a learning rate that falls from {LEARNING_RATE} to zero in {epochs} epochs. With a constant learning "
        "rate the noise of ternary gradients stays: then TernGrad is 0.5 to 1 point behind. Whether it would be faster "
        "on a given network is a question for `inagg advise`."
    )
    return outcome


EXPERIMENT = Experiment(
    name="terngrad",
    title="TernGrad",
    paper="Wen et al. 2017 (arXiv 1705.07878), sections 3 to 5",
    claim="Training with ternary gradients, scaler sharing and clipping stays within 0.5 points of float32 for 2, 4 "
    "and 16 workers, and sums of N workers have exactly 2N + 1 levels.",
    run=run,
    row=7,
)
