"""What a compiled loop does for a shard in place of the engine: numbers and arrays for `loops`, and no objects.

The loop (`inagg_host.pump`) sends and receives the blocks of values of operations that are under way; whatever else
there is to do, it leaves to the engine, and stops exactly where that can go on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from inagg_host.kernels.calls import call
from inagg_host.kernels.encoder import ALL_GOOD
from inagg_wire.compiled import inline, jit
from inagg_wire.layout import GENERATION_MAX, HEADER_BYTES

from .loops import REORDER_BLOCKS, accept, adapted, lost, push
from .plan import SIGNATURE_LANES, Phase

Array = Any
GENERATIONS, HEADER = int(GENERATION_MAX), int(HEADER_BYTES)

# Indices into `Stream.n`. Of the shard's window, whose attributes these are:
LOW, NEXT, FLIGHT, MOST, HIGHEST, ROUND_END, ANSWERED, OVERTAKEN, RESENT, END, BASE, SLOTS = range(12)
PROGRESSED, SAMPLES = range(12, 14)
"""1 if there was a result; how many samples of the round trip were taken."""
JOB, TOKEN, CHUNK, NEEDS, SIGNED = range(14, 19)
"""Of the job: blocks that share a block of scales, the phase that values wait for, whether scales are signed."""
ENCODE, DECODE, SCALES = range(19, 22)
"""Addresses: `inagg_host.kernels.calls`."""
SUM_SIZE, SUM_OP, MAX_SIZE, MAX_OP, BATCH = range(22, 27)
"""Bytes of a datagram of values and of scales, and their ops; the most blocks to encode at a time."""
SENDS, ITEM, SENT, MORE = range(27, 31)
"""Whether there is something to send: item ``ITEM`` of `Stream.sending`, of which so many blocks are sent; whether
there is more after that operation."""
LEFT, INVALID, AT = range(31, 34)
"""Of the operation whose sums are taken: blocks without a result, invalid codes, the item to look at."""
FRESH, TAKEN, WRONG = range(34, 37)
"""Of results that were accepted: how many, how many of them are taken, and the datagram that tells of an error."""
NUMBERS = 37

RESULTS_MOST = 1 << 12
"""More than there can be in one batch, whose 65,535 bytes have headers of 24 bytes or more."""
SAMPLES_MOST = 32

# Indices into `Stream.s`, seconds: the window's, of the phases since the loop began, then the samples.
SHORTEST, PROGRESS, TIMEOUT, ENCODING, NETWORK, DECODING, IDLE, SAMPLE = range(8)
TIMES = SAMPLE + SAMPLES_MOST

PHASE, START, COUNT, FIRST, BLOCKS = range(5)
"""Columns of `Part.items`: those of `inagg_host.engine.plan.Item`, but ``START`` is the job's number of the block."""
SCALE, REFINE, VALUES = (int(phase) for phase in Phase)

NOTHING, LATER, EXCEEDS = 0, -1, -2
"""What `fill` gives if no block: none can be sent now; one can, but not here; `WRONG` of the item exceeds its scale."""


class Ring(NamedTuple):
    """The arrays of a window: see `inagg_host.engine.window.Window`."""

    ring: Any
    sizes: Any
    op: Any
    done: Any
    taken: Any
    once: Any
    sent_s: Any
    after: Any
    shapes: Any
    counts: Any
    places: Any
    blocks: Any
    kept: Any
    """uint8, (slots, bytes), results as they came; no rows if nobody wants them."""


class Part(NamedTuple):
    """An operation: see `inagg_host.engine.operation.Operation`."""

    items: Any
    ready: Any
    scales: Any
    own: Any
    context: Any
    """See `inagg_host.kernels.calls`."""


class Stream(NamedTuple):
    """All of it."""

    n: Any
    s: Any
    ring: Ring
    sending: Part
    taking: Part
    headers: Any
    """uint8, (ops, header): of contributions."""
    signature: Any
    """uint8: what signs the scales that are sent; empty if they are not signed."""


@jit
def _copy(to: Array, data: Array, size: int) -> None:
    for i in range(size):
        to[i] = data[i]


@inline
def is_scales(st: Stream) -> Any:
    """Whether scales are what `fill` writes next, if anything."""
    return st.n[SENDS] and st.sending.items[st.n[ITEM], PHASE] == SCALE


