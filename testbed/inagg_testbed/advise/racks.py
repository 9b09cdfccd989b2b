"""The cost model where workers stand in racks: what trunks carry, and what switches in the racks change.

A trunk is the way of a rack's workers to everyone else. It carries, for an element and in its busier direction,

    Gloo's ring             what a worker's link carries: the ring leaves and enters each rack once
    one switch behind it    the contributions and the results of all workers of the rack
    a tree                  one partial sum up and one result down, however many workers (`wire.trunk_bytes`)

A tree has a leaf in each rack and a root. With machines of their own, a leaf spends what a switch with its workers
does, and on its uplink what the root spends on one child; the root, what a switch spends on as many workers as there
are racks, in the format whose contributions are like the partial sums. On one machine all these processor times add
up, so beta grows as their sum does. Each level of switches costs a latency, so alpha doubles: that is the most it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from inagg_wire.formats import CHILDREN_MAX, FORMATS, JobFormat, job_format
from inagg_wire.layout import Encoding, Op

from .model import Cost, Costs, Curve, Placement
from .wire import GLOO, bytes_per_element, trunk_bytes

TREE_LEVELS: Final = 2
LESS: Final = 0.05
"""A tree pays where its trunks carry at least this share less."""
AGAIN: Final = "-reencode"
"""How formats end whose partial sums are rounded again; for workers and one switch they are the format before it."""
LIKE: Final = {
    Encoding.FIX32: "fix32", Encoding.INT16: "fix32", Encoding.DITH8: "dith8", Encoding.NAT8: "nat8",
    Encoding.NAT4: "nat4",
}  # fmt: skip
"""Whose contributions are like partial sums of an encoding, or wider."""


@dataclass(frozen=True, slots=True)
class Racks:
    """``count`` racks with as many workers each, or one more in some. ``bits_per_s``: of a trunk; 0: no rate."""

    count: int
    bits_per_s: float

    def workers_of(self, workers: int) -> int:
        """How many of ``workers`` are in the fullest rack."""
        return -(-workers // self.count)


def base_of(system: str) -> str:
    """The format with the same workers: the name without `AGAIN`."""
    return system.removesuffix(AGAIN)


def for_trees_only(system: str) -> bool:
    """Whether a system differs from another only between switches."""
    return system != base_of(system)


FLAT_FORMATS: Final = tuple(name for name in FORMATS if not for_trees_only(name))
"""Formats that one switch tells apart."""


def flat_trunk_bytes(system: str, workers: int, racks: Racks) -> float:
    """Bytes that a trunk carries for an element in its busier direction with Gloo, or through one switch behind it."""
    if system == GLOO:
        return bytes_per_element(GLOO, workers) if racks.count > 1 else 0.0
    return racks.workers_of(workers) * bytes_per_element(system, workers)


def pays_from(fmt: JobFormat, racks: Racks) -> int | None:
    """From how many workers in a rack on a tree's trunks carry less than those before one switch; None if never."""
    flat = base_of(fmt.name)
    for mine in range(1, CHILDREN_MAX + 1):
        workers = mine * racks.count
        if trunk_bytes(fmt, workers) < (1 - LESS) * flat_trunk_bytes(flat, workers, racks):
            return mine
    return None


def flat_cost(
    costs: Mapping[str, Costs], system: str, workers: int, bits_per_s: float, placement: Placement, racks: Racks | None
) -> Cost:
    """Cost of an all-reduce with Gloo, or through one switch, behind the trunks if there are racks. Raises KeyError."""
    trunk = flat_trunk_bytes(system, workers, racks) * 8 / racks.bits_per_s if racks and racks.bits_per_s else 0.0
    return costs[base_of(system)].cost(workers, bits_per_s, placement, trunk_s=trunk)


def tree_cost(
    costs: Mapping[str, Costs], system: str, workers: int, bits_per_s: float, placement: Placement, racks: Racks
) -> Cost:
    """Cost of an all-reduce through a leaf in each rack and a root.

    Raises KeyError for a system without constants, ValueError for a format that has no blocks for a tree.
    """
    fmt, own = job_format(system), costs[base_of(system)]
    trunk = trunk_bytes(fmt, workers) * 8 / racks.bits_per_s if racks.bits_per_s else 0.0
    root_s = costs[LIKE[fmt.partial(Op.SUM, workers)]].switch.at(racks.count)
    uplink_s = root_s / racks.count
    leaf_s = own.switch.at(racks.workers_of(workers)) + uplink_s
    flat_s = workers * own.worker.at(workers) + own.switch.at(workers)
    all_s = workers * own.worker.at(workers) + racks.count * leaf_s + root_s
    grown = all_s / flat_s if flat_s else 1.0
    tree = replace(
        own,
        alpha=_scaled(own.alpha, TREE_LEVELS),
        beta=_scaled(own.beta, grown),
        large=_scaled(own.large, grown),
        switch=_always(max(leaf_s, root_s)),
    )
    return tree.cost(workers, bits_per_s, placement, trunk_s=trunk)


def _scaled(curve: Curve, factor: float) -> Curve:
    return Curve(tuple((workers, factor * value) for workers, value in curve.points))


def _always(value: float) -> Curve:
    return Curve(((1, value), (2, value)))
