"""Row 7: TernGrad through the switch, on an MLP for the digits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inagg_host.compress import Floats, TernGrad

from ..switch_process import SwitchProcess
from ..training.data import load_digits
from ..training.loop import accuracy
from .cluster import Cluster, open_cluster
from .model import Experiment, Line, Outcome, Plot, Run
from .training import DigitsMLP, Plan, Sum, float_sum, seeded, train

LEARNING_RATE = 0.02
"""TernGrad's noise grows with the step size; the float runs take the same."""
POINT = 0.01


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
        for total in sums:
            values = np.abs(total[total != 0])
            if values.size:
                # The scaler has 9 bits and the multiples 6, so all are exact. Nobody keeps the scaler: it is the least
                # difference between two sums, unless no sum of this layer is a single one.
                scaler = np.diff(np.unique(np.concatenate([[0], values]))).min()
                ratios = total / scaler
                self.odd += int((ratios != np.round(ratios)).sum())
                self.multiples |= set(np.unique(ratios).astype(int).tolist())
        return sums


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    training, testing = load_digits()
    counts = (2,) if settings.tiny else (2, 4, 16)
    epochs, seeds = (1, 1) if settings.tiny else (20, 2)
    compressor = TernGrad(clip=2.5, scaler="layer")
    total, done = 2 * seeds * len(counts), 0
    curves = []

    def trained(workers: int, seed: int, summed: Sum) -> float:
        nonlocal done
        settings.progress(done / total, f"{workers} workers, seed {seed}")
        done += 1
        model = seeded(DigitsMLP, seed)
        train(model, training, Plan(workers, epochs, learning_rate=LEARNING_RATE, seed=seed), summed)
        return accuracy(model, testing)

    with SwitchProcess() as switch:
        for workers in counts:
            floats, terns = [], []
            seen: set[int] = set()
            odd = 0
            for seed in range(settings.seed, settings.seed + seeds):
                floats.append(trained(workers, seed, float_sum))
                with open_cluster(switch.control, workers, "tern", seed, f"terngrad-{workers}-{seed}") as cluster:
                    watched = Watched(cluster, compressor)
                    terns.append(trained(workers, seed, watched))
                    seen |= watched.multiples
                    odd += watched.odd
            outcome.add(
                f"N = {workers}: accuracy of TernGrad less that of float32",
                100 * (float(np.mean(terns)) - float(np.mean(floats))),
                0.0,
                0.5,
                f"half a point, as in the reference; mean of {seeds} seeds, {100 / len(testing):.2f} points are one "
                "digit",
                unit="points",
            )
            outcome.add(
                f"N = {workers}: different sums, in multiples of the layer's scaler",
                len(seen),
                2 * workers + 1,
                0,
                f"-N to N; exact, and {odd} sums were no multiple",
            )
            outcome.add(f"N = {workers}: sums that are no multiple of the scaler", odd, 0, 0, "exact")
            curves.append((workers, float(np.mean(floats)), float(np.mean(terns))))
    outcome.plots.append(
        Plot(
            "terngrad",
            f"TernGrad through the switch: MLP for digits, {epochs} epochs",
            "workers  (1)",
            "test accuracy, mean of the seeds  (%)",
            [
                Line("float32", [n for n, _, _ in curves], [100 * f for _, f, _ in curves], "o-"),
                Line("TernGrad, 2 bits up", [n for n, _, _ in curves], [100 * t for _, _, t in curves], "s--"),
            ],
            y_limits=(90, 100),
            log_x=True,
        )
    )
    outcome.notes.append(
        "Layer by layer, clipped at 2.5 standard deviations, with the layer's scaler shared by MAX rounds (rounded up "
        "to 9 bits), -1, 0, 1 in two bits up and the exact sum down (4 bits up to 7 workers, else 8). Replicas start "
        f"equal and never send parameters. Plain SGD with momentum 0.9, learning rate {LEARNING_RATE}, a batch of 64 "
        "for all workers together. Whether it would be faster on a given network is a question for `inagg advise`."
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
