"""The cost model: how long an all-reduce takes, from a few measured constants (alpha-beta, Hockney 1994).

    seconds(elements) = alpha(n) + elements * max(wire / rate, beta(n))

alpha is latency, wire the bytes of an element on a worker's link (`advise.wire`), beta the time that processors need
for an element, n the number of workers. Link and processors work at the same time, so the slower one counts.

On one machine, where all workers and the switch share the cores, alpha = a0 + a1 n and beta = b0 + b1 n are fitted to
measured all-reduces. Where workers and switch have machines of their own, beta is the largest of the CPU time of one
worker and of the switch, which grows with n: what this machine cannot measure end to end, but knows the parts of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .fit import fit
from .wire import GLOO, bytes_per_element

Placement = Literal["one-machine", "own-machines"]
"""All on this machine; or a machine like this one for each worker and the switch."""
Limit = Literal["latency", "link", "CPU", "switch CPU"]


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured all-reduce over links without a rate. ``worker_cpu_s``: CPU time of one worker in it."""

    system: str
    workers: int
    elements: int
    seconds: float
    worker_cpu_s: float


@dataclass(frozen=True, slots=True)
class SwitchSample:
    """CPU time of the software switch for an element from all workers."""

    format: str
    workers: int
    cpu_s_per_element: float


@dataclass(frozen=True, slots=True)
class Line:
    """at_zero + slope * workers."""

    at_zero: float
    slope: float

    def at(self, workers: int) -> float:
        return self.at_zero + self.slope * workers


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of one system, in seconds, and in seconds per element."""

    system: str
    alpha: Line
    beta: Line
    worker: Line
    """CPU time of one worker for an element."""
    switch: Line
    """CPU time of the switch for an element from every worker; zero for Gloo."""

    def cost(self, workers: int, bits_per_s: float, placement: Placement = "one-machine") -> Cost:
        """Of an all-reduce between ``workers``; ``bits_per_s`` 0: a link without a rate."""
        wire = bytes_per_element(self.system, workers) * 8 / bits_per_s if bits_per_s else 0.0
        rates: dict[Limit, float]
        if placement == "one-machine":
            alpha, rates = self.alpha.at(workers), {"link": wire, "CPU": self.beta.at(workers)}
        else:
            # Gloo's ring has 2 (n - 1) steps one after another; between two workers nothing waits for a core.
            alpha = self.alpha.at(2) * (workers - 1 if self.system == GLOO else 1)
            rates = {"link": wire, "CPU": self.worker.at(workers), "switch CPU": self.switch.at(workers)}
        limit = max(rates, key=lambda name: rates[name])
        return Cost(alpha, rates[limit], limit)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of all-reduces of any size. ``limit``: what the time of an element comes from."""

    alpha_s: float
    element_s: float
    limit: Limit

    def seconds(self, elements: int) -> float:
        return self.alpha_s + elements * self.element_s

    def limit_of(self, elements: int) -> Limit:
        """What an all-reduce of ``elements`` spends most of its time on."""
        return "latency" if self.alpha_s > elements * self.element_s else self.limit


def fit_costs(samples: Iterable[Sample], switch: Sequence[SwitchSample]) -> dict[str, Costs]:
    """The constants of every system in ``samples``, each measured with at least two numbers of workers and sizes.

    Raises ValueError if the samples of a system do not determine them.
    """
    by_system: dict[str, list[Sample]] = {}
    for sample in samples:
        by_system.setdefault(sample.system, []).append(sample)
    return {system: _fit_system(system, mine, switch) for system, mine in by_system.items()}


def _fit_system(system: str, samples: Sequence[Sample], switch: Sequence[SwitchSample]) -> Costs:
    if len({s.workers for s in samples}) < 2 or len({s.elements for s in samples}) < 2:
        raise ValueError(f"{system}: a fit needs two numbers of workers, and two sizes")
    rows = [(1, s.workers, s.elements, s.elements * s.workers) for s in samples]
    a0, a1, b0, b1 = fit(rows, [s.seconds for s in samples])
    # CPU time is measured well where there is much of it.
    largest = max(s.elements for s in samples)
    large = [s for s in samples if s.elements == largest]
    worker = fit([(1, s.workers) for s in large], [s.worker_cpu_s / s.elements for s in large])
    ours = [s for s in switch if s.format == system]
    at_switch = fit([(1, s.workers) for s in ours], [s.cpu_s_per_element for s in ours]) if ours else (0.0, 0.0)
    return Costs(system, Line(a0, a1), Line(b0, b1), Line(*worker), Line(*at_switch))
