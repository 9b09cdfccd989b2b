"""What is done with every datagram that comes from the switch, compiled: is it ours, fresh, and of which block?"""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_wire.compiled import jit
from inagg_wire.errors import NOTICED, Reason
from inagg_wire.layout import FIELDS, GENERATION_MAX, HEADER_BYTES, MAGIC, VERSION, Kind

_AT = {f.name: f.offset for f in FIELDS}
KIND_AT, OP_AT, FORMAT_AT, LANES_AT = _AT["kind"], _AT["op"], _AT["format"], _AT["lanes"]
JOB_AT, REASON_AT, TOKEN_AT = _AT["job"], _AT["reason"], _AT["token"]
SLOT_AT, GENERATION_AT = _AT["slot"], _AT["generation"]
RESULT, NOTICE = int(Kind.RESULT), int(Kind.NOTICE)
_MAGIC, _VERSION, _HEADER, _GENERATIONS = int(MAGIC), int(VERSION), int(HEADER_BYTES), int(GENERATION_MAX)

FORMAT, LANES, SIZE, SENT_FORMAT = range(4)
"""Columns of a window's ``shapes``: format, lanes and bytes of results, format of contributions; a row for each op."""

_NOTICED = np.isin(np.arange(max(Reason) + 1), [int(reason) for reason in NOTICED])

# What became of a received datagram: counters by these names.
FRESH, REPEATED, FOREIGN, REFUSED, DISAGREES = range(5)
OUTCOMES = ("fresh", "repeated", "foreign", "refused", "disagrees")

REORDER_BLOCKS = 3
"""A block is taken for lost when the result of one this much later has come: the number of RFC 5681's duplicate
acknowledgements. For all ranks send blocks in order, so whoever has the later result knows that each of them has sent
the earlier block. Which answer came last tells nothing: it may be to something that was sent again, while another rank
has yet to send what this one sent before that. So a block that was sent again is taken for lost again only when the
result has come of a block that was new after that (RFC 8985, RACK, goes by time); or when the timer runs out."""

FLIGHT_LEAST = 32
"""However many are lost, so many blocks may be out: fewer would leave batches half empty, and starve the link."""
OVERRUN = 4
"""More than one in so many lost means that the path cannot hold what is out. Fewer are taken for chance."""


@jit
def _u16(d: Any, at: int) -> Any:
    return np.int64(d[at]) << 8 | np.int64(d[at + 1])


@jit
def _u32(d: Any, at: int) -> Any:
    return _u16(d, at) << 16 | _u16(d, at + 2)


@jit
def _is_notice(d: Any, sent_op: int, shapes: Any) -> Any:
    """Whether a notice tells of what we sent. One that repeats what we never sent was damaged on its way to the switch
    or back."""
    reason = _u16(d, REASON_AT)
    return (
        len(d) == _HEADER
        and _u16(d, LANES_AT) == 0
        and reason < len(_NOTICED)
        and _NOTICED[reason]
        and d[OP_AT] == sent_op
        and d[FORMAT_AT] == shapes[sent_op, SENT_FORMAT]
    )


@jit
def _is_result(d: Any, shapes: Any) -> Any:
    """Whether a result has the format, lanes and bytes that this job's have."""
    op = np.int64(d[OP_AT])
    return (
        op < len(shapes)
        and shapes[op, SIZE] == len(d)
        and d[FORMAT_AT] == shapes[op, FORMAT]
        and _u16(d, LANES_AT) == shapes[op, LANES]
        and _u16(d, REASON_AT) == 0
    )


