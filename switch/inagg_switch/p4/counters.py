"""Counters of the driver, made of those of the P4 program.

A P4 counter adds one, and counts from when the program was loaded: jobs come and go, so theirs are differences. What
the program cannot add up itself (bytes sent, invalid lanes) follows from what it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from inagg_wire.errors import Reason
from inagg_wire.layout import HEADER_BYTES, Op

from ..binding import Binding
from ..driver import BY_RANK, TOTALS, Counters, JobCounters
from .entries import ROW_WORKERS
from .plane import Cell, Count

FRAME_OVERHEAD_BYTES: Final = 14 + 20 + 8
"""Ethernet, IPv4 and UDP: what the program counts besides the UDP payload. (Frames that were padded to Ethernet's least
length count with their padding; no contribution is that short.)"""

INVALID_BITS: Final = 10
"""The counters ``invalid_codes`` of a job: number i counts datagrams whose number of invalid lanes has bit i set."""
ROW_INVALID: Final = 16
ROW_SENT: Final = 4
ACKS: Final = 3
"""Index of acknowledgements among the counters ``sent`` of a job, beside those of the ops."""
NOTICES_SENT: Final = Cell("sent", 0)
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
ARRAYS: Final = {
    "contributions": "contributions",
    "duplicates": "duplicates",
    "resends": "resends",
    "stale": "stale",
    "bytes_in": "admitted",
}
"""Field of `JobCounters` -> array of counters, by row * `ROW_WORKERS` + rank."""


def switch_cells() -> Iterator[Cell]:
    """The counters that are no job's."""
    yield from (DATAGRAMS_IN, NOTICES_SENT, *REFUSED, *LINK_DROPS.values())


def job_cells(row: int, workers: int) -> Iterator[Cell]:
    """The counters of a job."""
    for name in ARRAYS.values():
        yield from (Cell(name, row * ROW_WORKERS + rank) for rank in range(workers))
    yield Cell("results", row)
    yield from (Cell("invalid_codes", row * ROW_INVALID + bit) for bit in range(INVALID_BITS))
    yield from (Cell("sent", row * ROW_SENT + what) for what in (*Op, ACKS))


def payload_bytes(count: Count) -> int:
    """UDP payload bytes of counted frames."""
    return count.frame_bytes - FRAME_OVERHEAD_BYTES * count.packets


def job_counters(row: int, workers: int, read: Read) -> JobCounters:
    """Counters of a job."""
    by_rank = {
        field: [read(Cell(name, row * ROW_WORKERS + rank)) for rank in range(workers)] for field, name in ARRAYS.items()
    }
    bytes_in = [payload_bytes(count) for count in by_rank.pop("bytes_in")]
    packets: dict[str, Any] = {field: [count.packets for count in counts] for field, counts in by_rank.items()}
    return JobCounters(
        **packets,
        bytes_in=bytes_in,
        results=read(Cell("results", row)).packets,
        invalid_codes=sum(
            read(Cell("invalid_codes", row * ROW_INVALID + bit)).packets << bit for bit in range(INVALID_BITS)
        ),
    )


def results_sent(row: int, binding: Binding, read: Read) -> tuple[int, int]:
    """Datagrams of results and acknowledgements of a job, each copy counted, and their bytes of UDP payload."""
    counts = {op: read(Cell("sent", row * ROW_SENT + op)).packets for op in Op}
    acks = read(Cell("sent", row * ROW_SENT + ACKS)).packets
    size = acks * HEADER_BYTES + sum(binding.result_bytes(op) * count for op, count in counts.items())
    return acks + sum(counts.values()), size


def switch_counters(read: Read) -> Counters:
    """Counters of no job: arrivals, drops, notices."""
    return arrivals(read, read(NOTICES_SENT).packets, LINK_DROPS)


def drops_by_reason(read: Read) -> dict[Reason, int]:
    """Datagrams that were dropped."""
    return {reason: count for reason, cell in zip(Reason, REFUSED, strict=True) if (count := read(cell).packets)}


def arrivals(read: Read, notices: int, link: Mapping[str, Cell]) -> Counters:
    """`switch_counters` with so many notices; ``link``: the cells of `Counters.link_drops`."""
    arrived = read(DATAGRAMS_IN)
    return Counters(
        datagrams_in=arrived.packets,
        bytes_in=payload_bytes(arrived),
        datagrams_out=notices,
        bytes_out=notices * HEADER_BYTES,
        notices=notices,
        drops=drops_by_reason(read),
        link_drops={why: count for why, cell in link.items() if (count := read(cell).packets)},
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
