"""Experiments and their outcomes: figures with a reference and a tolerance, pictures as data, and notes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

Number = int | float | Fraction


class SettingsError(ValueError):
    """An experiment cannot be run as it was asked for; the message says why, and what could be."""


class Relation(Enum):
    """How a measured figure should stand to its reference."""

    NEAR = "="
    AT_MOST = "<="
    AT_LEAST = ">="


class Source(Enum):
    """Where a reference comes from."""

    PAPER = "paper"
    """It stands in the paper that the experiment names."""
    DERIVED = "derived"
    """It follows from the paper's definitions or from ours; the figure's ``why`` says how."""
    OURS = "ours"
    """Our own measurement, or what we set out to reach: it says that nothing has changed, and not more."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that was measured, beside what it should be.

    Fractions and integers are compared exactly, so with a ``tolerance`` of 0 "equal" means equal.
    """

    name: str
    measured: Number
    reference: Number
    tolerance: Number
    """Absolute, in the unit of the figure. It widens ``AT_MOST`` and ``AT_LEAST`` too."""
    source: Source
    why: str
    """How the reference was come by, and why the tolerance is what it is."""
    relation: Relation = Relation.NEAR
    unit: str = ""
    timed: bool = False
    """It depends on the machine's clock or scheduler, so it is not the same in every run."""

    @property
    def within_tolerance(self) -> bool:
        """Whether the claim holds here. A NaN never does."""
        above: Any = self.measured - self.reference
        if self.relation is Relation.AT_MOST:
            return bool(above <= self.tolerance)
        if self.relation is Relation.AT_LEAST:
            return bool(-above <= self.tolerance)
        return bool(abs(above) <= self.tolerance)

    def as_dict(self, experiment: str, compared: Collection[Source] = tuple(Source)) -> dict[str, Any]:
        """One line of ``--json``; ``compared``: sources whose references hold for the run. Of others it is not said
        whether the figure is within tolerance."""
        return {
            "experiment": experiment,
            "figure": self.name,
            "measured": plain(self.measured),
            "relation": self.relation.value,
            "reference": plain(self.reference),
            "tolerance": plain(self.tolerance),
            "source": self.source.value,
            "unit": self.unit,
            "within_tolerance": self.within_tolerance if self.source in compared else None,
            "timed": self.timed,
            "why": self.why,
        }


def plain(number: Number) -> int | float:
    """Convert a number for JSON."""
    return float(number) if isinstance(number, Fraction | np.floating) else number


@dataclass(frozen=True, slots=True)
class Line:
    """A curve: ``y`` over ``x``, joined (``style`` as in matplotlib) or as points only. ``low`` and ``high``: between
    which it lies with other seeds."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "-"
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture with axes and units; `pictures.draw` makes a file of it."""

    name: str
    """Name of the file, without its ending."""
    title: str
    x_axis: str
    y_axis: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    y_limits: tuple[float, float] | None = None
    names: Sequence[str] = ()
    """Names of x = 1, 2, ..., where these are cases and not numbers."""


@dataclass(slots=True)
class Outcome:
    """Outcome of one experiment."""

    figures: list[Figure] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Notes for the reader: how it was set up, what does not hold, and why. One paragraph each."""

    def add(
        self,
        name: str,
        measured: Number,
        reference: Number,
        tolerance: Number,
        source: Source,
        why: str,
        relation: Relation = Relation.NEAR,
        unit: str = "",
        timed: bool = False,
    ) -> None:
        """Add a figure: see `Figure`."""
        self.figures.append(Figure(name, measured, reference, tolerance, source, why, relation, unit, timed))


@dataclass(frozen=True, slots=True)
class Run:
    """How an experiment is to be run."""

    seed: int = 1
    """Seed of everything that is drawn."""
    tiny: bool = False
    """In seconds, for tests: the same code on less of everything. Its figures are compared with nothing."""
    workers: tuple[int, ...] = ()
    """Instead of the experiment's own, if it takes them (`registry.Listed`); several where it compares several."""
    seeds: int | None = None
    """How many runs, likewise, from ``seed`` on."""
    dim: int | None = None
    """Elements of vectors, likewise."""
    data: Path | None = None
    """A LIBSVM file in the place of the experiment's own data, likewise."""
    progress: Callable[[float, str], None] = lambda share, doing: None
    """Told now and then the share that is done, 0 to 1, and what is being done."""

    @property
    def compared(self) -> frozenset[Source]:
        """Whose references hold for this run: a tiny one reaches none, and ours are for our own sizes and data."""
        if self.tiny:
            return frozenset()
        return frozenset(Source) - ({Source.OURS} if self.workers or self.dim or self.data else set())

    def generator(self, *names: str | int) -> np.random.Generator:
        """A generator for the part of the experiment that ``names`` name; independent of the order of calls."""
        words = [zlib.crc32(name.encode()) if isinstance(name, str) else name for name in names]
        return np.random.default_rng([self.seed, *words])


@dataclass(frozen=True, slots=True)
class Experiment:
    """One claim, and what carries it out."""

    name: str
    title: str
    paper: str
    claim: str
    """Claim of the paper (or of our derivation from it), in a sentence or two."""
    run: Callable[[Run], Outcome]
    row: int | None = None
    """Its number among the ten claims that the project set out to show."""
