"""Results as a page: what the papers say, the references, and what was measured, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inagg_switch.cli.new_files import write_whole

from . import coverage
from .model import Experiment, Number, Outcome, Relation, Run, SettingsError

STORE, READ_ME = "results.json", "README.md"
TITLE = "# Results of the experiments\n"
HEADING = f"""{TITLE}
Written by `make experiments` (`inagg experiment all --out testbed/results`); do not edit. Each claim of the papers that
this project carries out has an experiment, at the scale of one machine, which runs the code that ships. *Reference* is
what should come out, and *from* tells who says so: the **paper**; or it is **derived** from its definitions or from our
own; or it is **ours**, a measurement or an aim of our own, and says that nothing has changed, and not more. *Measured*
is what the run gave; the *tolerance* is how far off it may be, and beside it stands why. What is not within tolerance
is marked **no**: it has not been reproduced here.

Everything follows from the seed ({{seeds}}), to the bit, but the figures marked *timed*, which depend on the clock and
the scheduler of the machine. The same for machines: [results.json](results.json).
"""

NOT_COMPARED = "those of tiny runs, which reach no reference, and our own references in runs with other sizes or data."

Record = dict[str, Any]
"""One experiment and its outcome, as in `results.json`."""


def record(experiment: Experiment, outcome: Outcome, settings: Run, cpu_s: float) -> Record:
    """Return the `Record` for `results.json`."""
    return {
        "experiment": experiment.name,
        "row": experiment.row,
        "title": experiment.title,
        "paper": experiment.paper,
        "claim": experiment.claim,
        "seed": settings.seed,
        "tiny": settings.tiny,
        "cpu_s": round(cpu_s, 1),
        "figures": [figure.as_dict(experiment.name, settings.compared) for figure in outcome.figures],
        "notes": outcome.notes,
        "plots": [{"file": f"{plot.name}.svg", "title": plot.title} for plot in outcome.plots],
    }


def stored(out: Path) -> dict[str, Record]:
    """Load what `write` has put into the folder ``out``, by experiment. Raises `SettingsError` if others' files have
    the names of ours, which would be lost, or if one cannot be read."""
    store, read_me = out / STORE, out / READ_ME
    try:
        if read_me.exists() and not read_me.read_text(encoding="utf-8").startswith(TITLE):
            raise SettingsError(f"{read_me} is another's, and would be replaced: give another folder")
        found = json.loads(store.read_text(encoding="utf-8")) if store.exists() else []
        page(found)
        return {r["experiment"]: r for r in found}
    except OSError as error:
        raise SettingsError(f"{error.filename} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, TypeError, KeyError, AttributeError):
        raise SettingsError(f"{out} has another's {STORE} or {READ_ME}, or a broken one: give another folder") from None


def write(records: Sequence[Record], order: Sequence[str], out: Path) -> None:
    """Put ``records`` into `results.json` of the folder ``out``, in the place of older ones of the same experiments,
    and write README.md anew from all. ``order``: of the experiments on the page. Raises as `stored`, and OSError."""
    found = stored(out) | {r["experiment"]: r for r in records}
    kept = [found[name] for name in order if name in found]
    write_whole(out / STORE, json.dumps(kept, indent=1) + "\n")
    write_whole(out / READ_ME, page(kept))


def page(records: Sequence[Record]) -> str:
    """The page, in Markdown."""
    figures = [figure for r in records for figure in r["figures"]]
    compared = [figure for figure in figures if figure["within_tolerance"] is not None]
    missed = [(r, figure) for r in records for figure in r["figures"] if figure["within_tolerance"] is False]
    parts = [HEADING.format(seeds=", ".join(str(seed) for seed in sorted({r["seed"] for r in records})))]
    parts.append(f"{len(compared) - len(missed)} of {len(compared)} figures are within tolerance.\n")
    if len(figures) > len(compared):
        parts.append(f"{len(figures) - len(compared)} are compared with nothing: {NOT_COMPARED}\n")
    parts.append("| row | experiment | figures within tolerance | CPU time |\n|---|---|---|---|")
    for r in records:
        within = sum(figure["within_tolerance"] is True for figure in r["figures"])
        link, row = f"[{r['title']}](#{r['experiment']})", r["row"] or ""
        parts.append(f"| {row} | {link} | {within} of {len(r['figures'])} | {r['cpu_s']:.0f} s |")
    parts.append("\n## Not reproduced\n")
    for r, figure in missed:
        parts.append(f"- {r['title']}: {figure['figure']}: {shown(figure['measured'])}, not {expected(figure)}.")
    if not missed:
        parts.append("Every figure is within its tolerance.")
    parts.append("\n## What the papers show, and we\n")
    parts.append(coverage.table())
    parts += [section(r) for r in records]
    return "\n".join(parts) + "\n"


def section(r: Record) -> str:
    """One experiment."""
    parts = [f'\n<a id="{r["experiment"]}"></a>\n## {r["title"]}\n']
    parts.append(f"`inagg experiment {r['experiment']}`. {r['paper']}.\n")
    parts.append(f"**Claim.** {r['claim']}\n")
    parts.append("| figure | reference | from | measured | tolerance | within | why |\n|---|---|---|---|---|---|---|")
    for figure in r["figures"]:
        name = figure["figure"] + (f" ({figure['unit']})" if figure["unit"] else "")
        name += " *timed*" if figure["timed"] else ""
        within = {True: "yes", False: "**no**", None: "not compared"}[figure["within_tolerance"]]
        numbers = expected(figure), figure["source"], shown(figure["measured"]), shown(figure["tolerance"])
        parts.append(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in (name, *numbers, within, figure["why"])) + " |"
        )
    parts += [f"\n{note}" for note in r["notes"]]
    parts += [f"\n![{plot['title']}]({plot['file']})" for plot in r["plots"]]
    return "\n".join(parts)


def expected(figure: dict[str, Any]) -> str:
    """The reference, with how the figure should stand to it."""
    words = {Relation.NEAR: "", Relation.AT_MOST: "at most ", Relation.AT_LEAST: "at least "}
    return words[Relation(figure["relation"])] + shown(figure["reference"])


def shown(number: Number) -> str:
    """A number for people, with four digits."""
    value = float(number)
    if value.is_integer() or abs(value) >= 1e4:
        return f"{value:,.0f}"
    return f"{value:.4g}"
