"""Datagrams to send, in runs of datagrams of one size that go to the same peers: see `Out`."""

from __future__ import annotations

from typing import Any

from inagg_link.jit import inline, jit
from inagg_wire.layout import HEADER_BYTES, UDP_PAYLOAD_BYTES_MAX

from .replies import write_ack
from .state import Jobs, Out

RUN_BYTES = UDP_PAYLOAD_BYTES_MAX
"""Bytes of one run."""


@jit
def begin_run(out: Out, run: int, row: int, to: int, but: int, alone: int, size: int, count: int) -> None:
    new = out.runs[run]
    new.row, new.to, new.but, new.alone, new.size, new.count = row, to, but, alone, size, count


@jit
def close_run(out: Out, run: int, at: int, jobs: Jobs) -> tuple[int, int]:
    """If the last run has results for one child alone, acknowledge them to the others. Takes and returns the number of
    the last run, and where the next datagram stands."""
    if run < 0 or out.runs[run].alone == 0 or jobs.table[out.runs[run].row].children == 1:
        return run, at
    last = out.runs[run]
    start = at - last.count * last.size
    for i in range(last.count):
        write_ack(out.buffer[at + i * HEADER_BYTES :], out.buffer[start + i * last.size :], last.row, jobs)
    begin_run(out, run + 1, last.row, -1, last.to, 0, HEADER_BYTES, last.count)
    return run + 1, at + last.count * HEADER_BYTES


@inline
def room_for(out: Out, run: int, at: int, row: int, to: int, alone: int, size: int, jobs: Jobs) -> tuple[Any, Any]:
    """The number of the run, at ``run`` or after it, for one more datagram of ``size`` bytes, ``alone`` for ``to`` or
    not; and where it is to stand, at ``at`` or after it. Counts it."""
    last = out.runs[run]
    full = run < 0 or last.count == out.most or (last.count + 1) * size > RUN_BYTES
    if full or last.row != row or last.to != to or last.but >= 0 or last.alone != alone or last.size != size:
        run, at = close_run(out, run, at, jobs)
        run += 1
        begin_run(out, run, row, to, -1, alone, size, 0)
    out.runs[run].count += 1
    return run, at
