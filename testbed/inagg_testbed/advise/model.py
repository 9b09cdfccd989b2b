"""The cost model: how long an all-reduce takes, from a few measured constants (alpha-beta, Hockney 1994).

    seconds(elements) = alpha(n) + elements * ((wire / rate)^p + beta(n)^p)^(1/p)

alpha is latency, wire the bytes of an element on a worker's link (`advise.wire`), beta the time that processors need
for an element, n the number of workers. Link and processors work at the same time, so the slower one counts most; were
they never to wait for each other it alone would, and p be infinite. p is fitted to all-reduces over a shaped link.

Above `LARGE` elements beta is another, measured one: with Gloo an element of a tensor of 128 MiB takes up to a quarter
longer than one of 32 MiB.

On one machine, where all workers and the switch share the cores, alpha and beta are fitted to measured all-reduces, for
each number of workers that was measured, and interpolated between them (they are no straight lines: with more processes
than cores, each waits for others to be scheduled). Where workers and switch have machines of their own, beta is the
largest of the CPU time of one worker and of the switch, which grows with n: what this machine cannot measure end to
end, but knows the parts of.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .fit import fit
from .wire import GLOO, bytes_per_element

Placement = Literal["one-machine", "own-machines"]
"""All on this machine; or a machine like this one for each worker and the switch."""
Limit = Literal["latency", "link", "trunk", "CPU", "switch CPU"]


LARGE = 1 << 23
"""32 MiB of float32, also the largest piece of memory that glibc's malloc keeps for later (mallopt(3))."""
EXPONENTS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, math.inf)
"""Exponents that are tried: from the sum of both times to the larger one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured all-reduce, and the CPU time in it of one worker and of the switch."""

    system: str
    workers: int
    elements: int
    seconds: float
    worker_cpu_s: float
    switch_cpu_s: float
    bits_per_s: float = 0.0
    """Rate of each worker's link; 0: without a rate."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A constant that depends on the number of workers: measured points (workers, value), two at least, by workers."""

    points: tuple[tuple[int, float], ...]

    def at(self, workers: int) -> float:
        """Between two points on the line through them; beyond the ends on that of the two last, but not below zero."""
        inner = (k for k in range(1, len(self.points) - 1) if workers <= self.points[k][0])
        k = next(inner, len(self.points) - 1)
        (n0, v0), (n1, v1) = self.points[k - 1], self.points[k]
        return max(0.0, v0 + (v1 - v0) * (workers - n0) / (n1 - n0))


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of one system, in seconds, and in seconds per element."""

    system: str
    alpha: Curve
    beta: Curve
    large: Curve
    """beta above `LARGE`."""
    worker: Curve
    """CPU time of one worker for an element."""
    switch: Curve
    """CPU time of the switch for an element from every worker; zero for Gloo."""
    sharpness: float = math.inf
    """The exponent p above."""

    def cost(
        self, workers: int, bits_per_s: float, placement: Placement = "one-machine", *, trunk_s: float = 0.0
    ) -> Cost:
        """Cost of an all-reduce between ``workers``; ``bits_per_s`` 0: a link without a rate. ``trunk_s``: seconds for
        an element on the trunk of a rack, if there are racks (`advise.racks`)."""
        wire = bytes_per_element(self.system, workers) * 8 / bits_per_s if bits_per_s else 0.0
        rates: dict[Limit, float] = {"link": wire, "trunk": trunk_s}
        if placement == "one-machine":
            # All links work at the same time, whatever the processors do: the slowest one counts.
            links, cpu = max(wire, trunk_s), self.beta.at(workers)
            rates["CPU"] = cpu
            alpha = self.alpha.at(workers)
            element_s = norm((links, cpu), self.sharpness)
            large_s = norm((links, self.large.at(workers)), self.sharpness)
        else:
            # Gloo's ring has 2 (n - 1) steps one after another; between two workers nothing waits for a core.
            alpha = self.alpha.at(2) * (workers - 1 if self.system == GLOO else 1)
            rates |= {"CPU": self.worker.at(workers), "switch CPU": self.switch.at(workers)}
            # The exponent is that of cores which links and all processes share; a pipeline of machines is as fast as
            # its slowest part.
            element_s = large_s = max(rates.values())
        limit = max(rates, key=lambda name: rates[name])
        return Cost(alpha, element_s, large_s, limit)


def norm(values: Sequence[float], exponent: float) -> float:
    """(sum of value^exponent)^(1/exponent) of values that are not negative; the largest for an infinite exponent."""
    largest = max(values)
    if not largest or math.isinf(exponent):
        return largest
    total: float = sum((value / largest) ** exponent for value in values)
    return float(largest * total ** (1 / exponent))


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of all-reduces of any size. ``limit``: what the time of an element comes from."""

    alpha_s: float
    element_s: float
    large_s: float
    """``element_s`` above `LARGE`."""
    limit: Limit

    def seconds(self, elements: int) -> float:
        return self.alpha_s + elements * (self.large_s if elements > LARGE else self.element_s)

    def limit_of(self, elements: int) -> Limit:
        """Return what an all-reduce of ``elements`` spends most of its time on."""
        return "latency" if self.alpha_s > elements * self.element_s else self.limit


