"""The switch's state as arrays. Their names are those of the P4 registers and table columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from inagg_wire.errors import Reason
from inagg_wire.formats import WORKERS_MAX
from inagg_wire.layout import Op

OPS = max(Op) + 1
REASONS = max(Reason) + 1


class Slots(NamedTuple):
    """One row per slot."""

    tag: Any
    """uint32: the generation that the slot serves; 0 since the lease cleared it."""
    seen: Any
    """uint32: bitmap of the workers whose contribution is in ``acc``."""
    op: Any
    """uint8: the op of those contributions."""
    since: Any
    """float64: when the first of them came, in seconds of the caller's clock; for `inagg why` only."""
    acc: Any
    """int32, (slots, lanes): the sums."""


class Jobs(NamedTuple):
    """The binding table: one row per bound job; columns that depend on the op have shape (rows, OPS)."""

    row: Any
    """int32, by job number: its row, or -1."""
    token: Any
    base: Any
    mask: Any
    """int64: the number of slots less one; a slot s is in the lease if ``s & ~mask == base``."""
    full: Any
    seed: Any
    levels: Any
    shift: Any
    encoding: Any
    lanes: Any
    result_encoding: Any
    result_bytes: Any


class Counts(NamedTuple):
    """int64 counters."""

    drops: Any
    """By reason."""
    notices: Any
    """One."""
    contributions: Any
    """From here on: by job row and rank."""
    duplicates: Any
    resends: Any
    stale: Any
    bytes_in: Any
    results: Any
    """From here on: by job row."""
    invalid_codes: Any


class Out(NamedTuple):
    """Datagrams to send: ``buffer`` holds them back to back, in runs of equal size and destination."""

    buffer: Any
    """uint8."""
    row: Any
    """int32, by run: the job's row."""
    worker: Any
    """int32, by run: the rank to send to, or -1 for all ranks of the job."""
    size: Any
    """int64, by run: bytes per datagram."""
    count: Any
    """int64, by run: datagrams."""


def make_slots(slots: int, lanes: int) -> Slots:
    """Cleared slots. Memory for ``acc`` is taken from the system when it is first written."""
    row = -(-lanes // 16) * 16  # rows start on cache lines
    return Slots(
        tag=np.zeros(slots, np.uint32),
        seen=np.zeros(slots, np.uint32),
        op=np.zeros(slots, np.uint8),
        since=np.zeros(slots, np.float64),
        acc=np.zeros((slots, row), np.int32),
    )


def make_jobs(rows: int) -> Jobs:
    """An empty binding table."""

    by_row = [np.zeros(rows, np.int64) for _ in range(5)]
    by_op = [np.zeros((rows, OPS), np.int64) for _ in range(6)]
    return Jobs(np.full(1 << 16, -1, np.int32), *by_row, *by_op)


def make_counts(rows: int) -> Counts:
    """Counters at zero."""
    by_worker = [np.zeros((rows, WORKERS_MAX), np.int64) for _ in range(5)]
    by_row = [np.zeros(rows, np.int64) for _ in range(2)]
    return Counts(np.zeros(REASONS, np.int64), np.zeros(1, np.int64), *by_worker, *by_row)


def make_out(size_bytes: int, runs: int) -> Out:
    """Room for ``size_bytes`` of datagrams in at most ``runs`` runs."""
    return Out(
        np.zeros(size_bytes, np.uint8),
        np.zeros(runs, np.int32),
        np.zeros(runs, np.int32),
        np.zeros(runs, np.int64),
        np.zeros(runs, np.int64),
    )
