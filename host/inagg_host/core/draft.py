"""Scales of the next blocks, and with them drafts of their codes: before they are sent, or before they can be."""

from __future__ import annotations

from typing import Any

from inagg_host.codec.calls import NOT_YET, RAISED, call
from inagg_host.codec.encoder import ALL_GOOD
from inagg_link.jit import inline, jit

from .receive import VALUES, fail, items_of, loaded, piece_of
from .state import CODEC_FAILED, OPERATIONS, State

Array = Any

BATCHES_AHEAD = 2
"""How much to draft before a look at what has come meanwhile, in batches of a shard."""


@jit
def find_scales(st: State, o: Any, count: int) -> int:
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
    """The item with the next blocks of values that have no scales."""
    at = o.item
    while items[at].phase != VALUES or items[at].first + items[at].count <= o.scaled:
        at += 1
    return at


@jit
def draft_ahead(st: State) -> bool:
    """Draft the next blocks, `BATCHES_AHEAD` at most, before their scales can be sent; False if there are none, or the
    rings have no room for them. For a rank that would else only wait."""
    job, shards = st.job[0], len(st.shards)
    at, end = job.sending, loaded(st)
    o = st.operations[at & (OPERATIONS - 1)]
    while at < end and o.scaled == o.blocks:
        at += 1
        o = st.operations[at & (OPERATIONS - 1)]
    if at == end or not o.drafting:
        return False
    items = items_of(o)
    item = items[_unscaled(o, items)]
    done = o.scaled - item.first
    most, count = min(item.count - done, BATCHES_AHEAD * job.batch * shards), 0
    while count < most and _has_room(st, o.first_block + item.start + done + count):
        count += 1
    return bool(count > 0 and find_scales(st, o, count) == ALL_GOOD)


@inline
def _has_room(st: State, number: int) -> Any:
    """Whether what is in the row of block ``number`` of the job is not needed again: as of all blocks but the last ones
    that were sent, one for each slot."""
    s = st.shards[number % len(st.shards)]
    return number // len(st.shards) < s.snd_nxt + st.job[0].rows - s.slots
