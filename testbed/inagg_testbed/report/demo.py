"""The report of `inagg demo`: trainings over the switch and with Gloo, side by side."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inagg.extras import install
from inagg_switch.cli.new_files import why_not_written
from inagg_wire.formats import CHILDREN_MAX

from ..demo_training import Outcome
from ..demo_words import accuracy_text, conclusions
from ..progress import Doing
from .benches import allreduce_section
from .history import NAMES, History, StepBar
from .page import Grid, Picture, Section, about_here, write

THROUGHPUT_BYTES = (64 << 10, 1 << 20, 16 << 20)
THROUGHPUT_S = 0.5
"""All-reduces for the report: their sizes, and the time for each of them, roughly."""
COLUMNS = ("sums by", "numbers", "accuracy", "loss", "ms a step", "bytes up, a step", "steps", "equal parameters")


def demo_report(
    path: Path, trainings: Sequence[tuple[Outcome, History]], workers: str, throughput: Sequence[dict[str, Any]] = ()
) -> Path:
    """Write it and return where it is. ``workers``: how many, and where, in words; ``throughput``: lines of `inagg
    bench allreduce --json`.

    Raises ModuleNotFoundError without matplotlib, OSError if the file cannot be written.
    """
    from . import figures

    outcomes, histories = [outcome for outcome, _ in trainings], [history for _, history in trainings]
    switched = [history for history in histories if history.round_trips_s]
    sections = [
        Section(
            "The trainings",
            f"A small CNN on the handwritten digits of scikit-learn, {workers}. For each seed, the order of the data "
            f"and the initial weights are the same; only who sums the gradients differs.{_tree(outcomes)} "
            f"{_about_seeds(outcomes[0].seeds)}",
            Grid(COLUMNS, [_row(outcome) for outcome in outcomes]),
            [Picture(figures.curves(histories), f"Loss of rank 0 by step, and accuracy on test data after each epoch; "
                     f"seed {outcomes[0].seeds[0]}.")],
        ),
        Section(
            "Where the time of a step goes",
            "Computing is a step without communication, timed on all workers at once after the training; the rest of "
            f"a step (median) is communication that computing does not hide.{_transport(switched)}",
            pictures=[
                Picture(
                    figures.breakdown([_bar(outcome, history) for outcome, history in trainings]),
                    "The time of a step on rank 0, and what part of it communication adds.",
                )
            ],
        ),
    ]  # fmt: skip
    if switched:
        caption = "Smoothed round-trip time of a datagram, and datagrams that were sent again, as rank 0 saw them."
        sections.append(Section("The network", pictures=[Picture(figures.round_trips(switched), caption)]))
    seen = next((history.exponents for history in switched if history.exponents is not None), None)
    if seen is not None and seen.counts:
        caption = (
            "Gradients of rank 0 in one step, before they are summed. A block of gradients has one scale, a power of "
            "two that is at least as large as all of them; what is below the lowest level becomes that level or zero, "
            "with the right mean."
        )
        sections.append(Section("The gradients", pictures=[Picture(figures.exponents(seen), caption)]))
    if throughput:
        over = "over loopback" if all("link" not in line for line in throughput) else "over links like those above"
        text = f"All-reduces of random tensors {over}, all processes on this machine."
        sections.append(allreduce_section(throughput, text))
    data = {
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "histories": [asdict(history) for history in histories],
        "throughput": list(throughput),
    }
    about = about_here("inagg demo")
    return write(path, "Gradients summed in the network", about, sections, data, conclusions(outcomes))


def why_no_report(path: Path) -> str | None:
    """Why a report cannot be written there, known before anything runs; None if it can."""
    if importlib.util.find_spec("matplotlib") is None:
        return f"its pictures need matplotlib; install it: {install('matplotlib')}"
    why = why_not_written(path.absolute().parent)
    return None if why is None else f"{why}; name another place: --report FILE"


def measure_throughput(
    workers: int, format_: str, link: str | None = None, racks: int = 0, trunk: str | None = None,
    progress: Doing = lambda _: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """A few all-reduces for the report, through the switch and with Gloo: lines of `inagg bench allreduce --json`.
    ``progress`` is told of the start of the workers, and of each of `THROUGHPUT_BYTES`.

    With ``racks`` through the tree and through one switch behind the trunks, which serves `CHILDREN_MAX` workers: none
    for more.
    """
    from ..bench.allreduce import bench_allreduce

    if racks and workers > CHILDREN_MAX:
        return []
    place: dict[str, Any] = {"link": link, "racks": racks, "trunk": trunk, "progress": progress}
    return list(bench_allreduce(workers, format_, THROUGHPUT_BYTES, against="gloo", seconds=THROUGHPUT_S, **place))


def _about_seeds(seeds: Sequence[int]) -> str:
    """Say which seeds the numbers are of, as a sentence."""
    if len(seeds) == 1:
        return f"All is of seed {seeds[0]} alone: with another, accuracies differ."
    return (
        f"Accuracy and loss are means and standard deviations of seeds {seeds[0]} to {seeds[-1]}; a seed says initial "
        "weights, order of the data and rounding, and gives the same bits each time. Times are of this run."
    )


def _tree(outcomes: Sequence[Outcome]) -> str:
    """Explain a tree of switches, as sentences."""
    if all(outcome.system != "tree" for outcome in outcomes):
        return ""
    return (
        " The workers of each rack send to a switch of their own, a leaf. The switch in the middle adds up the exact "
        "partial sums of the leaves and makes the result, with the bits that one switch for all workers would give."
    )


def _row(outcome: Outcome) -> list[str]:
    return [
        NAMES[outcome.system],
        outcome.format,
        accuracy_text(outcome.accuracies),
        f"{statistics.mean(outcome.losses):.3f}",
        f"{outcome.step_ms:.1f}",
        f"{outcome.bytes_up_per_step:,.0f}",
        str(outcome.steps),
        "yes" if outcome.same_parameters else "NO",
    ]


def _bar(outcome: Outcome, history: History) -> StepBar:
    computing_ms = min(history.computing_ms, outcome.step_ms)
    parts = {"computing": computing_ms, "communication not hidden": outcome.step_ms - computing_ms}
    return StepBar(f"{NAMES[outcome.system]}, {history.format}", parts)


def _transport(histories: Sequence[History]) -> str:
    """Say what the transport's thread did meanwhile, as a sentence."""
    if not histories:
        return ""
    parts = ", ".join(f"{name} {ms:.2f} ms" for name, ms in histories[-1].transport_ms.items())
    return f" Over the switch, rank 0's transport spent, in the mean of the steps and beside computing: {parts}."
