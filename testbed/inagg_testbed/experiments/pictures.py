"""Plots as SVG files: the same bytes whenever the data are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .model import Plot

WIDTH_IN, HEIGHT_IN = 6.4, 4.0
NAMES_IN = 1.4
"""More height for names of cases."""
COLOURS = 10
"""Number of matplotlib's usual colours; with more lines two would be alike."""
LINES_INSIDE = 6
"""With more lines than these the legend stands beside the picture."""
LEGEND_IN = 2.4


def draw(plot: Plot, path: Path) -> None:
    """Draw ``plot`` into the SVG file ``path``."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot, ticker

    # Without these an SVG holds random identifiers and the date.
    settings: Any = {
        "svg.hashsalt": plot.name,
        "svg.fonttype": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        beside = len(plot.lines) > LINES_INSIDE
        width = WIDTH_IN + LEGEND_IN * beside
        height = HEIGHT_IN + NAMES_IN * bool(plot.names)
        figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
        if len(plot.lines) > COLOURS:
            axes.set_prop_cycle(color=pyplot.get_cmap("tab20").colors)  # type: ignore[attr-defined]
        for line in plot.lines:
            (drawn,) = axes.plot(line.x, line.y, line.style, label=line.label, markersize=4, linewidth=1.4)
            if line.low:
                axes.fill_between(line.x, line.low, line.high, color=drawn.get_color(), alpha=0.15, linewidth=0)
        if plot.names:
            axes.set_xticks(range(1, len(plot.names) + 1), plot.names, rotation=45, ha="right", fontsize=7)
        axes.set_title(plot.title, fontsize=10)
        axes.set_xlabel(plot.x_axis)
        axes.set_ylabel(plot.y_axis)
        for log, axis, scale in ((plot.log_x, axes.xaxis, axes.set_xscale), (plot.log_y, axes.yaxis, axes.set_yscale)):
            if log:
                scale("log")
                low, high = axis.get_data_interval()
                if high < 100 * low:  # powers of ten alone would be two ticks at most
                    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
                    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
                    axis.set_minor_formatter(ticker.NullFormatter())
        if plot.y_limits is not None:
            axes.set_ylim(*plot.y_limits)
        axes.grid(alpha=0.25)
        if len(plot.lines) > 1:
            place: Any = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if beside else {}
            axes.legend(fontsize=8, frameon=False, **place)
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)
