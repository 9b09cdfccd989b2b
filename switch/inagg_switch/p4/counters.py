"""Counters of the driver, made of those of the P4 program: what both programs count alike.

A P4 counter adds one, and counts from when the program was loaded: jobs come and go, so theirs are differences. What
the program cannot add up itself (bytes sent, invalid lanes) follows from what it can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from inagg_wire.errors import Reason
from inagg_wire.layout import HEADER_BYTES

from ..driver import BY_RANK, TOTALS, Counters, JobCounters
from .plane import Cell, Count

FRAME_OVERHEAD_BYTES: Final = 14 + 20 + 8
"""Ethernet, IPv4 and UDP: what the program counts besides the UDP payload. (Frames that were padded to Ethernet's least
length count with their padding; no contribution is that short.)"""

DATAGRAMS_IN: Final = Cell("datagrams_in", 0)
REFUSED: Final = tuple(Cell("refused", int(reason)) for reason in Reason)
LINK_REFUSED: Final = {
    "bad_lengths": Cell("refused", 48),
    "ip_checksum": Cell("refused", 49),
    "fragment": Cell("refused", 50),
}
"""Counters for `Counters.link_drops`: the ``LINK_`` of p4/include/layout.p4."""
LINK_DROPS: Final = {**LINK_REFUSED, "not_ours": Cell("not_ours", 0)}
"""All counters for `Counters.link_drops`: frames to the switch itself, too, that it has no answer for."""

Read = Callable[[Cell], Count]


def payload_bytes(count: Count) -> int:
    """UDP payload bytes of counted frames."""
    return count.frame_bytes - FRAME_OVERHEAD_BYTES * count.packets


def drops_by_reason(read: Read) -> dict[Reason, int]:
    """Datagrams that were dropped."""
    return {reason: count for reason, cell in zip(Reason, REFUSED, strict=True) if (count := read(cell).packets)}


def arrivals(read: Read, notices: int) -> Counters:
    """Counters of no job, with so many notices."""
    arrived = read(DATAGRAMS_IN)
    return Counters(
        datagrams_in=arrived.packets,
        bytes_in=payload_bytes(arrived),
        datagrams_out=notices,
        bytes_out=notices * HEADER_BYTES,
        notices=notices,
        drops=drops_by_reason(read),
        link_drops={why: count for why, cell in LINK_DROPS.items() if (count := read(cell).packets)},
    )


def since(before: Mapping[Cell, Count], now: Mapping[Cell, Count]) -> Read:
    """Reads what ``now`` has more than ``before``."""

    def read(cell: Cell) -> Count:
        old, new = before.get(cell, Count(0, 0)), now[cell]
        return Count(new.packets - old.packets, new.frame_bytes - old.frame_bytes)

    return read


def add(total: JobCounters, more: JobCounters) -> JobCounters:
    """The sum; an epoch may have more workers than the one before."""

    def by_rank(a: list[int], b: list[int]) -> list[int]:
        n = max(len(a), len(b))
        return [x + y for x, y in zip(a + [0] * (n - len(a)), b + [0] * (n - len(b)), strict=True)]

    lists: dict[str, Any] = {field: by_rank(getattr(total, field), getattr(more, field)) for field in BY_RANK}
    return JobCounters(**lists, **{field: getattr(total, field) + getattr(more, field) for field in TOTALS})
