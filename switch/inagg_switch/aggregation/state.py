"""The switch's state as arrays.

Columns ``tag``, ``seen``, ``op``, ``here`` and ``asked`` of `SLOT` are the registers ``slot_*`` of the bmv2 programs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from inagg_wire.errors import Reason
from inagg_wire.formats import CHILDREN_MAX
from inagg_wire.layout import OWNER_MAX, Op
from inagg_wire.noise import GROUP_LANES, group_table

from ..driver import BY_RANK, TOTALS
from .peers import Peers

OPS = max(Op) + 1
NOTICES = max(Reason) + 1


SLOT = np.dtype(
    [("at", np.int64), ("since", np.float64)]
    + [(name, np.uint32) for name in ("tag", "seen", "here", "bare", "asked")]
    + [(name, np.uint8) for name in ("op", "lowest", "highest")],
    align=True,
)
"""A slot. ``tag``: the generation that it serves; 0 since the lease cleared it. ``seen``: bitmap of the children who
have contributed; ``op``: that of their contributions; ``since``: when the first of them came, in seconds of the
caller's clock, for `inagg why` only. ``here``: bitmap of the parts of the result that the parent has sent or
acknowledged; ``bare``: of those that it has acknowledged, as their result goes to a rank elsewhere; ``asked``: of the
children who have repeated their contribution since the partial sum went up last. ``lowest``, ``highest``: of the nat8
codes that it holds, see `inagg_switch.aggregation.deferred_sum.range_of_levels`.

``at``: where the row that has its contributions begins in `Slots.acc`; -1 if there is none, as before the first has
come, and when the sum is complete and its result is in `Slots.results`."""


class Slots(NamedTuple):
    """The slots, and what they hold.

    A slot has a row of ``acc`` only while it needs one, and takes the one that was given back last, which is still in
    the processor's cache. (Measured, 64 MiB between four workers on two cores: a tenth less of the switch's processor
    time than with a row for each slot, which workers' data drives out of the caches before it is used again.) Rows and
    results are as long as the job's blocks, so that those of small blocks share pages and come ahead of their use.
    """

    table: Any
    """`SLOT`, by number of the slot."""
    acc: Any
    """int32: the sums; or codes, where the job's are ``held``. Those of a lease begin at its base times `most_lanes`,
    and are as many as its slots."""
    free: Any
    """int64, (slots,): of each lease, from its base on, a stack of the rows that no slot has, by where they begin;
    `JOB`: ``free``."""
    results: Any
    """uint8: the payloads of complete results, of those that fit; others are made from ``acc`` anew. `JOB`:
    ``kept_at``."""
    sums: Any
    """int32, (lanes,): room for the sums of one slot."""
    codes: Any
    """uint8, (lanes,): room for the codes of one contribution."""


JOB = np.dtype(
    [(name, np.int64) for name in ("token", "base", "mask", "full", "seed", "children", "owners", "free")]
    + [(name, np.int64) for name in ("kept_at", "kept_bytes")]
    + [(name, np.int64) for name in ("part_bits", "up_base", "up_mask", "up_bits", "up_full", "key_0", "key_1")]
    + [
        (name, np.int64, OPS)
        for name in ("levels", "shift", "encoding", "lanes", "result_encoding", "result_bytes", "held")
    ]
    + [(name, np.int64, OPS) for name in ("up_encoding", "up_lanes", "up_bytes", "up_shift", "part_bytes")]
)
"""A binding. ``mask`` is the number of slots less one: a slot s is in the lease if ``s & ~mask == base``.
``owners``: `Binding.owners`; ``free``: how many rows no slot has, see `Slots`. ``kept_at``, ``kept_bytes``: the
result of slot s is in `Slots.results` from ``kept_at + s * kept_bytes`` on, if it has no more bytes. ``part_bits``:
log2 of `Binding.parts`. ``up_base``, ``up_mask``: the lease at the parent, as above; ``up_bits``: log2 of
`Uplink.parts`; ``up_full``: the bitmap of that many parts, or 0 where there is no parent; ``key_0``, ``key_1``:
`Uplink.key`. From ``levels`` on, what depends on the op, by op.
``held``: the encoding of the codes, if slots keep them as they came, or 0: see
`inagg_switch.aggregation.deferred_sum`. ``up_encoding``, ``up_lanes``, ``up_bytes``, ``up_shift``
(`JobFormat.partial_shift`): of a partial sum; ``part_bytes``: of the payload of one part of a result."""

COUNT = np.dtype([(name, np.int64, CHILDREN_MAX) for name in BY_RANK] + [(name, np.int64) for name in TOTALS])
"""Counters of a job; those of children by number."""

RUN = np.dtype([(name, np.int64) for name in ("row", "to", "but", "alone", "size", "count", "copies")])
"""Datagrams of equal ``size`` and destination: the job's row, and the child to send to, `PARENT`, or -1 for all
children but ``but`` (-1: but none); whether they are results that go to that child ``alone``, so that the next run has
to acknowledge them to the others; to how many addresses they go."""

# Records and not an array for each column, since Numba takes a tenth of a microsecond for every array that it is given.


class Jobs(NamedTuple):
    """The binding table: one row per bound job."""

    row: Any
    """int32, by job number: its row, or -1."""
    table: Any
    """`JOB`, by row."""
    child_of: Any
    """int16, (rows, `OWNER_MAX`): `Binding.child_of` of owners 1 and on."""


class Counts(NamedTuple):
    """Counters, int64."""

    drops: Any
    """Dropped datagrams by reason; then, at `NOTICES`, the notices that were sent."""
    jobs: Any
    """`COUNT`, by row."""


class Out(NamedTuple):
    """Datagrams to send: ``buffer`` (uint8) holds them back to back, in ``runs`` (`RUN`) of ``most`` datagrams, what
    one system call sends; ``to``: int64, (runs, `CHILDREN_MAX`), where each of them goes."""

    buffer: Any
    runs: Any
    to: Any
    most: int


class Noise(NamedTuple):
    """`inagg_wire.noise.group_table`, uint32: what to XOR to the word of group 0."""

    lanes: Any
    """Noise by lane."""
    groups: Any
    """Noise by group of four lanes: a quarter of the bytes, for who adds lanes in vectors."""


DATAGRAMS_IN, BYTES_IN, DATAGRAMS_OUT, BYTES_OUT = range(4)
"""Indices into `Tables.flow`."""


class Tables(NamedTuple):
    """All of an aggregator's state, for a compiled loop."""

    jobs: Jobs
    slots: Slots
    counts: Counts
    noise: Noise
    out: Out
    peers: Peers
    flow: Any
    """int64: what has come and gone."""


