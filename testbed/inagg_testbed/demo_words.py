"""Last words of `inagg demo`: a table, what follows from it, and how to go on."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from .demo_training import Outcome
from .report.history import NAMES
from .tables import print_table

CONFIDENCE: Final = 0.95


def print_outcomes(out: Console, outcomes: Sequence[Outcome], workers: str) -> None:
    """Print the comparison as a table, for people: of 80 columns; on a narrower terminal as several."""
    seeds = len(outcomes[0].seeds)
    what = "accuracy: " + ("of one seed" if seeds == 1 else f"mean and standard deviation of {seeds} seeds")
    title = f"{workers}, {outcomes[0].steps} steps of a CNN on 8x8 digits"
    caption = f"{what}\nbytes: sent by one worker\nequal: all workers ended with the same parameters, bit for bit"
    columns = ("sums by", "numbers", "accuracy", "ms/step", "bytes/step", "share", "equal")
    rows = []
    reference = outcomes[-1].bytes_up_per_step
    for outcome in outcomes:
        share = f"{outcome.bytes_up_per_step / reference:.0%}" if len(outcomes) > 1 and reference else ""
        rows.append(
            (
                NAMES[outcome.system],
                outcome.format,
                accuracy_text(outcome.accuracies),
                f"{outcome.step_ms:.1f}",
                f"{outcome.bytes_up_per_step:,.0f}",
                share,
                "yes" if outcome.same_parameters else "NO",
            )
        )
    print_table(out, title, columns, rows, caption=caption)


def accuracy_text(accuracies: Sequence[float]) -> str:
    """In percent, with the standard deviation where there are several."""
    if len(accuracies) == 1:
        return f"{accuracies[0]:.1%}"
    return f"{100 * statistics.mean(accuracies):.1f}±{100 * statistics.stdev(accuracies):.1f}%"


def conclusions(outcomes: Sequence[Outcome]) -> list[str]:
    """Sentences on what the trainings show: speed and bytes first. None without Gloo to compare with."""
    theirs = next((outcome for outcome in outcomes if outcome.system == "gloo"), None)
    ours = next((outcome for outcome in outcomes if outcome.system in ("software", "tree")), None)
    if ours is None or theirs is None:
        return []
    return [headline(ours, theirs), compare_accuracies(ours, theirs)]


def headline(ours: Outcome, theirs: Outcome) -> str:
    """Speed and bytes in a line."""
    ratio = theirs.step_ms / ours.step_ms
    speed = (
        f"{ratio:.1f} times as fast as with Gloo" if ratio >= 0.95 else f"{1 / ratio:.1f} times as slow as with Gloo"
    )
    fewer = ""
    if theirs.bytes_up_per_step:  # else the kernel does not count them: see `tcp_bytes`
        fewer = f", {1 - ours.bytes_up_per_step / theirs.bytes_up_per_step:.0%} fewer bytes"
    return f"A step over the {NAMES[ours.system]}: {speed}{fewer}."


def compare_accuracies(ours: Outcome, theirs: Outcome) -> str:
    """Whether there is a difference, by the paired t interval over the seeds."""
    if len(ours.seeds) == 1:
        return (
            "Accuracy: one seed cannot tell the two apart, as it differs from seed to seed with either; take more, "
            "such as --seeds 5."
        )
    from scipy.special import stdtrit

    pairs = [100 * (a - b) for a, b in zip(ours.accuracies, theirs.accuracies, strict=True)]
    mean, count = statistics.mean(pairs), len(pairs)
    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(pairs) / count**0.5
    interval = f"{mean:+.1f} points ({mean - half:+.1f} to {mean + half:+.1f} with {CONFIDENCE:.0%} confidence)"
    if abs(mean) <= half or not mean:
        return f"Accuracy: no difference that {count} seeds can show; it is {interval}."
    return f"Accuracy: {'higher' if mean > 0 else 'lower'} than with Gloo over {count} seeds, by {interval}."


def go_on() -> list[str]:
    """Lines on what to try next: commands that can be typed as they stand."""
    inagg, python = command_path("inagg"), command_path("python")
    example = "examples/ddp_hook.py"
    script = example if Path(example).is_file() else "train.py"
    whose = "a training script" if script == example else "your training script"
    steps = [
        (f"{inagg} testbed -- {python} {script}", f"{whose} around a switch"),
        (f"{inagg} advise --link 10gbit", "would it help your training?"),
        (f"{inagg} doctor", "is this machine set up for speed?"),
        (f"{inagg} switch", "a switch that workers elsewhere can use"),
    ]
    lines = ["Go on:", *(line for command, words in steps for line in (f"  {words}", f"    {command}"))]
    if inagg != "inagg":
        activate = Path(inagg).with_name("activate")
        lines.append(f"To type just `inagg`: . {activate}" if activate.is_file() else f"`inagg` is {inagg}")
    return lines


def command_path(name: str) -> str:
    """How to call a command of this environment from here: by its name alone where PATH finds it."""
    own = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and (not own.exists() or (os.path.samefile(found, own) and Path(found).parent == own.parent)):
        return name
    here = os.path.relpath(own)
    return here if not here.startswith("..") else str(own)
