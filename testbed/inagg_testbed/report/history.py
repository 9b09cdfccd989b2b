"""Plain data of a report: filled while something runs, drawn afterwards. Needs numpy only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

NAMES: Final = {"software": "switch", "tree": "tree", "bmv2": "bmv2", "gloo": "Gloo"}
"""Names of systems for people."""


@dataclass(slots=True)
class History:
    """A training as rank 0 saw it, step by step."""

    system: str
    """software, tree, bmv2 or gloo."""
    format: str
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    """After each epoch, on the test data, 0 to 1."""
    round_trips_s: list[float] = field(default_factory=list)
    resent: list[int] = field(default_factory=list)
    """Datagrams sent again since the beginning."""
    computing_ms: float = 0.0
    """A step without communication, on all workers at once; median."""
    transport_ms: dict[str, float] = field(default_factory=dict)
    """Times of the transport's thread in a step, in the mean, beside the computation: encode, decode, sockets, wait."""
    exponents: Exponents | None = None
    """Exponents of the gradients of one step, before they are summed."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """An all-reduce of a size."""

    system: str
    format: str
    workers: int
    elements: int
    elements_per_s: float


@dataclass(frozen=True, slots=True)
class StepBar:
    """The parts of a step's time, in order, in milliseconds; names are those that `figures.PARTS` knows."""

    name: str
    parts_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Exponents:
    """How far below the scale of its block each gradient is. ``counts``: by octave, 0 for the scale itself, then
    negative. ``octaves``: how many of them the format's window has, from 0 down."""

    format: str
    octaves: int
    counts: Mapping[int, int]
    zeros: int

    @property
    def elements(self) -> int:
        return self.zeros + sum(self.counts.values())

    @property
    def inside(self) -> float:
        """The share of the elements that are not zero that have a level of their own below or at them."""
        inside = sum(count for octave, count in self.counts.items() if -octave < self.octaves)
        return inside / max(1, sum(self.counts.values()))


def count_exponents(values: NDArray[np.float32], lanes: int, format_: str, octaves: int) -> Exponents:
    """Histogram of ``values`` of shape (elements,), finite, in blocks of ``lanes``.

    The scale is the smallest power of two that is not below the block's largest magnitude: here of one worker's values,
    on the wire of all workers' (so at least this). Octave o holds the magnitudes from scale * 2^o up to below the next.
    """
    magnitudes = np.abs(np.pad(values, (0, -len(values) % lanes))).reshape(-1, lanes)
    fractions, powers = np.frexp(magnitudes)  # m = f * 2^p, f in [0.5, 1): 2^(p-1) <= m < 2^p
    # the largest magnitude's exponent, rounded up unless it is a power of two itself
    rounded_up = np.where(fractions == 0.5, powers - 1, powers)
    scale = np.where(magnitudes > 0, rounded_up, np.iinfo(np.int32).min).max(axis=1, keepdims=True)
    found = (powers - 1 - scale)[magnitudes > 0]
    names, counts = np.unique(found, return_counts=True)
    by_octave = {int(o): int(c) for o, c in zip(names, counts, strict=True)}
    return Exponents(format_, octaves, by_octave, len(values) - len(found))
