"""Every compressor in the training of the digits CNN: accuracy against bytes, and against seconds on a slow link."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inagg_host.compress import Compressor, RandK, Unbiased, parse

from ..switch_process import SwitchProcess
from ..training.data import load_digits
from ..training.loop import accuracy
from ..training.model import DigitsCNN, seeded
from .cluster import Traffic, job_format, open_cluster
from .model import Experiment, Line, Outcome, Plot, Relation, Run, Source
from .rounding import Z_MAX
from .training import BATCH, Floats, Plan, check_batch, train

LINK_BITS_PER_S = 100e6
STEPS = 600
"""Twenty-five epochs: the accuracy of all but those with rand-k changes by less than a point in the last ten."""
MARKS, FURTHER = 19, 32
"""So many times accuracy is looked at, until so many times the budget of bytes has been used."""
BEHIND = {"TernGrad, 2 bits": 3.0, "rand-k 10 %, memory": 12.0, "natural o rand-k 10 %, memory": 12.0}
"""Points by which an accuracy may be less in the end, if not by `CONVERGED`: ternary noise stays where the learning
rate does; and rand-k's learning rate is a fifth."""
CONVERGED = 1.5
MEGABYTE = 1e6
LEARNING_RATE = 0.05
RANDOM_RATE = 0.01
"""Rate for rand-k with a memory: a coordinate waits for ten steps there, and with momentum 0.05 is then unstable."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How one compressor takes part."""

    label: str
    compressor: Compressor
    fmt: str
    learning_rate: float


def entries() -> list[Entry]:
    """All of them, the uncompressed one first."""
    specs = {
        "natural, 8 bits": "natural",
        "natural dithering s = 7, 4 bits": "natural_dithering:p=inf,s=7,shared=true",
        "dithering s = 127, 8 bits": "dithering:p=inf,s=127,shared=true",
        "TernGrad, 2 bits": "terngrad",
        "rand-k 10 %, memory": "ef+randk:k=0.1",
        "natural o rand-k 10 %, memory": "ef+natural+randk:k=0.1",
        "block top-k 10 %, memory": "ef+natural+blocktopk:k=0.1,block=64",
        "top-k 1 %, memory (gather)": "ef+topk:k=0.01",
        "natural o top-k 1 %, memory (gather)": "ef+natural+topk:k=0.01",
        "QSGD s = 7 (gather)": "qsgd:p=2,s=7",
    }
    found = [Entry("fixed point, 32 bits", RandK(1.0), "fix32", LEARNING_RATE)]  # of all coordinates: none is left out
    for label, spec in specs.items():
        compressor = parse(spec)
        rate = RANDOM_RATE if "randk" in spec else LEARNING_RATE
        found.append(Entry(label, compressor, job_format(compressor), rate))
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """A training with one compressor."""

    entry: Entry
    points: list[tuple[Traffic, float]]
    """Traffic of one worker, and the accuracy there, 0 to 1; at the end, too."""
    tilt: list[float]
    """Excess of the sums' length, by step, over that of exact ones, along the signs of these."""

    def accuracy_with(self, budget: float) -> float:
        """When so many bytes had been used, or at the end."""
        return next((value for t, value in self.points if t.up + t.down >= budget), self.points[-1][1])


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    workers, budget, steps_max = (2, 0.8e6, 4) if settings.tiny else (4, 12e6, STEPS)
    (workers,) = settings.workers or (workers,)
    check_batch(BATCH, workers)
    chosen = entries()[:2] if settings.tiny else entries()
    found = []
    with SwitchProcess() as switch:
        for place, entry in enumerate(chosen):
            settings.progress(place / len(chosen), entry.label)
            plan = Plan(workers, epochs=10_000, learning_rate=entry.learning_rate, seed=settings.seed)
            found.append(measure(entry, switch.control, f"digits-{place}", plan, budget, steps_max))
    for each in found:
        if isinstance(each.entry.compressor.bound(1024), Unbiased) and len(each.tilt) > 1:
            mean_error(outcome, each)
    dense, *others = found
    for each in others:
        compare(outcome, each, dense, budget, steps_max)
    outcome.plots += plots(found, workers)
    outcome.notes.append(
        "Bytes are those that the transports counted, with Ethernet, IP and UDP headers; what is gathered counts as in "
        "a ring, where each worker passes on the messages of all others. The seconds are computed from the bytes of "
        "the busier direction: they leave out computation and round trips. "
        f"SGD with momentum 0.9 and a learning rate of {LEARNING_RATE}, for rand-k of {RANDOM_RATE}: a coordinate "
        "waits for ten steps in the memory, and with the larger rate training diverged. "
        f"All for {steps_max} steps."
    )
    return outcome


