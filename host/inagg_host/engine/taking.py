"""A compiled loop's receiving: results accepted, and taken into the sums. See `stream`."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_host.kernels.calls import call
from inagg_wire.compiled import inline, jit

from .filling import copy
from .loops import accept, adapted
from .plan import BLOCKS, CHUNK, COUNT, FIRST, PHASE, PLACE, SIGNATURE_LANES
from .stream import (
    ANSWERED,
    AT,
    BASE,
    DECODE,
    END,
    FLIGHT,
    FRESH,
    HEADER,
    HIGHEST,
    INVALID,
    JOB,
    LEFT,
    LOW,
    MOST,
    NEXT,
    OVERTAKEN,
    PROGRESS,
    PROGRESSED,
    REFINE,
    ROUND_END,
    SAMPLE,
    SAMPLES,
    SAMPLES_MOST,
    SCALE,
    SHORTEST,
    SIGNED,
    SLOTS,
    TAKEN,
    TIMEOUT,
    TOKEN,
    VALUES,
    WRONG,
    Stream,
)

Array = Any


@jit
def take(st: Stream, shard: int, data: Array, size: int, now: float) -> bool:
    """Accept datagrams that ``shard`` has sent, and take what they have for `Stream.taking`. False: the rest, from
    ``TAKEN`` to ``FRESH``, is something else, or a datagram tells of an error."""
    n, w, s, m = st.n, st.w[shard], st.s[shard], st.memory
    fresh, answered, low, highest, timed_s, wrong, _first, _last = accept(
        data, size, n[JOB], n[TOKEN], w[BASE], n[SLOTS], w[LOW], w[NEXT], w[HIGHEST], m.done[shard], m.taken[shard],
        m.op[shard], m.sent_s[shard], m.once[shard], st.shapes, m.counts[shard], st.places, st.blocks,
    )  # fmt: skip
    w[LOW], w[HIGHEST], n[FRESH], n[TAKEN], n[WRONG] = low, highest, fresh, 0, wrong
    if answered:
        w[FLIGHT] -= answered
        w[ANSWERED] += answered
        w[PROGRESSED] = 1
        if timed_s >= 0:
            s[SHORTEST] = min(s[SHORTEST], now - timed_s)
        s[PROGRESS] = now
    if len(st.kept):
        for i in range(fresh):
            copy(st.kept[shard, st.blocks[i] & (n[SLOTS] - 1)], data[st.places[i] * size :], size)
    while n[TAKEN] < fresh:
        if not _take_next(st, shard, data, size):
            return False
    return wrong < 0


@jit
def _take_next(st: Stream, shard: int, data: Array, size: int) -> bool:
    """Take the next results, those of one item; False if they are of none, or not as they should be."""
    n, x, shards = st.n, st.taking, len(st.w)
    begin = n[TAKEN]
    number = st.blocks[begin] * shards + shard  # the job's
    if not _has(x.items, n[AT], number):  # as it almost always has
        n[AT] = 0
        while n[AT] < len(x.items) and not _has(x.items, n[AT], number):
            n[AT] += 1
        if n[AT] == len(x.items):
            n[AT] = 0
            return False
    item = x.items[n[AT]]
    end = begin + 1
    if item[PHASE] == VALUES:
        while end < n[FRESH] and _has(x.items, n[AT], st.blocks[end] * shards + shard):
            end += 1
        invalid = call(n[DECODE], x.context.ctypes.data, size, begin, end, item[FIRST] - item[PLACE] + shard)
        if invalid < 0:
            return False
        n[INVALID] += invalid
    elif item[PHASE] == REFINE or not _take_scales(st, item, data[st.places[begin] * size + HEADER :][: size - HEADER]):
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
    copy(x.scales[item[FIRST] :], payload, item[BLOCKS])
    x.ready[SCALE, item[CHUNK]] = True
    return True


@inline
def _has(items: Array, at: int, number: int) -> Any:
    return 0 <= number - items[at, PLACE] < items[at, COUNT]


@jit
def end_round_trip(st: Stream, shard: int) -> bool:
    """`Window._end_round_trip`, if it is over; False if there is no room for its sample."""
    w, s = st.w[shard], st.s[shard]
    if w[HIGHEST] < w[ROUND_END]:
        return True
    if w[SAMPLES] == SAMPLES_MOST:
        return False
    if s[SHORTEST] < np.inf:
        s[SAMPLE + w[SAMPLES]] = s[SHORTEST]
        w[SAMPLES] += 1
    w[MOST] = adapted(w[MOST], st.n[SLOTS] // 2, w[ANSWERED], w[OVERTAKEN])
    w[ROUND_END], s[SHORTEST], w[ANSWERED], w[OVERTAKEN] = w[NEXT], np.inf, 0, 0
    return True


@jit
def exhausted(st: Stream) -> bool:
    """`Window.exhausted`, of any shard."""
    for shard in range(len(st.w)):
        w = st.w[shard]
        if w[LOW] == w[NEXT] == w[END]:
            return True
    return False


@jit
def time_left(st: Stream, now: float) -> float:
    """Seconds until the first timer runs out; infinity while nothing is out, and so none runs."""
    left_s = np.inf
    for shard in range(len(st.w)):
        if st.w[shard, LOW] != st.w[shard, NEXT]:
            left_s = min(left_s, st.s[shard, PROGRESS] + st.s[shard, TIMEOUT] - now)
    return left_s
