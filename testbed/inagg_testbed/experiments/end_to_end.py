"""Training with two-way natural compression, end to end through the software switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from inagg_host.compress import Floats, Natural
from inagg_host.compress.natural import NATURAL_W

from ..switch_process import SwitchProcess
from ..training.data import Digits, load_digits
from ..training.loop import accuracy
from ..training.model import DigitsCNN, seeded
from .cluster import Cluster, bytes_up, open_cluster
from .model import Experiment, Line, Outcome, Plot, Relation, Run, Source
from .rounding import Z_MAX, Rounding, switched
from .training import BATCH, Plan, Sum, check_batch, float_sum, train

FLOAT_BYTES = 4


def known(outcome: Outcome, switch: str, workers: int, settings: Run) -> None:
    """Sums of known values, on the way that gradients go: drafts, encoder, switch, decoder."""
    lanes, blocks = 1440, 40 if settings.tiny else 1500
    rows = [
        settings.generator("known", rank).standard_normal(lanes * blocks).astype(np.float32) for rank in range(workers)
    ]
    exact = np.sum(rows, axis=0, dtype=np.float64)
    got = switched(switch, "nat8", rows, lanes, settings.seed, "known")
    errors, squares = np.sign(exact) * (got - exact), np.sum(np.square(rows, dtype=np.float64), axis=0)
    rounding = Rounding(errors / np.sqrt(squares), np.ones_like(exact), lanes)
    outcome.add(
        "sums of known values: mean error",
        rounding.z,
        0,
        Z_MAX,
        Source.DERIVED,
        f"unbiased, both ways; {exact.size:,} Gaussian values of {workers} workers",
        unit="standard errors",
    )
    most = (1 + NATURAL_W) * NATURAL_W * squares + NATURAL_W * exact**2
    outcome.add(
        "sums of known values: E|g - sum|^2 over its bound",
        float((errors**2).sum() / most.sum()),
        1.0,
        0.0,
        Source.DERIVED,
        "w (w+1) sum |x_i|^2 + w |sum x_i|^2 with w = 1/8, from theorem 1 for both ways",
        Relation.AT_MOST,
    )


class Counts(NamedTuple):
    """Counts of the transports. Bytes are payload of UDP, of one worker; datagrams those that all workers sent, and
    of them those that were sent ``again``."""

    elements: int
    steps: int
    bytes_up: int
    bytes_down: int
    datagrams: int
    again: int

    @classmethod
    def of(cls, cluster: Cluster) -> Counts:
        counters, link = cluster.workers[0].all_reduce.counters, cluster.workers[0].link
        return cls(
            counters.elements,
            counters.operations,
            link.up.payload_bytes,
            link.down.payload_bytes,
            sum(worker.link.up.datagrams for worker in cluster.workers),
            sum(worker.link.up.again for worker in cluster.workers),
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """Accuracies on the test pictures, by seed and epoch, 0 to 1; and what all trainings through the switch took."""

    floats: list[list[float]]
    naturals: list[list[float]]
    counts: Counts


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    (workers,) = settings.workers or (2 if settings.tiny else 4,)
    check_batch(BATCH, workers)
    epochs, seeds = (1, 1) if settings.tiny else (10, settings.seeds or 8)
    plans = [Plan(workers, epochs, seed=seed) for seed in range(settings.seed, settings.seed + seeds)]
    with SwitchProcess() as switch:
        known(outcome, switch.control, workers, settings)
        found = measure(switch.control, plans, settings)
    compare(outcome, found)
    traffic(outcome, found.counts, workers)
    outcome.plots.append(plot(found, workers))
    outcome.notes.append(
        f"{workers} workers in threads with a socket each, a switch in a process of its own, format nat8: each worker "
        "sends natural-compressed gradients, the switch adds them and compresses the sum. The bytes are those that the "
        "transports counted on loopback."
    )
    return outcome


def measure(switch: str, plans: Sequence[Plan], settings: Run) -> Measured:
    """Train by each of ``plans`` with float32 sums, and again through the switch."""
    digits, floats, naturals, counts = load_digits(), [], [], []
    for place, plan in enumerate(plans):
        settings.progress(place / len(plans), f"seed {plan.seed}")
        with open_cluster(switch, plan.workers, "nat8", plan.seed, f"end-to-end-{plan.seed}") as cluster:
            floats.append(trained(float_sum, plan, *digits))
            naturals.append(trained(partial(natural_sum, cluster), plan, *digits))
            counts.append(Counts.of(cluster))
    return Measured(floats, naturals, Counts(*(sum(of) for of in zip(*counts, strict=True))))


def natural_sum(cluster: Cluster, vectors: Sequence[Sequence[Floats]]) -> list[Floats]:
    """One vector for the whole model, as DDP has one bucket for a model of this size."""
    (total,) = cluster.sums(Natural(), [[np.concatenate(parts)] for parts in vectors])
    return np.split(total, np.cumsum([part.size for part in vectors[0]])[:-1])


def trained(summed: Sum, plan: Plan, training: Digits, testing: Digits) -> list[float]:
    """Accuracy after each epoch."""
    model = seeded(DigitsCNN, plan.seed)
    accuracies: list[float] = []
    per_epoch = len(training) // plan.batch

    def after_step(step: int) -> bool:
        if step % per_epoch == 0:
            accuracies.append(accuracy(model, testing))
        return True

    train(model, training, plan, summed, after_step)
    return accuracies


def compare(outcome: Outcome, found: Measured) -> None:
    """Accuracies at the end of the trainings."""
    floats, naturals = ([of_epoch[-1] for of_epoch in by_seed] for by_seed in (found.floats, found.naturals))
    seeds, pictures = len(floats), len(load_digits()[1])
    spread = float(np.std(floats, ddof=1)) if seeds > 1 else 0.0
    outcome.add(
        "accuracy of two-way natural compression less that of float32",
        100 * (float(np.mean(naturals)) - float(np.mean(floats))),
        0.0,
        1.5,  # twice what two means of eight runs differ by that spread by a point and a half
        Source.OURS,
        f"mean of {seeds} seeds; runs of float32 that differ in the seed alone spread by {100 * spread:.2f} points, "
        f"and one test picture is {100 / pictures:.2f}",
        unit="points",
    )


def traffic(outcome: Outcome, counts: Counts, workers: int) -> None:
    """Bytes on the wire, and what was sent in vain."""
    elements, steps = counts.elements, counts.steps
    for way, count in (("sent", counts.bytes_up), ("received", counts.bytes_down)):
        outcome.add(
            f"bytes {way} by a worker for each element, UDP payload",
            count / elements,
            bytes_up("nat8", workers, elements // steps) * steps / elements,
            0,
            Source.DERIVED,
            f"exact: one byte, headers, padding and scales; {count:,} bytes for {elements:,} elements, as the "
            "transport counted, less what was sent again",
            unit="bytes",
        )
    outcome.add(
        "bytes of float32 over bytes on the wire, sent",
        FLOAT_BYTES * elements / counts.bytes_up,
        3.8,
        0.0,
        Source.DERIVED,
        "4, less headers and scales",
        Relation.AT_LEAST,
    )
    outcome.add(
        "share of datagrams that were sent again",
        counts.again / counts.datagrams,
        0.0,
        0.05,
        Source.OURS,
        "nothing is lost on loopback; a worker that waits too long on a busy machine repeats itself",
        Relation.AT_MOST,
        timed=True,
    )


def plot(found: Measured, workers: int) -> Plot:
    """Accuracy by epoch."""
    lines = []
    for label, curves, style in (
        ("float32 sums", found.floats, "o-"),
        ("natural compression, both ways", found.naturals, "s--"),
    ):
        mean, low, high = ((100 * each(curves, axis=0)).tolist() for each in (np.mean, np.min, np.max))
        lines.append(Line(label, list(range(1, len(mean) + 1)), mean, style, low, high))
    return Plot(
        "end-to-end",
        f"CNN on digits, {workers} workers through the software switch",
        "epochs  (1)",
        "test accuracy, mean of the seeds and all of them  (%)",
        lines,
    )


EXPERIMENT = Experiment(
    name="end-to-end",
    title="Two-way natural compression, end to end",
    paper="Horvath et al. 2019, algorithm 1 and section 5",
    claim="Training with natural compression on the way to the switch and on the way back is as accurate as with "
    "float32, with a quarter of the bytes.",
    run=run,
    row=10,
)
