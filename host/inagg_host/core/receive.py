"""Receiving: results are checked, noted as acknowledgements, and taken into the sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_host.codec.calls import array_at, bytes_at, call, words_at
from inagg_host.codec.ordered import load, store
from inagg_link.jit import inline, jit
from inagg_wire.errors import Reason
from inagg_wire.layout import Op

from .headers import HEADER, KIND_AT, NOTICE, OWNER_AT, outcome, u16
from .recovery import end_round_trip, judge, mark_overtaken, recover
from .schedule import ITEM, SIGNATURE_LANES, Phase
from .state import (
    FRESH,
    LOADED_AT,
    NO_MAXIMUM,
    OK,
    OLDEST_AT,
    OPERATIONS,
    OTHER_OP,
    OTHER_OPERATION,
    REFUSED,
    SWITCH_REFUSES,
    State,
)

Array = Any
SCALE, REFINE, VALUES = (int(phase) for phase in Phase)
MAX, WRONG_OP = int(Op.MAX), int(Reason.WRONG_OP)

NOTHING_ELSE, FINISHED, FAILED = 0, 1, -1
"""Results of `on_batch`."""


@jit
def on_batch(st: State, shard: int, data: Array, size: int, now: float) -> int:
    """Take ``data``, uint8, datagrams of ``size`` bytes from ``shard``, `RESULTS_MOST` at most, that came at ``now``.

    What is not ours is counted and changes nothing. Results are acknowledged and go to the sums; blocks that they have
    overtaken are marked as lost, for `next_batch`. Returns `NOTHING_ELSE`, or that operations are `FINISHED`, or
    `FAILED`: ``error`` of the job says what was wrong first.
    """
    fresh = _accept(st, shard, data, size, now)
    if st.job[0].keeps:
        for i in range(fresh):
            copy(st.kept[shard, st.blocks[i] & (st.shards[shard].slots - 1)], data[st.places[i] * size :], size)
    taken = 0
    while taken < fresh:
        taken = take(st, shard, data, size, taken, fresh)
    mark_overtaken(st, shard)
    recover(st, shard)
    end_round_trip(st.shards[shard])
    news = retire(st)
    return FAILED if st.job[0].error != OK else news


@inline
def loaded(st: State) -> Any:
    """Counter of `State.operations`: those before it have their records."""
    return load(st.job.ctypes.data + LOADED_AT)


@jit
def retire(st: State) -> int:
    """Go on to the oldest operation that is not finished. `FINISHED`: others were before it."""
    job, news = st.job[0], NOTHING_ELSE
    while job.oldest != loaded(st):
        o = st.operations[job.oldest & (OPERATIONS - 1)]
        if o.left != 0:
            break
        if o.summed != 0:
            store(o.summed, 1)
        store(st.job.ctypes.data + OLDEST_AT, job.oldest + 1)  # from now on its record may be another's
        news = FINISHED
    return news


@jit
def is_awaited(st: State) -> bool:
    """Whether a device waits for an operation: if that is not finished, it has work, and whoever launches more may."""
    job, found = st.job[0], False
    for at in range(job.oldest, loaded(st)):
        found |= st.operations[at & (OPERATIONS - 1)].staged != 0
    return found


@inline
def _accept(st: State, shard: int, data: Array, size: int, now: float) -> int:
    """Mark the blocks whose results are in ``data``. How many of them are to be taken: where they stand, and which
    blocks they are, is in ``places`` and ``blocks``."""
    s = st.shards[shard]
    fresh, acked, timed_s, late = 0, 0, -1.0, False
    for i in range(len(data) // size):
        d = data[i * size : (i + 1) * size]
        what, block = outcome(d, st, shard)
        s.counts[what] += 1
        if what == FRESH:
            row = st.rows[shard, block & (s.slots - 1)]
            row.acked = True
            acked += 1
            if row.owner == st.job[0].owner:
                s.highest_alone = max(s.highest_alone, block)
            else:
                s.highest = max(s.highest, block)
            if row.once:
                timed_s = max(timed_s, row.sent_s)
            elif row.after == block:
                late = True
            if row.lost:
                row.lost = False
                s.lost -= 1
            if not row.taken:
                row.taken = True
                st.places[fresh], st.blocks[fresh] = i, block
                fresh += 1
        elif what >= REFUSED:
            reason = u16(d, OWNER_AT) if d[KIND_AT] == NOTICE else WRONG_OP
            fail(st, OTHER_OP if reason == WRONG_OP else SWITCH_REFUSES, block * len(st.shards) + shard, reason)
    while s.snd_una < s.snd_nxt and st.rows[shard, s.snd_una & (s.slots - 1)].acked:
        s.snd_una += 1
    if acked:
        s.flight -= acked
        s.acked += acked
        if timed_s >= 0:
            s.shortest_s = min(s.shortest_s, now - timed_s)
        if s.timer_expired:
            judge(s, now)
        s.timer_s = now  # (5.3)
        if not late:  # else what was sent once took longer than the timer, which then stays long until a sample
            s.backoff = 0
    return fresh


@jit
def fail(st: State, error: int, block: int, reason: int) -> None:
    """Note what is wrong, if it is the first thing."""
    job = st.job[0]
    if job.error == OK:
        job.error, job.error_block, job.error_reason = error, block, reason


@jit
def copy(to: Array, data: Array, size: int) -> None:
    for i in range(size):
        to[i] = data[i]


@inline
def operation_of(st: State, number: int) -> int:
    """The place of the operation that has block ``number`` (the job's), which was sent."""
    at: Any = st.job[0].oldest
    while True:
        o = st.operations[at & (OPERATIONS - 1)]
        if number < o.first_block + o.count:
            return int(at & (OPERATIONS - 1))
        at += 1


items_at = array_at(ITEM)


@inline
def items_of(o: Any) -> Any:
    """`ITEM`, of an operation."""
    return items_at(o.items, o.items_count)


@inline
def lacking_of(o: Any, phase: int, chunk: int) -> Any:
    """How many blocks of scales or refinements of a chunk are not there, as an array of one."""
    return words_at(o.lacking + 8 * (phase * o.chunks + chunk), 1)


@inline
def _has(o: Any, item: Any, number: int) -> Any:
    return 0 <= number - o.first_block - item.start < item.count


@inline
def piece_of(o: Any, at: int) -> Any:
    """The piece of an operation that has value block ``at``."""
    return at // o.piece_blocks


@jit
def take(st: State, shard: int, data: Array, size: int, begin: int, end: int) -> int:
    """Take the next results from number ``begin`` on, before ``end``, those of one item; the number after them."""
    shards = len(st.shards)
    number = st.blocks[begin] * shards + shard
    place = operation_of(st, number)
    o = st.operations[place]
    items = items_of(o)
    if not _has(o, items[o.item_in], number):  # as it almost always has
        o.item_in = 0
        while not _has(o, items[o.item_in], number):
            o.item_in += 1
    item, after = items[o.item_in], begin + 1
    if item.phase == VALUES:
        offset = item.first - o.first_block - item.start + shard
        piece = piece_of(o, st.blocks[begin] * shards + offset)
        begins = piece * o.piece_blocks - offset  # where it does, as `blocks` count; a division for each takes longer
        while (
            after < end
            and _has(o, item, st.blocks[after] * shards + shard)
            and 0 <= st.blocks[after] * shards - begins < o.piece_blocks
        ):
            after += 1
        if piece == o.own_piece or o.tell != 0:  # a device that encodes is told of all results
            o.data, o.data_bytes = data.ctypes.data, len(data)
            o.invalid_codes += call(o.decode, o.address, size, begin, after, offset)
    else:
        at = st.places[begin] * size  # what `reconcile` passes has rows that are longer than a block of scales
        payload = data[at + HEADER : at + st.job[0].result_size[MAX]]
        error = _take_scales(st.job[0], o, item, number - o.first_block - item.start, payload)
        if error != OK:
            fail(st, error, number, place)
            return after
        lacking = lacking_of(o, item.phase, item.chunk)
        lacking[0] -= 1
        if o.tell != 0 and lacking[0] == 0:
            call(o.tell, o.address, item.phase, item.chunk, 0, 0)
    o.left -= after - begin
    return after


@inline
def _take_scales(job: Any, o: Any, item: Any, at: int, payload: Array) -> int:
    """Scales that are agreed on, or their refinements, of block ``at`` of the item; or what is wrong with them."""
    first, count = scales_of(job, item, at)
    if item.phase == SCALE:
        half = job.signature // 2
        for i in range(len(payload) - job.signature, len(payload) - half):
            if np.int64(payload[i]) + np.int64(payload[i + half]) != 255:
                return OTHER_OPERATION
        own = bytes_at(o.own + first, count)
        for i in range(count):
            if payload[i] < own[i]:
                return NO_MAXIMUM
    copy(bytes_at((o.agreed if item.phase == SCALE else o.refinement) + first, count), payload, count)
    return OK


@inline
def scales_of(job: Any, item: Any, at: int) -> Any:
    """The first value block whose scale is in block ``at`` of an item, and how many of them are."""
    first = at * job.scales
    return item.first + first, min(job.scales, item.blocks - first)


assert SIGNATURE_LANES % 2 == 0
