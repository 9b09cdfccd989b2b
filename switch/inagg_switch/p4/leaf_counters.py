"""The counters of a leaf of a tree: those of `counters`, and its partial sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from inagg_wire.layout import Op

from ..binding import Binding
from ..driver import JobCounters
from . import counters
from .counters import ROW_SENT, Read
from .plane import Cell

ROW_PARTIALS: Final = 4
"""The counters ``partials`` of a job: by whether they had gone up before, and op."""


def _partials(row: int, op: Op, *, again: bool) -> Cell:
    return Cell("partials", row * ROW_PARTIALS + 2 * again + op - 1)


def job_cells(row: int, workers: int) -> Iterator[Cell]:
    yield from counters.job_cells(row, workers)
    yield from (_partials(row, op, again=again) for again in (False, True) for op in Op)


def job_counters(row: int, workers: int, read: Read) -> JobCounters:
    first, again = (sum(read(_partials(row, op, again=a)).packets for op in Op) for a in (False, True))
    return replace(counters.job_counters(row, workers, read), partials=first, partials_again=again)


def results_sent(row: int, binding: Binding, read: Read) -> tuple[int, int]:
    """Datagrams of results and of partial sums, and their bytes of UDP payload."""
    datagrams = size = 0
    for op in Op:
        down = read(Cell("sent", row * ROW_SENT + op)).packets
        up = sum(read(_partials(row, op, again=again)).packets for again in (False, True))
        datagrams += down + up
        size += down * binding.result_bytes(op) + up * binding.partial_bytes(op)
    return datagrams, size