def measure(entry: Entry, switch: str, job: str, plan: Plan, budget: float, steps_max: int) -> Measured:
    """Train, and look at the accuracy at bytes that grow geometrically, ``budget`` among them, and after ``steps_max``
    steps."""
    training, testing = load_digits()
    model = seeded(DigitsCNN, plan.seed)
    marks = list(np.geomspace(budget / 16, FURTHER * budget, MARKS))
    found = Measured(entry, [], [])
    with open_cluster(switch, plan.workers, entry.fmt, plan.seed, job) as cluster:

        def after_step(step: int) -> bool:
            traffic = cluster.traffic()
            used = traffic.up + traffic.down
            if (marks and used >= marks[0]) or step == steps_max:
                found.points.append((traffic, accuracy(model, testing)))
                while marks and marks[0] <= used:
                    marks.pop(0)
            return step < steps_max

        def summed(vectors: Sequence[Sequence[Floats]]) -> Sequence[Floats]:
            totals = cluster.sums(entry.compressor, vectors)
            exact = np.concatenate([np.sum(parts, axis=0, dtype=np.float64) for parts in zip(*vectors, strict=True)])
            more = np.concatenate(totals) - exact
            found.tilt.append(float(np.sign(exact) @ more) / float(np.abs(exact).sum()))
            return totals

        train(model, training, plan, summed, after_step)
    return found


def mean_error(outcome: Outcome, found: Measured) -> None:
    """Add the mean error of the sums."""
    tilt = found.tilt
    outcome.add(
        f"{found.entry.label}: mean error of the sums in training",
        float(np.mean(tilt)) / (float(np.std(tilt, ddof=1)) / np.sqrt(len(tilt))) if any(tilt) else 0.0,
        0,
        Z_MAX,
        Source.DERIVED,
        f"unbiased; along the signs of the exact sums, {len(tilt)} steps",
        unit="standard errors",
    )


def compare(outcome: Outcome, found: Measured, dense: Measured, budget: float, steps_max: int) -> None:
    """Accuracies at equal bytes, and at the end, against those of ``dense``."""
    label = found.entry.label
    outcome.add(
        f"{label}: accuracy at {budget / MEGABYTE:g} MB",
        100 * found.accuracy_with(budget),
        100 * dense.accuracy_with(budget),
        0.0,
        Source.PAPER,
        "at equal bytes, sent and received by a worker, ahead of fixed point of 32 bits; one seed",
        Relation.AT_LEAST,
        unit="%",
    )
    outcome.add(
        f"{label}: accuracy after {steps_max} steps",
        100 * found.points[-1][1],
        100 * dense.points[-1][1],
        BEHIND.get(label, CONVERGED),
        Source.OURS,
        "that of fixed point of 32 bits after as many; one seed, and a picture is 0.2 points",
        Relation.AT_LEAST,
        unit="%",
    )


def plots(found: Sequence[Measured], workers: int) -> list[Plot]:
    """Accuracy against bytes, and against seconds."""
    lines_bytes, lines_seconds = [], []
    for each, style in zip(found, itertools.cycle(["-", "--", "-."]), strict=False):
        label, shown = each.entry.label, [100 * value for _, value in each.points]
        lines_bytes.append(Line(label, [(t.up + t.down) / MEGABYTE for t, _ in each.points], shown, style))
        seconds = [8 * max(t.up, t.down) / LINK_BITS_PER_S for t, _ in each.points]
        lines_seconds.append(Line(label, seconds, shown, style))
    return [
        Plot(
            "digits-bytes",
            f"CNN on digits, {workers} workers: accuracy against bytes",
            "bytes on the wire, sent and received by one worker  (MB)",
            "test accuracy  (%)",
            lines_bytes,
            log_x=True,
        ),
        Plot(
            "digits-seconds",
            f"CNN on digits, {workers} workers: accuracy against link time",
            "time that the bytes take on a link of 100 Mbit/s each way, computed  (s)",
            "test accuracy  (%)",
            lines_seconds,
            log_x=True,
        ),
    ]


EXPERIMENT = Experiment(
    name="digits",
    title="All compressors at equal bytes",
    paper="Horvath et al. 2019, section 5; Stich et al. 2018, section 4; Wen et al. 2017, section 5",
    claim="At equal bytes on the wire, training with compressed gradients is ahead of training with 32 bits a "
    "gradient.",
    run=run,
)
