"""The rings, where datagrams stand from when they are written until their slots are used again."""

from __future__ import annotations

from typing import Any

from inagg_link.jit import inline

from .state import State


@inline
def ring_row(st: State, shard: int, block: int) -> Any:
    """The row of the rings, one after the other, that has the datagram of ``block`` (the shard's number)."""
    return shard * st.job[0].rows + (block & (st.job[0].rows - 1))


@inline
def datagram(st: State, shard: int, block: int) -> Any:
    """The room for the datagram of ``block``, as many bytes as the largest has."""
    start = ring_row(st, shard, block) * st.job[0].stride
    return st.memory[start : start + st.job[0].stride]


@inline
def usable(st: State, shard: int) -> Any:
    """The usable window (RFC 9293, 3.8.6.2.1): how many new blocks may be sent now. Block b may after the result of
    b - P alone, and none of the next round."""
    s = st.shards[shard]
    return min(s.snd_una + s.slots // 2 - s.snd_nxt, s.end - s.snd_nxt, min(s.cwnd, s.credit) - s.flight)


@inline
def share(count: int, at: int, shards: int) -> Any:
    """How many of ``count`` blocks the shard gets that has block ``at`` of them and every ``shards``-th after it."""
    return (count - at + shards - 1) // shards


@inline
def advance(s: Any, count: int, now: float) -> None:
    """``count`` more blocks are out."""
    if s.snd_nxt == s.snd_una:
        s.timer_s = now  # nothing was out: the timer starts now (RFC 6298, 5.1)
    s.snd_nxt += count
    s.flight += count
