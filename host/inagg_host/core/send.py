"""Sending: lost blocks, then those of an earlier epoch, then the next ones, written where they are sent from."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_host.codec.calls import NOT_YET, RAISED, bytes_at, call, magnitudes_at
from inagg_host.codec.encoder import ALL_GOOD
from inagg_host.codec.scales import refine_bytes
from inagg_link.jit import inline, jit
from inagg_wire.layout import Op

from .draft import find_scales
from .headers import HEADER, write_header
from .receive import FAILED, REFINE, SCALE, VALUES, copy, fail, items_of, lacking_of, loaded, piece_of, scales_of
from .recovery import expire, expires_s, lossy
from .retransmit import replay, send_lost
from .ring import advance, datagram, ring_row, share, usable
from .schedule import SIGNATURE_LANES
from .state import CODEC_FAILED, OK, OPERATIONS, TOO_LARGE, State

Array = Any
SUM, MAX = int(Op.SUM), int(Op.MAX)

POLL_PART, POLL_LEAST_S, POLL_MOST_S = 16, 2e-5, 5e-4
"""How soon to look again for what is on its way from a device: after such a part of the time since it was first looked
for, within bounds. So values that a training step computes for long cost 2,000 looks a second, of a few microseconds
each; and what comes at once is seen at once."""

MANY = 4
"""A window has room for many batches if it has for so many."""


@jit
def next_batch(st: State, now: float) -> int:
    """Find what to send next at ``now``: so many `State.pieces`, each for another shard, which are to be sent before
    this is called again. 0: nothing can be sent before something comes, or `deadline`. `FAILED`: nothing can, see
    ``error`` of the job."""
    job, shards = st.job[0], len(st.shards)
    job.poll_s = np.inf
    if job.error != OK:
        return FAILED
    for shard in range(shards):
        expire(st, shard, now)
        if st.shards[shard].lost > 0:
            return send_lost(st, shard)
    replays = False
    for shard in range(shards):
        s = st.shards[shard]
        if s.snd_nxt < s.snd_max:
            replays = True
            if usable(st, shard) > 0:
                return replay(st, shard, now)
    if replays or job.sending == loaded(st):
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
    """Time to call `next_batch` though nothing has come; infinity while nothing is out, and nothing on its way from a
    device."""
    when_s = np.inf
    for shard in range(len(st.shards)):
        when_s = min(when_s, expires_s(st.job[0], st.shards[shard]))
    return float(min(when_s, st.job[0].poll_s))


@jit
def exhausted(st: State) -> bool:
    """The generations have run out, and every block of a shard has its result: a new epoch must begin before anything
    else can be sent."""
    for shard in range(len(st.shards)):
        s = st.shards[shard]
        if s.snd_nxt == s.end == s.snd_una:
            return True
    return False


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
            return _poll_again(job, now)
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
        room = min(most, usable(st, (number + i) % shards))
        if _waits(s, room, most):
            return 0
        if room < mine:
            count = min(count, max(room, 0) * shards + i)
    return int(count)


@inline
def _waits(s: Any, room: int, most: int) -> Any:
    """Whether to wait until there is room for more than ``room`` of the ``most`` blocks of a batch.

    Small batches cost as much as large ones, and while half of what may be out is, the link has enough to do. Where
    some is lost the window may stand still for a while, so half a batch is enough; not if it has room for many, as
    between processes of one machine. (Measured there, 4 workers, 1 % of loss, 64 MiB: half batches leave 0.88 of the
    rate, whole ones 0.91. Over a link, in tests/host/sim/rates.py, whole ones leave less.) Where the path was overrun
    its queues are short, and large batches would overrun them again (there, with a queue of 64 datagrams: 40 % of the
    link's rate in place of 50).
    """
    whole = s.cwnd == s.ceiling or MANY * most <= s.cwnd
    small = room < most if whole else 2 * room < most
    small &= s.cwnd >= lossy(s.ceiling)
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
        found = find_scales(st, o, last + scales - o.scaled)
        if found != ALL_GOOD:
            return _poll_again(job, now) if found == NOT_YET else FAILED
    pieces = min(count, shards)
    for i in range(count):
        shard = (number + i) % shards
        payload = datagram(st, shard, st.shards[shard].snd_nxt + i // shards)[HEADER : job.size[MAX]]
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
        write_header(datagram(st, shard, block), op, block, owner, st, shard)
        row = st.rows[shard, block & (s.slots - 1)]
        row.size, row.op, row.owner, row.after, row.sent_s = job.size[op], op, owner, block, now
        row.acked, row.taken, row.once, row.lost = False, False, True, False
    advance(s, count, now)
    s.snd_max = s.snd_nxt


@inline
def _poll_again(job: Any, now: float) -> int:
    """Set ``poll_s``: what is to be sent next is still on its way from a device, which can wake nobody. The less time
    has gone by so far, the sooner."""
    if job.held_s == np.inf:
        job.held_s = now
    job.poll_s = now + min(max((now - job.held_s) / POLL_PART, POLL_LEAST_S), POLL_MOST_S)
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