@jit
def fill(st: Stream, now: float) -> Any:
    """Write the next blocks that the window has room for, all of one item, and note that they are sent at ``now``; how
    many, or why none. They stand in the ring, the last of them before row ``NEXT``."""
    n, x = st.n, st.sending
    if not n[SENDS]:
        return NOTHING
    item = x.items[n[ITEM]]
    room = min(n[LOW] + n[SLOTS] // 2 - n[NEXT], n[END] - n[NEXT], n[MOST] - n[FLIGHT])
    chunk = item[FIRST] // n[CHUNK]
    if item[PHASE] == SCALE:
        return _fill_scales(st, item, now) if room > 0 else NOTHING
    if item[PHASE] == REFINE:
        return LATER if room > 0 and x.ready[SCALE, chunk] else NOTHING
    return _fill_values(st, item, room, now) if x.ready[n[NEEDS], chunk] else NOTHING


@jit
def _fill_values(st: Stream, item: Array, room: int, now: float) -> Any:
    n, x = st.n, st.sending
    row = n[NEXT] & (n[SLOTS] - 1)
    most = min(item[COUNT] - n[SENT], n[BATCH], n[SLOTS] - row)
    count = min(most, room)
    # Small batches cost as much as large ones. While half of what may be out is, the link has enough to do.
    if count <= 0 or (count < most and 2 * n[FLIGHT] > n[MOST]):
        return NOTHING
    bad = call(n[ENCODE], x.context.ctypes.data, item[FIRST] + n[SENT], item[START] + n[SENT], count, row)
    if bad != ALL_GOOD:
        n[WRONG] = item[FIRST] + n[SENT] + bad
        return EXCEEDS
    _push(st, row, count, n[SUM_SIZE], n[SUM_OP], now)
    return count


@jit
def _fill_scales(st: Stream, item: Array, now: float) -> Any:
    n, x = st.n, st.sending
    row = n[NEXT] & (n[SLOTS] - 1)
    payload = st.ring.ring[row, HEADER : n[MAX_SIZE]]
    call(n[SCALES], x.context.ctypes.data, item[FIRST], item[BLOCKS], 0, 0)
    for i in range(len(payload)):
        payload[i] = x.own[item[FIRST] + i] if i < item[BLOCKS] else 0
    _copy(payload[len(payload) - len(st.signature) :], st.signature, len(st.signature))
    _push(st, row, 1, n[MAX_SIZE], n[MAX_OP], now)
    return 1


@jit
def _push(st: Stream, row: int, count: int, size: int, op: int, now: float) -> None:
    """`Window.push`, of ``count`` blocks of the item that is being sent."""
    n, r = st.n, st.ring
    generation = 1 + n[NEXT] // n[SLOTS] % GENERATIONS
    push(
        r.ring, row, count, st.headers[op], size, op, n[BASE] + row, generation, n[NEXT], now, r.sizes, r.op, r.done,
        r.taken, r.once, r.sent_s, r.after,
    )  # fmt: skip
    if n[NEXT] == n[LOW]:
        st.s[PROGRESS] = now
    n[NEXT] += count
    n[FLIGHT] += count
    n[SENT] += count
    if n[SENT] == st.sending.items[n[ITEM], COUNT]:
        n[ITEM], n[SENT] = n[ITEM] + 1, 0
        n[SENDS] = n[ITEM] < len(st.sending.items)


@jit
def take(st: Stream, data: Array, size: int, now: float) -> bool:
    """Accept received datagrams, and take what they have for `Stream.taking`. False: the rest, from ``TAKEN`` to
    ``FRESH``, is something else, or a datagram tells of an error."""
    n, s, r = st.n, st.s, st.ring
    fresh, answered, low, highest, timed_s, wrong, _first, _last = accept(
        data, size, n[JOB], n[TOKEN], n[BASE], n[SLOTS], n[LOW], n[NEXT], n[HIGHEST], r.done, r.taken, r.op, r.sent_s,
        r.once, r.shapes, r.counts, r.places, r.blocks,
    )  # fmt: skip
    n[LOW], n[HIGHEST], n[FRESH], n[TAKEN], n[WRONG] = low, highest, fresh, 0, wrong
    if answered:
        n[FLIGHT] -= answered
        n[ANSWERED] += answered
        n[PROGRESSED] = 1
        if timed_s >= 0:
            s[SHORTEST] = min(s[SHORTEST], now - timed_s)
        s[PROGRESS] = now
    if len(r.kept):
        for i in range(fresh):
            _copy(r.kept[r.blocks[i] & (n[SLOTS] - 1)], data[r.places[i] * size :], size)
    while n[TAKEN] < fresh:
        if not _take_next(st, data, size):
            return False
    return wrong < 0


@jit
def _take_next(st: Stream, data: Array, size: int) -> bool:
    """Take the next results, those of one item; False if they are of none, or not as they should be."""
    n, r, x = st.n, st.ring, st.taking
    begin = n[TAKEN]
    if not _has(x.items, n[AT], r.blocks[begin]):  # as it almost always has
        n[AT] = 0
        while n[AT] < len(x.items) and not _has(x.items, n[AT], r.blocks[begin]):
            n[AT] += 1
        if n[AT] == len(x.items):
            n[AT] = 0
            return False
    item = x.items[n[AT]]
    end = begin + 1
    if item[PHASE] == VALUES:
        while end < n[FRESH] and _has(x.items, n[AT], r.blocks[end]):
            end += 1
        invalid = call(n[DECODE], x.context.ctypes.data, size, begin, end, item[FIRST] - item[START])
        if invalid < 0:
            return False
        n[INVALID] += invalid
    elif item[PHASE] == REFINE or not _take_scales(st, item, data[r.places[begin] * size + HEADER :][: size - HEADER]):
        return False
    n[LEFT] -= end - begin
    n[TAKEN] = end
    return True


@jit
def _take_scales(st: Stream, item: Array, payload: Array) -> bool:
    n, x = st.n, st.taking
    half = SIGNATURE_LANES // 2
    if n[SIGNED]:
        at = len(payload) - SIGNATURE_LANES
        for i in range(at, at + half):
            if np.int64(payload[i]) + np.int64(payload[i + half]) != 255:
                return False
    for i in range(item[BLOCKS]):
        if payload[i] < x.own[item[FIRST] + i]:
            return False
    _copy(x.scales[item[FIRST] :], payload, item[BLOCKS])
    x.ready[SCALE, item[FIRST] // n[CHUNK]] = True
    return True


@inline
def _has(items: Array, at: int, block: int) -> Any:
    return 0 <= block - items[at, START] < items[at, COUNT]


@jit
def end_round_trip(st: Stream) -> bool:
    """`Window._end_round_trip`; False if there is no room for its sample."""
    n, s = st.n, st.s
    if n[SAMPLES] == SAMPLES_MOST:
        return False
    if s[SHORTEST] < np.inf:
        s[SAMPLE + n[SAMPLES]] = s[SHORTEST]
        n[SAMPLES] += 1
    n[MOST] = adapted(n[MOST], n[SLOTS] // 2, n[ANSWERED], n[OVERTAKEN])
    n[ROUND_END], s[SHORTEST], n[ANSWERED], n[OVERTAKEN] = n[NEXT], np.inf, 0, 0
    return True


@jit
def again(st: Stream, data: Array, limit: int) -> int:
    """Copy to ``data`` the datagrams that were overtaken (`Window.overtaken`), ``limit`` at most, and note that they
    are sent again; how many. -1: their sizes differ, nothing is done."""
    n, r = st.n, st.ring
    if n[LOW] + REORDER_BLOCKS > n[HIGHEST]:
        return 0
    found = lost(n[LOW], n[HIGHEST], REORDER_BLOCKS, n[SLOTS], r.done, r.after, r.blocks[:limit])
    for i in range(found):
        if r.sizes[r.blocks[i] & (n[SLOTS] - 1)] != n[SUM_SIZE]:
            return -1
    for i in range(found):
        row = r.blocks[i] & (n[SLOTS] - 1)
        r.once[row], r.after[row] = False, n[NEXT] - 1
        _copy(data[i * n[SUM_SIZE] :], r.ring[row], n[SUM_SIZE])
    n[OVERTAKEN] += found
    n[RESENT] += found
    return found