def most_lanes(lanes: int) -> int:
    """Lanes of each slot's part of `Slots.acc` and `Slots.results`, in a switch for blocks of up to so many
    ``lanes``."""
    return -(-lanes // 64) * 64


def row_lanes(lanes: int) -> int:
    """Lanes of a row of `Slots.acc`: rows start on cache lines, of 16 lanes."""
    return -(-lanes // 16) * 16


def kept_bytes(size: int) -> int:
    """Room in `Slots.results` for a payload of ``size`` bytes: whole vectors, of which a cache line has two."""
    return -(-size // 32) * 32


def make_slots(slots: int, lanes: int) -> Slots:
    """Cleared slots. Memory for ``acc`` and ``results`` is taken from the system when it is first written."""
    row, table = most_lanes(lanes), np.zeros(slots, SLOT)
    table["at"] = -1
    return Slots(
        table=table,
        acc=np.zeros(slots * row, np.int32),
        free=np.zeros(slots, np.int64),
        results=np.zeros(slots * row, np.uint8),
        sums=np.zeros(row, np.int32),
        codes=np.zeros(row, np.uint8),
    )


def make_noise(lanes: int) -> Noise:
    """The noise of blocks of up to so many lanes."""
    groups = group_table(lanes).copy()
    return Noise(np.repeat(groups, GROUP_LANES), groups)


def make_jobs(rows: int) -> Jobs:
    """An empty binding table."""
    return Jobs(np.full(1 << 16, -1, np.int32), np.zeros(rows, JOB), np.zeros((rows, OWNER_MAX), np.int16))


def make_counts(rows: int) -> Counts:
    """Counters at zero."""
    return Counts(np.zeros(NOTICES + 1, np.int64), np.zeros(rows, COUNT))


def make_out(size_bytes: int, runs: int, most: int) -> Out:
    """Room for ``size_bytes`` of datagrams in at most ``runs`` runs of ``most`` datagrams."""
    return Out(np.zeros(size_bytes, np.uint8), np.zeros(runs, RUN), np.zeros((runs, CHILDREN_MAX), np.int64), most)
