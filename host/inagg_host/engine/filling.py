"""A compiled loop's sending: the next blocks, written where their datagrams stand. See `stream`."""

from __future__ import annotations

from typing import Any

from inagg_host.kernels.calls import call
from inagg_host.kernels.encoder import ALL_GOOD
from inagg_wire.compiled import inline, jit
from inagg_wire.layout import GENERATION_MAX

from .loops import REORDER_BLOCKS, lost, push
from .plan import BLOCKS, CHUNK, COUNT, FIRST, PHASE, PLACE
from .stream import (
    BASE,
    BATCH,
    DRAFTS,
    ENCODE,
    END,
    FLIGHT,
    HEADER,
    HIGHEST,
    ITEM,
    LENGTH,
    LOW,
    MAX_OP,
    MAX_SIZE,
    MOST,
    NEEDS,
    NEXT,
    OVERTAKEN,
    OWN,
    PIECES,
    PROGRESS,
    REFINE,
    RESENT,
    SCALE,
    SCALED,
    SCALES,
    SENDS,
    SENT,
    SHARD,
    SLOTS,
    START,
    SUM_OP,
    SUM_SIZE,
    VALUES,
    WRONG,
    Stream,
)

Array = Any
GENERATIONS = int(GENERATION_MAX)

NOTHING, LATER, EXCEEDS = 0, -1, -2
"""What `fill` gives if no block: none can be sent now; one can, but not here; `WRONG` of the item exceeds its scale."""


BATCHES_AHEAD = 2
"""How much to draft before a look at what has come meanwhile, in batches of a shard."""


@jit
def copy(to: Array, data: Array, size: int) -> None:
    for i in range(size):
        to[i] = data[i]


@inline
def is_scales(st: Stream) -> Any:
    """Whether scales are what `fill` writes next, if anything."""
    return st.n[SENDS] and st.sending.items[st.n[ITEM], PHASE] == SCALE


@inline
def _place(st: Stream, block: int) -> Any:
    """`Window.place`."""
    return block & (st.memory.ring.shape[1] - 1)


@inline
def _ring_row(st: Stream, shard: int, block: int) -> Any:
    """The same, where the shards' rings are one after the other."""
    return shard * st.memory.ring.shape[1] + _place(st, block)


