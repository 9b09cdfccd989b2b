"""The pictures of a report: data in, PNG out. Needs matplotlib, no display."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ..bench.options import size_text
from .history import NAMES, Exponents, History, StepBar, Throughput

COLORS = {"software": "#0b6fb8", "tree": "#8a4fb0", "gloo": "#c8641a", "bmv2": "#1d8a5a"}
LINES = {"software": "-", "tree": "-", "gloo": "--", "bmv2": ":"}
"""Where two lines lie on one another, both can be seen."""
THROUGH = {"inagg-tree": "tree"}
"""Systems of `inagg bench allreduce` other than one switch; of the color of their format, with another line."""
MORE_COLORS = ("#0b6fb8", "#1d8a5a", "#8a4fb0", "#b0425f", "#6b7a00", "#555555")
CYCLE = (*matplotlib.color_sequences["tab10"], "black", "gold")
"""Colors for many systems; with a line of their own for ours."""
PARTS = {
    "forward": "#9db8cc", "backward": "#5f87a6", "communication not hidden": "#c8641a",
    "computing": "#9db8cc",
}  # fmt: skip
ERROR_BAND = 0.15
"""The relative error of a prediction that is good enough."""
WIDTH, HEIGHT, DPI = 8.0, 3.4, 150


def _figure(columns: int = 1, height: float = HEIGHT) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    axes = [figure.add_subplot(1, columns, 1 + k) for k in range(columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="#e4e4e4", linewidth=0.8)
        ax.set_axisbelow(True)
    return figure, axes


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _name(history: History) -> str:
    return f"{NAMES[history.system]}, {history.format}"


def _smooth(values: Sequence[float], width: int) -> list[float]:
    """Means of up to ``width`` values up to each."""
    return [sum(values[max(0, i + 1 - width) : i + 1]) / min(i + 1, width) for i in range(len(values))]


def curves(histories: Sequence[History]) -> bytes:
    """Loss by step, and accuracy by epoch, of several trainings."""
    figure, (left, right) = _figure(2)
    for history in histories:
        color, style = COLORS[history.system], LINES[history.system]
        left.plot(history.losses, color=color, alpha=0.22, linewidth=0.8)
        left.plot(_smooth(history.losses, 10), color=color, linestyle=style, label=_name(history))
        epochs = range(1, 1 + len(history.accuracies))
        right.plot(
            epochs, [100 * a for a in history.accuracies], "o", linestyle=style, color=color, label=_name(history)
        )
    left.set(xlabel="step", ylabel="training loss, rank 0", title="Loss (and its mean of 10 steps)")
    left.set_ylim(bottom=0)
    right.set(xlabel="epoch", ylabel="test accuracy, %", title="Accuracy")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(frameon=False)
    right.legend(frameon=False, loc="lower right")
    return _png(figure)


def throughput(points: Sequence[Throughput]) -> bytes:
    """Elements per second by tensor size, both logarithmic, one panel for each number of workers."""
    counts = sorted({p.workers for p in points})
    figure, axes = _figure(len(counts))
    # one color for each format, whatever the number of workers
    formats = sorted({p.format for p in points if p.system != "gloo"})
    color_of = {name: MORE_COLORS[k % len(MORE_COLORS)] for k, name in enumerate(formats)}
    for ax, workers in zip(axes, counts, strict=True):
        here = [p for p in points if p.workers == workers]
        for system, format_ in sorted({(p.system, p.format) for p in here}, reverse=True):
            line = sorted((p for p in here if (p.system, p.format) == (system, format_)), key=lambda p: p.elements)
            color = COLORS["gloo"] if system == "gloo" else color_of[format_]
            label = "Gloo, float32" if system == "gloo" else f"{THROUGH.get(system, 'switch')}, {format_}"
            style = LINES["gloo"] if system in THROUGH else "-"
            xs, ys = [4 * p.elements for p in line], [p.elements_per_s / 1e6 for p in line]
            ax.plot(xs, ys, "o", linestyle=style, color=color, label=label)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(value)))
        ax.set(xlabel="tensor (float32)", title=f"{workers} workers")
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.tick_params(axis="x", labelrotation=0)
    rates = [p.elements_per_s / 1e6 for p in points]
    for ax in axes:
        ax.set_ylim(min(rates) / 1.5, max(rates) * 1.5)
    axes[0].set_ylabel("million elements/s")
    axes[0].legend(frameon=False, loc="upper left")
    return _png(figure)


def breakdown(bars: Sequence[StepBar]) -> bytes:
    """Where the time of a step goes: a bar for each system, parts one after another."""
    names = list(dict.fromkeys(name for bar in bars for name in bar.parts_ms))
    figure, (ax,) = _figure(1, height=1.5 + 0.42 * len(bars))
    for row, bar in enumerate(bars):
        left = 0.0
        for name, ms in bar.parts_ms.items():
            ax.barh(row, ms, left=left, color=PARTS[name], height=0.62)
            left += ms
        ax.text(left, row, f" {left:,.4g} ms", va="center", fontsize=9)
    ax.set_yticks(range(len(bars)), [bar.name for bar in bars])
    ax.invert_yaxis()
    ax.set_xlim(0, 1.15 * max(sum(bar.parts_ms.values()) for bar in bars))
    ax.set_xlabel("ms per step")
    ax.grid(False, axis="y")
    handles = [ax.barh(0, 0, color=PARTS[name], label=name) for name in names]
    ax.legend(handles=handles, frameon=False, ncols=min(len(names), 3), loc="lower left", bbox_to_anchor=(0, 1))
    return _png(figure)


def round_trips(histories: Sequence[History]) -> bytes:
    """Smoothed round-trip time and datagrams sent again, by step, of trainings over the switch."""
    figure, (left, right) = _figure(2)
    for history in histories:
        color = COLORS[history.system]
        left.plot([1e3 * s for s in history.round_trips_s], color=color, label=_name(history))
        right.plot(history.resent, color=color, label=_name(history))
    left.set(xlabel="step", ylabel="ms", title="Round trip, smoothed (waits for slow ranks included)")
    left.title.set_fontsize(10)
    left.set_ylim(bottom=0)
    right.set(xlabel="step", ylabel="datagrams so far", title="Sent again, rank 0")
    right.title.set_fontsize(10)
    right.set_ylim(0, max(1, 1.1 * max(max(history.resent, default=0) for history in histories)))
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    return _png(figure)


def exponents(found: Exponents) -> bytes:
    """How far below the scale of their block gradients are, with the window of levels that the format has."""
    figure, (ax,) = _figure(1)
    octaves = sorted(found.counts)
    shares = [100 * found.counts[o] / found.elements for o in octaves]
    colors = [COLORS["software"] if -o < found.octaves else "#b0b0b0" for o in octaves]
    lowest = min([*octaves, 1 - found.octaves])
    ax.axvspan(0.5 - found.octaves, 0.5, color="#e8f1f8", zorder=0)
    for edge in (0.5 - found.octaves, 0.5):
        ax.axvline(edge, color=COLORS["software"], linewidth=1.2, linestyle="--")
    ax.bar(octaves, shares, color=colors, width=0.85)
    ax.set_xlim(lowest - 1.5, 1.5)
    ax.text(
        0.8 - found.octaves, 0.97, f"window of {found.format}: {found.octaves} octaves",
        transform=ax.get_xaxis_transform(), va="top", ha="left", color=COLORS["software"],
    )  # fmt: skip
    ax.set_ylim(0, 1.15 * max(shares))
    ax.set(xlabel="octaves below the scale of the block", ylabel="% of gradients", title=_exponents_title(found))
    ax.title.set_fontsize(11)
    return _png(figure)


def _exponents_title(found: Exponents) -> str:
    zeros = f"; {found.zeros / found.elements:.1%} are zero" if found.zeros else ""
    return f"{found.inside:.2%} of the gradients that are not zero lie in the window{zeros}"


def bars(names: Sequence[str], values: Sequence[float], axis: str) -> bytes:
    """A bar for each name, with its number beside it; ``axis``: what the numbers are."""
    figure, (ax,) = _figure(1, height=1.0 + 0.3 * len(names))
    ax.barh(range(len(names)), values, height=0.62, color=COLORS["software"])
    for row, value in enumerate(values):
        text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        ax.text(max(value, 0.0), row, f" {text}", va="center", fontsize=8)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.margins(y=0.01)
    ax.invert_yaxis()
    ax.set_xlim(min(0.0, *values), 1.15 * max(0.0, *values) or 1.0)
    ax.set_xlabel(axis)
    ax.grid(False, axis="y")
    return _png(figure)


def errors(names: Sequence[str], values: Sequence[float]) -> bytes:
    """A bar for each relative error, beside the band that is good enough."""
    figure, (ax,) = _figure(1, height=1.2 + 0.24 * len(names))
    ax.axvspan(-100 * ERROR_BAND, 100 * ERROR_BAND, color="#e8f1f8", zorder=0)
    colors = [COLORS["software"] if abs(value) <= ERROR_BAND else COLORS["gloo"] for value in values]
    ax.barh(range(len(names)), [100 * value for value in values], height=0.7, color=colors)
    ax.axvline(0, color="#555555", linewidth=0.8)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("error of the prediction, %")
    ax.grid(False, axis="y")
    return _png(figure)


def losses(curves: Mapping[str, Sequence[tuple[Sequence[float], Sequence[float]]]], axes: Sequence[str]) -> bytes:
    """Draw the losses of each system over the values of each axis (logarithmic); one legend below."""
    figure, panels = _figure(len(axes), height=1.5 * HEIGHT)
    for number, (system, lines) in enumerate(curves.items()):
        ours = system.startswith("inagg")
        color, style = CYCLE[number % len(CYCLE)], "-" if ours else "--"
        for ax, (along, values) in zip(panels, lines, strict=True):
            ax.plot(along, values, color=color, linestyle=style, linewidth=1.6 if ours else 1.1, label=system)
    for ax, name in zip(panels, axes, strict=True):
        ax.set_xscale("log")
        ax.set_xlabel(name)
    panels[0].set_ylabel("loss")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    return _png(figure)
