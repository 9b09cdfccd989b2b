"""The report of `inagg advise --check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..advise.check import Checked
from .page import Grid, Picture, Section, about_here, write


def check_report(path: Path, found: Sequence[Checked], verdict: str) -> Path:
    """Returns where it is. Raises ModuleNotFoundError without matplotlib."""
    from . import figures

    def name(checked: Checked) -> str:
        system = "Gloo" if checked.system == "gloo" else checked.system
        return f"{checked.case.model}, {checked.case.workers} x {checked.case.link or 'loopback'}, {system}"

    errors = figures.errors([name(c) for c in found], [c.error for c in found])
    grid = Grid(
        ("training", "predicted, ms", "measured, ms", "error", "machine busy"),
        [
            [
                name(c),
                f"{c.predicted_s * 1e3:,.1f}",
                f"{c.measured_s * 1e3:,.1f}",
                f"{c.error:+.1%}",
                f"{c.cpu_busy:.0%}",
            ]
            for c in found
        ],
    )
    caption = "Error of each prediction of a step's time, relative to what was measured; the band is 15 %."
    section = Section("Predicted and measured", verdict, grid, [Picture(errors, caption)])
    data = {"checked": [asdict(c) | {"error": c.error} for c in found]}
    return write(path, "How good the predictions are", about_here("inagg advise --check"), [section], data)
