"""What a compiled loop needs to do in place of the engine: numbers and arrays for `filling` and `taking`, no objects.

The loop (`inagg_host.pump`) sends and receives the blocks of values of operations that are under way; whatever else
there is to do, it leaves to the engine, and stops exactly where that can go on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from inagg_wire.layout import HEADER_BYTES

from .memory import Memory
from .plan import Phase

HEADER = int(HEADER_BYTES)

# Indices into a shard's row of `Stream.w`: the attributes of its window,
LOW, NEXT, FLIGHT, MOST, HIGHEST, ROUND_END, ANSWERED, OVERTAKEN, RESENT, END, BASE = range(11)
PROGRESSED, SAMPLES = range(11, 13)
"""then 1 if there was a result, and how many samples of the round trip were taken."""
WINDOW = 13

# Indices into `Stream.n`:
JOB, TOKEN, SLOTS, NEEDS, SIGNED = range(5)
"""Of the job: slots of each shard, the phase that values wait for, whether scales are signed."""
ENCODE, DECODE, SCALES = range(5, 8)
"""Addresses: `inagg_host.kernels.calls`."""
SUM_SIZE, SUM_OP, MAX_SIZE, MAX_OP, BATCH = range(8, 13)
"""Bytes of a datagram of values and of scales, and their ops; the most blocks of a shard to encode at a time."""
SENDS, ITEM, SENT, MORE, PIECES = range(13, 18)
"""Whether there is something to send: item ``ITEM`` of `Stream.sending`, of which so many blocks are sent; whether
there is more after that operation; how many `Stream.pieces` were filled last."""
LEFT, INVALID, AT = range(18, 21)
"""Of the operation whose sums are taken: blocks without a result, invalid codes, the item to look at."""
FRESH, TAKEN, WRONG = range(21, 24)
"""Of results that were accepted: how many, how many of them are taken, and the datagram that tells of an error."""
OWN = 24
"""The address of what writes down what this rank contributes; 0 if nobody wants to know."""
SCALED, DRAFTS = range(25, 27)
"""Of the operation that is being sent: how many blocks of values have their scales, and whether `SCALES` drafts
values."""
NUMBERS = 27

RESULTS_MOST = 1 << 12
"""More than there can be in one batch, whose 65,535 bytes have headers of 24 bytes or more."""
SAMPLES_MOST = 256
"""As many round trips as a loop goes on for without Python."""

# Indices into a shard's row of `Stream.s`, seconds: its window's, then the samples.
SHORTEST, PROGRESS, TIMEOUT, SAMPLE = range(4)
TIMES = SAMPLE + SAMPLES_MOST

ENCODING, NETWORK, DECODING, IDLE = range(4)
"""Indices into `Stream.spent`."""

START, LENGTH, SHARD = range(3)
"""Columns of `Stream.pieces`."""

SCALE, REFINE, VALUES = (int(phase) for phase in Phase)


class Part(NamedTuple):
    """An operation: see `inagg_host.engine.operation.Operation`."""

    items: Any
    """`inagg_host.engine.plan.plan_rows`, but ``PLACE`` is the job's number of the block."""
    ready: Any
    scales: Any
    own: Any
    context: Any
    """See `inagg_host.kernels.calls`."""


class Stream(NamedTuple):
    """All of it."""

    n: Any
    w: Any
    """int64, (shards, `WINDOW`)."""
    s: Any
    """float64, (shards, `TIMES`)."""
    spent: Any
    """float64: seconds of each phase since the loop began."""
    memory: Memory
    shapes: Any
    """See `inagg_host.engine.window.Window`."""
    places: Any
    blocks: Any
    """int64: where results that were accepted stand in their batch, and of which blocks of the shard they are."""
    kept: Any
    """uint8, (shards, slots, bytes), results as they came; no shards if nobody wants them."""
    pieces: Any
    """int64, (shards, 3): what is to be sent, from where on in the windows' rings one after the other, how many bytes,
    to which shard."""
    peers: Any
    """int64: the address of each shard, `inagg_wire.link.port.key_of`."""
    sending: Part
    taking: Part
    headers: Any
    """uint8, (ops, header): of contributions."""
    signature: Any
    """uint8: what signs the scales that are sent; empty if they are not signed."""