@inline
def _room(st: Stream, shard: int) -> Any:
    """`Window.room`."""
    w = st.w[shard]
    return min(w[LOW] + st.n[SLOTS] // 2 - w[NEXT], w[END] - w[NEXT], w[MOST] - w[FLIGHT])


@inline
def share(count: int, at: int, shards: int) -> Any:
    """How many of ``count`` blocks the shard gets that has block ``at`` of them and every ``shards``-th after it."""
    return (count - at + shards - 1) // shards


@jit
def fill(st: Stream, now: float) -> Any:
    """Write the next blocks that the windows have room for, all of one item, and note that they are sent at ``now``;
    how many, or why none. They stand in the rings, as `Stream.pieces` says."""
    n, x = st.n, st.sending
    if not n[SENDS]:
        return NOTHING
    item = x.items[n[ITEM]]
    shard, chunk = (item[PLACE] + n[SENT]) % len(st.w), item[CHUNK]
    if item[PHASE] == SCALE:
        return _fill_scales(st, item, shard, now) if _room(st, shard) > 0 else NOTHING
    if item[PHASE] == REFINE:
        return LATER if _room(st, shard) > 0 and x.ready[SCALE, chunk] else NOTHING
    return _fill_values(st, item, now) if x.ready[n[NEEDS], chunk] else NOTHING


@jit
def _fill_values(st: Stream, item: Array, now: float) -> Any:
    n, x, shards = st.n, st.sending, len(st.w)
    first, number = item[FIRST] + n[SENT], item[PLACE] + n[SENT]
    count = min(item[COUNT] - n[SENT], n[BATCH] * shards)
    for i in range(min(count, shards)):
        w = st.w[(number + i) % shards]
        mine = share(count, i, shards)
        if mine == 0:
            break
        most = min(mine, n[SLOTS] - (w[NEXT] & (n[SLOTS] - 1)))  # its rows do not wrap
        room = min(most, _room(st, (number + i) % shards))
        # Small batches cost as much as large ones. While half of what may be out is, the link has enough to do.
        if room < most and 2 * w[FLIGHT] > w[MOST]:
            return NOTHING
        if room < mine:
            count = min(count, max(room, 0) * shards + i)
    for i in range(min(count, shards)):
        shard, mine = (number + i) % shards, share(count, i, shards)
        row = _ring_row(st, shard, st.w[shard, NEXT])
        bad = call(n[ENCODE], x.context.ctypes.data, first + i, number + i, mine, row)
        if bad != ALL_GOOD:
            n[WRONG] = first + i + bad * shards
            return EXCEEDS
        if n[OWN] != 0:
            call(n[OWN], x.context.ctypes.data, first + i, mine, row, 0)
        _push(st, i, shard, mine, n[SUM_SIZE], n[SUM_OP], now)
    _go_on(st, count, min(count, shards))
    return count


@jit
def _fill_scales(st: Stream, item: Array, shard: int, now: float) -> Any:
    n, x = st.n, st.sending
    payload = st.memory.ring[shard, _place(st, st.w[shard, NEXT]), HEADER : n[MAX_SIZE]]
    missing = item[FIRST] + item[BLOCKS] - n[SCALED]
    if missing > 0:
        _find_scales(st, missing)
    for i in range(len(payload)):
        payload[i] = x.own[item[FIRST] + i] if i < item[BLOCKS] else 0
    copy(payload[len(payload) - len(st.signature) :], st.signature, len(st.signature))
    _push(st, 0, shard, 1, n[MAX_SIZE], n[MAX_OP], now)
    _go_on(st, 1, 1)
    return 1


@jit
def _unscaled(st: Stream) -> int:
    """Which item has the next blocks of values that have no scales."""
    items, at = st.sending.items, st.n[ITEM]
    while items[at, PHASE] != VALUES or items[at, FIRST] + items[at, COUNT] <= st.n[SCALED]:
        at += 1
    return int(at)


@jit
def _find_scales(st: Stream, count: int) -> None:
    """Find the scales of the next ``count`` blocks of values that have none, all of one item, and draft them."""
    n, item = st.n, st.sending.items[_unscaled(st)]
    number = item[PLACE] + n[SCALED] - item[FIRST]
    call(n[SCALES], st.sending.context.ctypes.data, n[SCALED], count, number, 0)
    n[SCALED] += count


@jit
def draft_ahead(st: Stream) -> bool:
    """Draft the next blocks, `BATCHES_AHEAD` at most, before their scales can be sent; False if there are none, or the
    rings have no room for them."""
    n, shards = st.n, len(st.w)
    if not n[SENDS] or not n[DRAFTS] or n[SCALED] == len(st.sending.own):
        return False
    item = st.sending.items[_unscaled(st)]
    at = n[SCALED] - item[FIRST]
    most, count = min(item[COUNT] - at, BATCHES_AHEAD * n[BATCH] * shards), 0
    while count < most and _has_room(st, item[PLACE] + at + count):
        count += 1
    if count > 0:
        _find_scales(st, count)
    return bool(count > 0)


@inline
def _has_room(st: Stream, number: int) -> Any:
    """Whether what is in the row of block ``number`` of the job is not needed again: as of all blocks but the last ones
    that were sent, one for each slot."""
    shard = number % len(st.w)
    return number // len(st.w) < st.w[shard, NEXT] + st.memory.ring.shape[1] - st.n[SLOTS]


@jit
def _push(st: Stream, piece: int, shard: int, count: int, size: int, op: int, now: float) -> None:
    """`Window.push`, of ``count`` blocks of the item that is being sent, as a piece to send."""
    n, w, m = st.n, st.w[shard], st.memory
    row, generation = w[NEXT] & (n[SLOTS] - 1), 1 + w[NEXT] // n[SLOTS] % GENERATIONS
    to = st.pieces[piece]
    to[START], to[LENGTH], to[SHARD] = _ring_row(st, shard, w[NEXT]) * m.ring.shape[2], count * size, shard
    push(
        m.ring[shard, _place(st, w[NEXT]) :], row, count, st.headers[op], size, op, w[BASE] + row, generation, w[NEXT],
        now, m.sizes[shard], m.op[shard], m.done[shard], m.taken[shard], m.once[shard], m.sent_s[shard], m.after[shard],
    )  # fmt: skip
    if w[NEXT] == w[LOW]:
        st.s[shard, PROGRESS] = now
    w[NEXT] += count
    w[FLIGHT] += count


@jit
def _go_on(st: Stream, count: int, pieces: int) -> None:
    """``count`` more blocks of the item are sent, in so many pieces."""
    n = st.n
    n[PIECES] = pieces
    n[SENT] += count
    if n[SENT] == st.sending.items[n[ITEM], COUNT]:
        n[ITEM], n[SENT] = n[ITEM] + 1, 0
        n[SENDS] = n[ITEM] < len(st.sending.items)


@jit
def again(st: Stream, shard: int, data: Array, limit: int) -> tuple[int, int]:
    """Copy to ``data`` the first datagrams of equal size that were overtaken (`Window.overtaken`), ``limit`` at most,
    and note that they are sent again; how many, and their size. It is to be called until there are none."""
    n, w, m = st.n, st.w[shard], st.memory
    if w[LOW] + REORDER_BLOCKS > w[HIGHEST]:
        return 0, 0
    blocks = st.blocks
    found = lost(w[LOW], w[HIGHEST], REORDER_BLOCKS, n[SLOTS], m.done[shard], m.after[shard], blocks[:limit])
    size = m.sizes[shard, blocks[0] & (n[SLOTS] - 1)] if found else 0
    for i in range(found):
        row = blocks[i] & (n[SLOTS] - 1)
        if m.sizes[shard, row] != size:
            found = i
            break
        m.once[shard, row], m.after[shard, row] = False, w[NEXT] - 1
        copy(data[i * size :], m.ring[shard, _place(st, blocks[i])], size)
    w[OVERTAKEN] += found
    w[RESENT] += found
    return found, size
