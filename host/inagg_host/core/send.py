"""What goes: what is lost, then what an earlier epoch sent, then the next blocks, written where they are sent from."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_host.codec.calls import NOT_YET, RAISED, bytes_at, call, magnitudes_at
from inagg_host.codec.encoder import ALL_GOOD
from inagg_host.codec.scales import refine_bytes
from inagg_link.jit import inline, jit
from inagg_wire.layout import Op

from .headers import HEADER, write_header
from .receive import FAILED, REFINE, SCALE, VALUES, copy, fail, items_of, lacking_of, piece_of, scales_of
from .recovery import expire, expires_s, lossy
from .schedule import SIGNATURE_LANES
from .state import CODEC_FAILED, OK, OPERATIONS, TOO_LARGE, State

Array = Any
SUM, MAX = int(Op.SUM), int(Op.MAX)

BATCHES_AHEAD = 2
"""How much to draft before a look at what has come meanwhile, in batches of a shard."""


LOOK_PART, LOOK_LEAST_S, LOOK_MOST_S = 16, 2e-5, 5e-4
"""How soon to look again for what is on its way from a device: after such a part of the time since it was first looked
for, within bounds. So values that a training step computes for long cost 2,000 looks a second, of a few microseconds
each; and what comes at once is seen at once."""


@jit
def next_batch(st: State, now: float) -> int:
    """Find what to send next at ``now``: so many `State.pieces`, each for another shard, which are to be sent before
    this is called again. 0: nothing can be sent before something comes, or `deadline`. `FAILED`: nothing can, see
    ``error`` of the job."""
    job, shards = st.job[0], len(st.shards)
    job.look_s = np.inf
    if job.error != OK:
        return FAILED
    for shard in range(shards):
        expire(st, shard, now)
        if st.shards[shard].lost > 0:
            return _send_lost(st, shard)
    replays = False
    for shard in range(shards):
        s = st.shards[shard]
        if s.snd_nxt < s.snd_max:
            replays = True
            if _room(st, shard) > 0:
                return _replay(st, shard, now)
    if replays or job.sending == job.loaded:
        return 0
    o = st.operations[job.sending & (OPERATIONS - 1)]
    item = items_of(o)[o.item]
    if item.phase == VALUES:
        return _send_values(st, o, item, now) if lacking_of(o, job.needs, item.chunk)[0] == 0 else 0
    if item.phase == REFINE and lacking_of(o, SCALE, item.chunk)[0] != 0:
        return 0
    return _send_scales(st, o, item, now)


@jit
def deadline(st: State) -> float:
    """When to call `next_batch` though nothing has come; infinity while nothing is out, and nothing on its way from a
    device."""
    when_s = np.inf
    for shard in range(len(st.shards)):
        when_s = min(when_s, expires_s(st.job[0], st.shards[shard]))
    return float(min(when_s, st.job[0].look_s))


@jit
def exhausted(st: State) -> bool:
    """The generations have run out, and every block of a shard has its result: a new epoch must begin before anything
    else can be sent."""
    for shard in range(len(st.shards)):
        s = st.shards[shard]
        if s.snd_nxt == s.end == s.snd_una:
            return True
    return False


@inline
def ring_row(st: State, shard: int, block: int) -> Any:
    """The row of the rings, one after the other, that has the datagram of ``block`` (the shard's number)."""
    return shard * st.job[0].rows + (block & (st.job[0].rows - 1))


@inline
def _datagram(st: State, shard: int, block: int) -> Any:
    start = ring_row(st, shard, block) * st.job[0].stride
    return st.memory[start : start + st.job[0].stride]


@inline
def _room(st: State, shard: int) -> Any:
    """How many new blocks may be sent now: block b only after the result of b - P, and none of the next round."""
    s = st.shards[shard]
    return min(s.snd_una + s.slots // 2 - s.snd_nxt, s.end - s.snd_nxt, min(s.cwnd, s.credit) - s.flight)


@inline
def share(count: int, at: int, shards: int) -> Any:
    """How many of ``count`` blocks the shard gets that has block ``at`` of them and every ``shards``-th after it."""
    return (count - at + shards - 1) // shards


# --- again ---


@inline
def _send_lost(st: State, shard: int) -> int:
    """The first datagrams that are marked as lost, of one size, as many as go into a batch."""
    s = st.shards[shard]
    count: Any = 0
    size: Any = 0
    for block in range(s.snd_una, s.snd_nxt):
        row = st.rows[shard, block & (s.slots - 1)]
        if not row.lost:
            continue
        if count == st.job[0].batch or (count > 0 and row.size != size):
            break
        size = np.int64(row.size)
        _append(st, shard, block, count, size)
        row.lost, row.once, row.after = False, False, s.snd_nxt - 1
        s.lost -= 1
        count += 1
    return _gathered(st, shard, count, size)


@inline
def _replay(st: State, shard: int, now: float) -> int:
    """The next blocks that were sent in an earlier epoch already, of one size, by the same rules as new ones: sent all
    at once, a slot could be reused while a rank waits for its result, for the proof in `inagg_wire.slots` needs that
    whoever sends b + P has the result of b."""
    s = st.shards[shard]
    most = min(s.snd_max - s.snd_nxt, _room(st, shard), st.job[0].batch)
    count: Any = 0
    size: Any = 0
    while count < most:
        row = st.rows[shard, s.snd_nxt & (s.slots - 1)]
        if count > 0 and row.size != size:
            break
        size = np.int64(row.size)
        _append(st, shard, s.snd_nxt, count, size)
        row.acked, row.once, row.sent_s, row.after = False, True, now, s.snd_nxt
        _advance(s, 1, now)
        count += 1
    return _gathered(st, shard, count, size)


@jit
def _append(st: State, shard: int, block: int, at: int, size: int) -> None:
    """Copy a datagram to place ``at`` of the room for what is sent again."""
    copy(st.memory[st.job[0].spare + at * size :], _datagram(st, shard, block), size)


@jit
def _gathered(st: State, shard: int, count: int, size: int) -> int:
    piece = st.pieces[0]
    piece.start, piece.count, piece.size, piece.shard = st.job[0].spare, count, size, shard
    st.shards[shard].retransmitted += count
    return 1


@inline
def _advance(s: Any, count: int, now: float) -> None:
    """``count`` more blocks are out."""
    if s.snd_nxt == s.snd_una:
        s.timer_s = now  # nothing was out: the timer starts now (RFC 6298, 5.1)
    s.snd_nxt += count
    s.flight += count


# --- new blocks ---


@inline
def _send_values(st: State, o: Any, item: Any, now: float) -> int:
    """The next blocks of values that the windows have room for."""
    job, shards = st.job[0], len(st.shards)
    first, number = item.first + o.sent, o.first_block + item.start + o.sent
    piece = piece_of(o, first)
    count = _sendable(st, number, min(item.count - o.sent, (piece + 1) * o.piece_blocks - first))
    pieces = min(count, shards)
    for i in range(pieces):  # all of them, before any is sent: the item goes on where all before was sent
        shard, mine = (number + i) % shards, share(count, i, shards)
        row = ring_row(st, shard, st.shards[shard].snd_nxt)
        bad = call(o.encode, o.address, first + i, number + i, mine, row)
        if bad == NOT_YET:
            return _look_again(job, now)
        if bad == RAISED:
            fail(st, CODEC_FAILED, number + i, 0)
            return FAILED
        if bad != ALL_GOOD:
            fail(st, TOO_LARGE, first + i + bad * shards, 0)
            return FAILED
    for i in range(pieces):
        _push(st, i, (number + i) % shards, share(count, i, shards), SUM, piece + 1 if o.scatters else 0, now)
    _go_on(st, o, item, count)
    return int(pieces)


@jit
def _sendable(st: State, number: int, most: int) -> int:
    """How many of the next ``most`` blocks, from ``number`` of the job on, to send together now."""
    shards = len(st.shards)
    count = min(most, st.job[0].batch * shards)
    for i in range(min(count, shards)):
        s = st.shards[(number + i) % shards]
        mine = share(count, i, shards)
        if mine == 0:
            break
        most = min(mine, s.slots - (s.snd_nxt & (s.slots - 1)))  # its rows do not wrap
        room = min(most, _room(st, (number + i) % shards))
        if _waits(s, room, most):
            return 0
        if room < mine:
            count = min(count, max(room, 0) * shards + i)
    return int(count)


@inline
def _waits(s: Any, room: int, most: int) -> Any:
    """Whether to wait until there is room for more than ``room`` of the ``most`` blocks of a batch.

    Small batches cost as much as large ones, and while half of what may be out is, the link has enough to do. Where
    some is lost the window may stand still for a while, so half a batch is enough. Where the path was overrun its
    queues are short, and large batches would overrun them again (tests/host/sim/rates.py: with a queue of 64 datagrams,
    40 % of the link's rate in place of 50).
    """
    small = room < most if s.cwnd == s.ceiling else 2 * room < most and s.cwnd >= lossy(s.ceiling)
    return small and 2 * s.flight > s.cwnd


@inline
def _send_scales(st: State, o: Any, item: Any, now: float) -> int:
    """The next blocks of scales, or of their refinements, that the windows have room for."""
    job, shards = st.job[0], len(st.shards)
    number = o.first_block + item.start + o.sent
    most = item.count - o.sent
    if job.size[MAX] != job.stride:
        most = min(most, shards)  # they do not stand back to back in the rings: one in a piece
    count = _sendable(st, number, most)
    if count == 0:
        return 0
    if item.phase == SCALE:
        last, scales = scales_of(job, item, o.sent + count - 1)
        found = _find_scales(st, o, last + scales - o.scaled)
        if found != ALL_GOOD:
            return _look_again(job, now) if found == NOT_YET else FAILED
    pieces = min(count, shards)
    for i in range(count):
        shard = (number + i) % shards
        payload = _datagram(st, shard, st.shards[shard].snd_nxt + i // shards)[HEADER : job.size[MAX]]
        _write_scales(job, o, item, o.sent + i, payload)
    for i in range(pieces):
        _push(st, i, (number + i) % shards, share(count, i, shards), MAX, 0, now)
    _go_on(st, o, item, count)
    return int(pieces)


@inline
def _write_scales(job: Any, o: Any, item: Any, at: int, payload: Array) -> None:
    """Block ``at`` of an item of scales or refinements."""
    first, count = scales_of(job, item, at)
    if item.phase == REFINE:
        magnitudes = magnitudes_at(o.magnitudes, o.blocks)[first : first + count]
        refine_bytes(magnitudes, bytes_at(o.agreed + first, count), o.dith8 != 0, o.lowest_scale, payload[:count])
    else:
        copy(payload, bytes_at(o.own + first, count), count)
    for i in range(count, len(payload)):
        payload[i] = 0
    if item.phase == SCALE and job.signature:
        copy(payload[len(payload) - SIGNATURE_LANES :], o.signature, SIGNATURE_LANES)


@jit
def _push(st: State, at: int, shard: int, count: int, op: int, owner: int, now: float) -> None:
    """Send the next ``count`` blocks of a shard, whose payloads are in the ring, as number ``at`` of `State.pieces`."""
    job, s = st.job[0], st.shards[shard]
    piece = st.pieces[at]
    piece.start, piece.count = ring_row(st, shard, s.snd_nxt) * job.stride, count
    piece.size, piece.shard = job.size[op], shard
    for block in range(s.snd_nxt, s.snd_nxt + count):
        write_header(_datagram(st, shard, block), op, block, owner, st, shard)
        row = st.rows[shard, block & (s.slots - 1)]
        row.size, row.op, row.owner, row.after, row.sent_s = job.size[op], op, owner, block, now
        row.acked, row.taken, row.once, row.lost = False, False, True, False
    _advance(s, count, now)
    s.snd_max = s.snd_nxt


@inline
def _look_again(job: Any, now: float) -> int:
    """What is to be sent next is still on its way from a device, which can wake nobody: look again soon, the sooner the
    less time has gone by so far."""
    if job.held_s == np.inf:
        job.held_s = now
    job.look_s = now + min(max((now - job.held_s) / LOOK_PART, LOOK_LEAST_S), LOOK_MOST_S)
    return 0


@inline
def _go_on(st: State, o: Any, item: Any, count: int) -> None:
    """``count`` more blocks of the item are sent."""
    st.job[0].held_s = np.inf
    o.sent += count
    if o.sent == item.count:
        o.item, o.sent = o.item + 1, 0
        if o.item == o.items_count:
            st.job[0].sending += 1


# --- scales and drafts ---


@jit
def _find_scales(st: State, o: Any, count: int) -> int:
    """Find the scales of the next ``count`` blocks of values that have none, all of one chunk, and draft them: what the
    kernel says, or `ALL_GOOD`; none if there is nothing left to find."""
    if count <= 0:
        return ALL_GOOD
    items = items_of(o)
    at = _unscaled(o, items)
    number = o.first_block + items[at].start + o.scaled - items[at].first
    end = o.scaled + count
    while o.scaled < end:
        some = min(end, (piece_of(o, o.scaled) + 1) * o.piece_blocks) - o.scaled
        found = call(o.scale, o.address, o.scaled, some, number, 0)
        if found == NOT_YET:
            return NOT_YET
        if found == RAISED:
            fail(st, CODEC_FAILED, number, 0)
            return RAISED
        o.scaled, number = o.scaled + some, number + some
    return ALL_GOOD


@inline
def _unscaled(o: Any, items: Array) -> Any:
    """Which item has the next blocks of values that have no scales."""
    at = o.item
    while items[at].phase != VALUES or items[at].first + items[at].count <= o.scaled:
        at += 1
    return at


@jit
def draft_ahead(st: State) -> bool:
    """Draft the next blocks, `BATCHES_AHEAD` at most, before their scales can be sent; False if there are none, or the
    rings have no room for them. For a rank that would else only wait."""
    job, shards = st.job[0], len(st.shards)
    at = job.sending
    o = st.operations[at & (OPERATIONS - 1)]
    while at < job.loaded and o.scaled == o.blocks:
        at += 1
        o = st.operations[at & (OPERATIONS - 1)]
    if at == job.loaded or not o.drafting:
        return False
    items = items_of(o)
    item = items[_unscaled(o, items)]
    done = o.scaled - item.first
    most, count = min(item.count - done, BATCHES_AHEAD * job.batch * shards), 0
    while count < most and _has_room(st, o.first_block + item.start + done + count):
        count += 1
    return bool(count > 0 and _find_scales(st, o, count) == ALL_GOOD)


@inline
def _has_room(st: State, number: int) -> Any:
    """Whether what is in the row of block ``number`` of the job is not needed again: as of all blocks but the last ones
    that were sent, one for each slot."""
    s = st.shards[number % len(st.shards)]
    return number // len(st.shards) < s.snd_nxt + st.job[0].rows - s.slots
