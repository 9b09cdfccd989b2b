"""The report of `inagg demo`: trainings over the switch and with Gloo, side by side."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inagg_wire.formats import CHILDREN_MAX

from .benches import allreduce_section
from .history import History, StepBar
from .page import Grid, Picture, Section, about_here, write

THROUGHPUT_BYTES = (64 << 10, 1 << 20, 16 << 20)
THROUGHPUT_S = 0.5
"""All-reduces for the report: their sizes, and the time for each of them, roughly."""
COLUMNS = ("sums by", "numbers", "accuracy", "loss", "ms a step", "bytes up, a step", "steps", "equal parameters")


def demo_report(
    path: Path, outcomes: Sequence[Mapping[str, Any]], histories: Sequence[History], workers: str,
    throughput: Sequence[dict[str, Any]] = (),
) -> Path:  # fmt: skip
    """Write it and return where it is. ``outcomes``: the fields of `inagg_testbed.demo.Outcome`, one for each of
    ``histories``; ``workers``: how many, and where, in words; ``throughput``: lines of `inagg bench allreduce --json`.

    Raises ModuleNotFoundError without matplotlib, OSError if the file cannot be written.
    """
    from . import figures

    switched = [history for history in histories if history.round_trips_s]
    rows = [_row(outcome, figures.NAMES[outcome["system"]]) for outcome in outcomes]
    sections = [
        Section(
            "The trainings",
            f"A small CNN on the handwritten digits of scikit-learn, {workers}. The order of the data and the "
            f"initial weights are the same; only who sums the gradients differs.{_tree(outcomes)}",
            Grid(COLUMNS, rows),
            [Picture(figures.curves(histories), "Loss of rank 0 by step, and accuracy on test data after each epoch.")],
        ),
        Section(
            "Where the time of a step goes",
            "Computing is a step without communication, timed on all workers at once after the training; the rest of "
            f"a step (median) is communication that computing does not hide.{_transport(switched)}",
            pictures=[
                Picture(
                    figures.breakdown(
                        [_bar(o, h, figures.NAMES[h.system]) for o, h in zip(outcomes, histories, strict=True)]
                    ),
                    "The time of a step on rank 0, and what part of it communication adds.",
                )
            ],
        ),
    ]
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
    data = {"outcomes": list(outcomes), "histories": [asdict(h) for h in histories], "throughput": list(throughput)}
    return write(path, "Gradients summed in the network", about_here("inagg demo"), sections, data)


def why_no_report(path: Path | None) -> str | None:
    """Why a report cannot be written there, known before anything runs; None if it can, or if none is wanted."""
    if path is None:
        return None
    if importlib.util.find_spec("matplotlib") is None:
        return "its pictures need matplotlib; install it: pip install 'inagg[report]'"
    folder = path.expanduser().absolute().parent
    if folder.is_dir() and not os.access(folder, os.W_OK):
        return f"{folder} cannot be written; name another place: --report FILE"
    return None


def measure_throughput(
    workers: int, format_: str, link: str | None = None, racks: int = 0, trunk: str | None = None
) -> list[dict[str, Any]]:
    """A few all-reduces for the report, through the switch and with Gloo: lines of `inagg bench allreduce --json`.

    With ``racks`` through the tree and through one switch behind the trunks, which serves `CHILDREN_MAX` workers: none
    for more.
    """
    from ..bench.allreduce import bench_allreduce

    if racks and workers > CHILDREN_MAX:
        return []
    counts = [workers] if racks else sorted({2, workers})
    place: dict[str, Any] = {"link": link, "racks": racks, "trunk": trunk}
    return [
        line
        for count in counts
        for line in bench_allreduce(count, format_, THROUGHPUT_BYTES, against="gloo", seconds=THROUGHPUT_S, **place)
    ]


def _tree(outcomes: Sequence[Mapping[str, Any]]) -> str:
    """What is to be known of a tree of switches, as sentences."""
    if all(outcome["system"] != "tree" for outcome in outcomes):
        return ""
    return (
        " The workers of each rack send to a switch of their own, a leaf. The switch in the middle adds up the exact "
        "partial sums of the leaves and makes the result, with the bits that one switch for all workers would give."
    )


def _row(outcome: Mapping[str, Any], name: str) -> list[str]:
    return [
        name,
        outcome["format"],
        f"{outcome['accuracy']:.2%}",
        f"{outcome['loss']:.3f}",
        f"{outcome['step_ms']:.1f}",
        f"{outcome['bytes_up_per_step']:,.0f}",
        str(outcome["steps"]),
        "yes" if outcome["same_parameters"] else "NO",
    ]


def _bar(outcome: Mapping[str, Any], history: History, name: str) -> StepBar:
    computing_ms = min(history.computing_ms, outcome["step_ms"])
    parts = {"computing": computing_ms, "communication not hidden": outcome["step_ms"] - computing_ms}
    return StepBar(f"{name}, {history.format}", parts)


def _transport(histories: Sequence[History]) -> str:
    """What the transport's thread did meanwhile, as a sentence."""
    if not histories:
        return ""
    parts = ", ".join(f"{name} {ms:.2f} ms" for name, ms in histories[-1].transport_ms.items())
    return f" Over the switch, rank 0's transport spent, in the mean of the steps and beside computing: {parts}."