@jit
def _outcome(
    d: Any, job: int, token: int, base: int, slots: int, low: int, next_: int, done: Any, op: Any, shapes: Any
) -> tuple[int, int]:
    """What the datagram ``d`` is to us, and the block that it is about."""
    if len(d) < _HEADER or _u16(d, 0) != _MAGIC or d[2] != _VERSION:
        return FOREIGN, 0
    if _u16(d, JOB_AT) != job or _u32(d, TOKEN_AT) != token:
        return FOREIGN, 0
    place = _u32(d, SLOT_AT) - base
    if not 0 <= place < slots:
        return FOREIGN, 0
    notice = d[KIND_AT] == NOTICE
    if not (_is_notice(d, op[place], shapes) if notice else d[KIND_AT] == RESULT and _is_result(d, shapes)):
        return FOREIGN, 0
    block = low + ((place - low) & (slots - 1))  # the only block from low on, in the next 2P, that has this slot
    if block >= next_ or _u32(d, GENERATION_AT) != 1 + (block // slots) % _GENERATIONS:
        return REPEATED, block
    if notice:
        return REFUSED, block
    if done[place]:
        return REPEATED, block
    return (FRESH if d[OP_AT] == op[place] else DISAGREES), block


@jit
def _put32(d: Any, at: int, value: int) -> None:
    for i in range(4):
        d[at + i] = np.uint8(value >> (24 - 8 * i))


@jit
def push(
    datagrams: Any, row: int, count: int, header: Any, size: int, op_code: int, slot: int, generation: int, next_: int,
    now: float, sizes: Any, op: Any, done: Any, taken: Any, once: Any, sent_s: Any, after: Any,
) -> None:  # fmt: skip
    """Headers for ``count`` ``datagrams``, which are sent for the first time at ``now``, and what is to be known of
    them from ``row`` on. ``slot``: that of the first; ``next_``: its block."""
    for i in range(count):
        d, at = datagrams[i], row + i
        for j in range(_HEADER):
            d[j] = header[j]
        _put32(d, SLOT_AT, slot + i)
        _put32(d, GENERATION_AT, generation)
        sizes[at], op[at], after[at], sent_s[at] = size, op_code, next_ + i, now
        done[at], taken[at], once[at] = False, False, True


@jit
def accept(
    data: Any, size: int, job: int, token: int, base: int, slots: int, low: int, next_: int, highest: int,
    done: Any, taken: Any, op: Any, sent_s: Any, once: Any, shapes: Any, counts: Any, places: Any, blocks: Any,
) -> tuple[int, int, int, int, float, int, int, int]:  # fmt: skip
    """Mark the blocks whose results are in ``data``, equal datagrams of ``size`` bytes.

    Returns how many blocks are to be taken and how many are answered; ``low`` and ``highest`` (the highest block that
    has a result) as they are then; when the last of the answered blocks that were sent once was sent, or -1; and the
    first datagram that is an error, or -1. The places in ``data`` and the numbers of the blocks to be taken go to
    ``places`` and ``blocks``; last come the lowest and the highest of those blocks.
    """
    fresh, answered, timed_s, wrong = 0, 0, -1.0, -1
    first, last = next_, low - 1
    for i in range(len(data) // size):
        what, block = _outcome(data[i * size : (i + 1) * size], job, token, base, slots, low, next_, done, op, shapes)
        counts[what] += 1
        if what == FRESH:
            row = block & (slots - 1)
            done[row] = True
            answered += 1
            highest = max(highest, block)
            if once[row]:
                timed_s = max(timed_s, sent_s[row])
            if not taken[row]:
                taken[row] = True
                places[fresh] = i
                blocks[fresh] = block
                first, last = min(first, block), max(last, block)
                fresh += 1
        elif what >= REFUSED and wrong < 0:
            wrong = i
    while low < next_ and done[low & (slots - 1)]:
        low += 1
    return fresh, answered, low, highest, timed_s, wrong, first, last


@jit
def adapted(most: int, window: int, answered: int, overtaken: int) -> int:
    """What `Window.flight_most` is after a round trip in which so many blocks were answered and overtaken, if it was
    ``most``: see `Window._adapt`."""
    least = min(window, FLIGHT_LEAST)
    if overtaken * OVERRUN > answered:
        return max(most // 2, least)
    return min(most + max(window // 16, 1), max(window * 3 // 8, least) if overtaken else window)


@jit
def lost(low: int, highest: int, distance: int, slots: int, done: Any, after: Any, out: Any) -> int:
    """The blocks without a result that a block ``distance`` or more after the one in ``after`` has overtaken: into
    ``out``, as far as it has room; how many."""
    count = 0
    for block in range(low, highest):
        row = block & (slots - 1)
        if not done[row] and after[row] + distance <= highest:
            if count == len(out):
                break
            out[count] = block
            count += 1
    return count
