"""Sending again: blocks that were lost, and blocks that an earlier epoch had sent."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import inline, jit

from .receive import copy
from .ring import advance, datagram, usable
from .state import State


@inline
def send_lost(st: State, shard: int) -> int:
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
def replay(st: State, shard: int, now: float) -> int:
    """The next blocks that were sent in an earlier epoch already, of one size, by the same rules as new ones: sent all
    at once, a slot could be reused while a rank waits for its result, for the proof in `inagg_wire.slots` needs that
    whoever sends b + P has the result of b."""
    s = st.shards[shard]
    most = min(s.snd_max - s.snd_nxt, usable(st, shard), st.job[0].batch)
    count: Any = 0
    size: Any = 0
    while count < most:
        row = st.rows[shard, s.snd_nxt & (s.slots - 1)]
        if count > 0 and row.size != size:
            break
        size = np.int64(row.size)
        _append(st, shard, s.snd_nxt, count, size)
        row.acked, row.once, row.sent_s, row.after = False, True, now, s.snd_nxt
        advance(s, 1, now)
        count += 1
    return _gathered(st, shard, count, size)


@jit
def _append(st: State, shard: int, block: int, at: int, size: int) -> None:
    """Copy a datagram to place ``at`` of the room for what is sent again."""
    copy(st.memory[st.job[0].spare + at * size :], datagram(st, shard, block), size)


@jit
def _gathered(st: State, shard: int, count: int, size: int) -> int:
    piece = st.pieces[0]
    piece.start, piece.count, piece.size, piece.shard = st.job[0].spare, count, size, shard
    st.shards[shard].retransmitted += count
    return 1
