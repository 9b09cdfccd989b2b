"""Requests to a switch that runs the P4 program: entries, groups, counters, slots, as plain data.

Names are those of the P4 program (`p4/README.md`). A client of P4Runtime or BF Runtime turns them into numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Masked(NamedTuple):
    """A ternary field: the bits of ``value`` where ``mask`` has ones, zero elsewhere."""

    value: int
    mask: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A table entry. Fields of ``match`` that are left out are not compared (ternary tables only).

    ``action``: empty in a table of data without actions. ``priority``: among ternary entries that fit, the largest
    wins; 0 in exact tables.
    """

    table: str
    match: tuple[tuple[str, int | Masked], ...]
    action: str
    params: tuple[tuple[str, int], ...] = ()
    priority: int = 0


class Replica(NamedTuple):
    """One copy of a multicast packet: where it leaves, and the number by which the egress knows it."""

    port: int
    instance: int


@dataclass(frozen=True, slots=True)
class Group:
    """A multicast group."""

    number: int
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """Add what is not there."""

    what: Entry | Group


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove what is there."""

    what: Entry | Group


Update = Insert | Delete


class Cell(NamedTuple):
    """One counter of an array of counters."""

    counter: str
    offset: int
    """The index in the array."""


class Count(NamedTuple):
    """Value of a counter. ``frame_bytes``: of whole frames; 0 in counters that count packets only."""

    packets: int
    frame_bytes: int


class SlotState(NamedTuple):
    """State of a slot. ``tag``, ``seen`` and ``here`` are those of ``epoch``; for any other they count as 0."""

    epoch: int
    tag: int
    seen: int
    here: int
    """Whether the result is here: 1 when the sum is complete; at a leaf of a tree, when the parent has answered."""


class Plane(Protocol):
    """A switch that runs the P4 program. Methods raise `driver.DriverError`."""

    def write(self, updates: Sequence[Update]) -> None:
        """Do ``updates``, in order."""

    def counts(self, cells: Sequence[Cell]) -> Mapping[Cell, Count]:
        """The values of these counters, all of them."""

    def slots(self, first: int, count: int) -> list[SlotState] | None:
        """The state of ``count`` slots from ``first``; None if this switch cannot be asked."""

    def died(self) -> str | None:
        """Reason why the switch serves no more; None if it does. For any thread."""

    @property
    def sentinels(self) -> tuple[int, ...]:
        """Descriptors that become readable when it serves no more. For any thread."""

    def close(self) -> None:
        """Let go of the switch, which goes on with what it was told. No error if called twice."""
