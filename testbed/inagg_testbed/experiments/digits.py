"""Every compressor in the training of the digits CNN: accuracy against bytes, and against seconds on a slow link."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from inagg_host.compress import Compressor, RandK, parse

from ..switch_process import SwitchProcess
from ..training.data import Digits, load_digits
from ..training.loop import accuracy
from ..training.model import DigitsCNN
from .cluster import Traffic, job_format, open_cluster
from .model import Experiment, Line, Outcome, Plot, Relation, Run
from .training import Plan, seeded, train

LINK_BITS_PER_S = 100e6
MEGABYTE = 1e6
LEARNING_RATE = 0.05
RANDOM_RATE = 0.01
"""For rand-k with a memory: a coordinate waits for ten steps there, and with momentum 0.05 is then unstable."""


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


def run(settings: Run) -> Outcome:
    outcome = Outcome()
    digits = load_digits()
    workers, budget, steps_max = (2, 0.8e6, 4) if settings.tiny else (4, 12e6, 250)
    chosen = entries()[:2] if settings.tiny else entries()
    curves: list[tuple[Entry, list[tuple[Traffic, float]]]] = []
    with SwitchProcess() as switch:
        for place, entry in enumerate(chosen):
            settings.progress(place / len(chosen), entry.label)
            job = f"digits-{place}"
            points = trained(entry, switch.control, job, digits, workers, budget, steps_max, settings.seed)
            curves.append((entry, points))
    reference = curves[0][1][-1][1]
    for entry, points in curves[1:]:
        used = points[-1][0].up + points[-1][0].down
        outcome.add(
            f"{entry.label}: accuracy at {min(used, budget) / MEGABYTE:.1f} MB",
            100 * points[-1][1],
            100 * reference,
            0.0,
            f"fixed point of 32 bits with {budget / MEGABYTE:g} MB, sent and received by a worker; one seed",
            Relation.AT_LEAST,
            unit="%",
        )
    lines_bytes, lines_seconds = [], []
    for (entry, points), style in zip(curves, itertools.cycle(["-", "--", "-."]), strict=False):
        shown = [100 * value for _, value in points]
        lines_bytes.append(Line(entry.label, [(t.up + t.down) / MEGABYTE for t, _ in points], shown, style))
        seconds = [8 * max(t.up, t.down) / LINK_BITS_PER_S for t, _ in points]
        lines_seconds.append(Line(entry.label, seconds, shown, style))
    outcome.plots += [
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
    outcome.notes.append(
        "Bytes are those that the transports counted, with Ethernet, IP and UDP headers; what is gathered counts as in "
        "a ring, where each worker passes on the messages of all others. The seconds are computed from the bytes of "
        "the busier direction: they leave out computation and round trips. "
        f"SGD with momentum 0.9 and a learning rate of {LEARNING_RATE}, for rand-k of {RANDOM_RATE}: a coordinate "
        "waits for ten steps in the memory, and with the larger rate training diverged. All until "
        f"{budget / MEGABYTE:g} MB or {steps_max} steps."
    )
    return outcome


def trained(
    entry: Entry,
    switch: str,
    job: str,
    digits: tuple[Digits, Digits],
    workers: int,
    budget: float,
    steps_max: int,
    seed: int,
) -> list[tuple[Traffic, float]]:
    """(traffic of one worker, accuracy) at bytes that grow geometrically up to ``budget`` or ``steps_max`` steps."""
    model = seeded(DigitsCNN, seed)
    marks = list(np.geomspace(budget / 16, budget, 9))
    points: list[tuple[Traffic, float]] = []
    with open_cluster(switch, workers, entry.fmt, seed, job) as cluster:

        def after_step(step: int) -> bool:
            traffic = cluster.traffic()
            used = traffic.up + traffic.down
            if used >= marks[0] or step == steps_max:
                points.append((traffic, accuracy(model, digits[1])))
                while marks and marks[0] <= used:
                    marks.pop(0)
            return bool(marks) and step < steps_max

        plan = Plan(workers, epochs=10_000, learning_rate=entry.learning_rate, seed=seed)
        train(model, digits[0], plan, lambda vectors: cluster.sums(entry.compressor, vectors), after_step)
    return points


EXPERIMENT = Experiment(
    name="digits",
    title="All compressors at equal bytes",
    paper="Horvath et al. 2019, section 5; Stich et al. 2018, section 4; Wen et al. 2017, section 5",
    claim="At equal bytes on the wire, training with compressed gradients is ahead of training with 32 bits a "
    "gradient.",
    run=run,
)
