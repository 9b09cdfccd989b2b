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


@dataclass(frozen=True, slots=True)
class Measured:
    """Accuracies of one seed on the test pictures with float32 sums and with TernGrad (0 to 1), and its sums."""

    dense: float
    tern: float
    levels: int
    """How many different sums those of `all_levels` were."""
    multiples: set[int]
    """Multiples as `Watched` has them, and ``odd``."""
    odd: int


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    counts = settings.workers or ((2,) if settings.tiny else (2, 4, 16))
    check_batch(BATCH, *counts)
    epochs, seeds = (1, 1) if settings.tiny else (EPOCHS, settings.seeds or 2)
    by_count: list[list[Measured]] = []
    with SwitchProcess() as switch:
        shipped(outcome, switch.control, settings)
        for place, workers in enumerate(counts):
            found = []
            for number in range(seeds):
                plan = Plan(workers, epochs, BATCH, LEARNING_RATE, decay=True, seed=settings.seed + number)
                found.append(measure(switch.control, plan, place * seeds + number, seeds * len(counts), settings))
            compare(outcome, workers, found)
            by_count.append(found)
        ablate(outcome, switch.control, settings)
    outcome.plots.append(plot(counts, by_count, epochs))
    outcome.notes.append(
        "Layer by layer, clipped at 2.5 standard deviations, with the layer's scaler shared by MAX rounds (rounded up "
        "to 9 bits), -1, 0, 1 in two bits up and the exact sum down (4 bits for up to 7 workers, else 8). Replicas "
        f"start equal and never send parameters. SGD with momentum 0.9, a batch of {BATCH} for all workers together, "
        f"and a learning rate that falls from {LEARNING_RATE} to zero in {epochs} epochs. With a constant learning "
        "rate the noise of ternary gradients stays: then TernGrad is 0.5 to 1 point behind. Whether it would be faster "
        "on a given network is a question for `inagg advise`."
    )
    return outcome


def measure(switch: str, plan: Plan, place: int, places: int, settings: Run) -> Measured:
    """Train by ``plan`` with float32 sums, and again through the switch; as the ``place``-th of ``places``."""
    doing = f"{plan.workers} workers, seed {plan.seed}"
    settings.progress(0.75 * place / places, doing)
    dense = trained(float_sum, plan)
    with open_cluster(switch, plan.workers, "tern", plan.seed, f"terngrad-{plan.workers}-{plan.seed}") as cluster:
        (sums,) = cluster.sums(TernGrad(clip=0), all_levels(plan.workers), first=APART)
        watched = Watched(cluster, CLIPPED)
        settings.progress(0.75 * (place + 0.5) / places, doing)
        tern = trained(watched, plan)
    return Measured(dense, tern, len(set(sums.tolist())), watched.multiples, watched.odd)


def trained(summed: Sum, plan: Plan) -> float:
    """Accuracy at the end."""
    training, testing = load_digits()
    model = seeded(DigitsMLP, plan.seed)
    train(model, training, plan, summed)
    return accuracy(model, testing)


def compare(outcome: Outcome, workers: int, found: Sequence[Measured]) -> None:
    """Accuracy, and levels of the sums, with so many workers."""
    digit = 100 / len(load_digits()[1])
    outcome.add(
        f"N = {workers}: accuracy of TernGrad less that of float32",
        100 * (float(np.mean([m.tern for m in found])) - float(np.mean([m.dense for m in found]))),
        0.0,
        0.5,
        Source.OURS,
        f"half a point, as in the reference; mean of {len(found)} seeds, {digit:.2f} points are one digit",
        unit="points",
    )
    outcome.add(
        f"N = {workers}: levels of the sum",
        found[-1].levels,
        2 * workers + 1,
        0,
        Source.PAPER,
        "section 3; exact: different sums of all combinations that matter, through the switch without clipping",
    )
    seen: set[int] = set().union(*(m.multiples for m in found))
    outcome.add(
        f"N = {workers}: sums in training that are not among these levels",
        sum(m.odd for m in found) + len([multiple for multiple in seen if abs(multiple) > workers]),
        0,
        0,
        Source.DERIVED,
        f"exact; {len(seen)} of the levels were met, of -{workers} to {workers} times the layer's scaler",
    )


def plot(counts: Sequence[int], found: Sequence[Sequence[Measured]], epochs: int) -> Plot:
    """Accuracies by the number of workers."""

    def line(label: str, shares: Sequence[Sequence[float]], style: str) -> Line:
        shown = [[100 * share for share in of] for of in shares]
        mean, low, high = [float(np.mean(of)) for of in shown], [min(of) for of in shown], [max(of) for of in shown]
        return Line(label, counts, mean, style, low, high)

    return Plot(
        "terngrad",
        f"TernGrad through the switch: MLP for digits, {epochs} epochs",
        "workers  (1)",
        "test accuracy, mean of the seeds and all of them  (%)",
        [
            line("float32", [[m.dense for m in of] for of in found], "o-"),
            line("TernGrad, 2 bits up", [[m.tern for m in of] for of in found], "s--"),
        ],
        y_limits=(90, 100),
    )


EXPERIMENT = Experiment(
    name="terngrad",
    title="TernGrad",
    paper="Wen et al. 2017 (arXiv 1705.07878), sections 3 to 5",
    claim="Training with ternary gradients, scaler sharing and clipping stays within 0.5 points of float32 for 2, 4 "
    "and 16 workers, and sums of N workers have exactly 2N + 1 levels.",
    run=run,
    row=7,
)
