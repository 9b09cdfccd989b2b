"""The picture of the first page, drawn of tables of docs/measured.md: ``python docs/inagg_docs/picture.py [--check]``.

One file for light pages and one for dark ones. ``--check`` compares, and exits with 1 if others would be drawn.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
MEASURED: Final = ROOT / "docs/measured.md"
PICTURES: Final = ROOT / "docs/pictures"


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars of one unit, the first of which the others are compared with."""

    title: str
    unit: str
    bars: dict[str, float]
    """Name -> value; names of ours begin with `inagg`."""


def rows(section: str) -> list[list[str]]:
    """The cells of the first table below a heading of docs/measured.md, without its head."""
    text = MEASURED.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    table = text[text.index("\n|") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def panels() -> list[Panel]:
    """What is drawn."""
    links = {row[1]: row for row in rows("Over links") if row[0] == "1 Gbit/s"}
    allreduce = {"Gloo, float32": number(links["nat8"][4])}
    allreduce |= {f"inagg, {name}": number(row[2]) for name, row in links.items()}
    trained = {row[0].replace("`", ""): row[4].split(" / ") for row in rows("Ways to send less")}
    wanted = ("Gloo, float32", "Gloo, float16", "inagg, dith8", "inagg, nat8", "inagg, nat4")
    seconds = {name: number(trained[name][1]) for name in wanted}
    return [
        Panel("All-reduce of 64 MiB, links of 1 Gbit/s", "ms", allreduce),
        Panel("Transformer, to the same loss, 100 Mbit/s", "s", seconds),
    ]


@dataclass(frozen=True, slots=True)
class Colours:
    text: str
    ours: str
    others: str


COLOURS: Final = {
    "light": Colours("#24292f", "#3f51b5", "#a8b0b9"),
    "dark": Colours("#e6edf3", "#8c9eff", "#5d6570"),
}


def drawn(colours: Colours) -> bytes:
    """The picture as SVG: text stays text, the ground is whatever is below it."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    rules: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "inagg",
        "font.family": "sans-serif",
        "font.size": 11,
        "text.color": colours.text,
        "axes.labelcolor": colours.text,
        "ytick.color": colours.text,
    }
    with pyplot.rc_context(rules):
        shown = panels()
        heights = [len(panel.bars) + 1 for panel in shown]  # a bar is as high in one panel as in the other
        figure, all_axes = pyplot.subplots(
            len(shown), figsize=(7, 0.36 * sum(heights)), height_ratios=heights, layout="constrained"
        )
        for axes, panel in zip(all_axes, shown, strict=True):
            names, values = list(panel.bars), list(panel.bars.values())
            fill = [colours.ours if name.startswith("inagg") else colours.others for name in names]
            axes.barh(names, values, color=fill, height=0.75)
            axes.invert_yaxis()
            axes.set_title(panel.title, loc="left", fontsize=11, fontweight="bold", pad=9)
            axes.set_xlim(0, max(values) * 1.3)
            axes.xaxis.set_visible(False)
            axes.tick_params(axis="y", length=0)
            axes.spines[:].set_visible(False)
            for row, value in enumerate(values):
                times = "" if row == 0 else f"  ({values[0] / value:.1f} times as fast)"
                axes.text(value + max(values) * 0.015, row, f"{value:g} {panel.unit}{times}", va="center")
        out = io.BytesIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return out.getvalue()


def main(arguments: list[str]) -> int:
    """Draw, or compare; the exit status."""
    stale = []
    for name, colours in COLOURS.items():
        path, made = PICTURES / f"results-{name}.svg", drawn(colours)
        if arguments == ["--check"]:
            stale += [path] if not path.exists() or path.read_bytes() != made else []
        else:
            path.write_bytes(made)
            print(path)
    for path in stale:
        print(f"{path} is not what docs/measured.md says; run: python docs/inagg_docs/picture.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
