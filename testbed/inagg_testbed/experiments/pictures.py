"""Plots as SVG files: the same bytes whenever the data are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .model import Plot

WIDTH_IN, HEIGHT_IN = 6.4, 4.0


def draw(plot: Plot, path: Path) -> None:
    """Draw ``plot`` into the SVG file ``path``."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # Without these an SVG holds random identifiers and the date.
    settings: Any = {
        "svg.hashsalt": plot.name,
        "svg.fonttype": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        for line in plot.lines:
            axes.plot(line.x, line.y, line.style, label=line.label, markersize=4, linewidth=1.4)
        axes.set_title(plot.title, fontsize=10)
        axes.set_xlabel(plot.x_axis)
        axes.set_ylabel(plot.y_axis)
        if plot.log_x:
            axes.set_xscale("log")
        if plot.log_y:
            axes.set_yscale("log")
        if plot.y_limits is not None:
            axes.set_ylim(*plot.y_limits)
        axes.grid(alpha=0.25)
        if len(plot.lines) > 1:
            axes.legend(fontsize=8, frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)