def fit_costs(samples: Iterable[Sample]) -> dict[str, Costs]:
    """The constants of every system in ``samples``, each measured with at least two numbers of workers and sizes.

    A system's samples over links with a rate determine its exponent; systems without any share one that all those
    samples determine; if there is none at all it is infinite.
    Raises ValueError if the samples of a system do not determine the others.
    """
    by_system: dict[str, list[Sample]] = {}
    shaped: list[Sample] = []
    for sample in samples:
        if sample.bits_per_s:
            shaped.append(sample)
        else:
            by_system.setdefault(sample.system, []).append(sample)
    costs = {system: _fit_system(system, mine) for system, mine in by_system.items()}
    known = [sample for sample in shaped if sample.system in costs]
    if not known:
        return costs

    shared = _fit_exponent(costs, known)
    for system, cost in costs.items():
        mine = [sample for sample in known if sample.system == system]
        costs[system] = replace(cost, sharpness=_fit_exponent(costs, mine) if mine else shared)
    return costs


def _fit_exponent(costs: Mapping[str, Costs], samples: Sequence[Sample]) -> float:
    """Return the one of `EXPONENTS` that fits ``samples`` best."""

    def misfit(exponent: float) -> float:
        total = 0.0
        for s in samples:
            cost = replace(costs[s.system], sharpness=exponent).cost(s.workers, s.bits_per_s)
            total += (cost.seconds(s.elements) / s.seconds - 1) ** 2
        return total

    return min(EXPONENTS, key=misfit)


def _fit_system(system: str, samples: Sequence[Sample]) -> Costs:
    counts = sorted({s.workers for s in samples})
    sizes = [{s.elements for s in samples if s.workers == n and s.elements <= LARGE} for n in counts]
    if len(counts) < 2 or any(len(of_count) < 2 for of_count in sizes):
        raise ValueError(f"{system}: a fit needs two numbers of workers, and two sizes with each")
    alpha, beta, large, worker, switch = [], [], [], [], []
    for n in counts:
        mine = [s for s in samples if s.workers == n and s.elements <= LARGE]
        a, b = fit([(1, s.elements) for s in mine], [s.seconds for s in mine])
        alpha.append((n, a))
        beta.append((n, b))
        above = [(s.seconds - a) / s.elements for s in samples if s.workers == n and s.elements > LARGE]
        large.append((n, max(0.0, statistics.mean(above)) if above else b))
        # CPU time is counted in ticks: only where there is much of it, it is measured well
        largest = max(mine, key=lambda s: s.elements)
        worker.append((n, largest.worker_cpu_s / largest.elements))
        switch.append((n, 0.0 if system == GLOO else largest.switch_cpu_s / largest.elements))
    a_curve, b_curve, l_curve, w_curve, s_curve = (Curve(tuple(c)) for c in (alpha, beta, large, worker, switch))
    return Costs(system, a_curve, b_curve, l_curve, w_curve, s_curve)
