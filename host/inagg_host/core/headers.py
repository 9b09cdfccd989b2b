"""Headers: what datagrams from the switch are to us, and how those that go there are written."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import jit
from inagg_wire.errors import NOTICED, Reason
from inagg_wire.layout import FIELDS, GENERATION_MAX, HEADER_BYTES, MAGIC, VERSION, Kind

from .state import DISAGREES, FOREIGN, FRESH, OPS, REFUSED, REPEATED, State

_AT = {f.name: f.offset for f in FIELDS}
KIND_AT, OP_AT, FORMAT_AT, LANES_AT = _AT["kind"], _AT["op"], _AT["format"], _AT["lanes"]
JOB_AT, REASON_AT, TOKEN_AT = _AT["job"], _AT["reason"], _AT["token"]
SLOT_AT, GENERATION_AT = _AT["slot"], _AT["generation"]
RESULT, NOTICE = int(Kind.RESULT), int(Kind.NOTICE)
HEADER, GENERATIONS = int(HEADER_BYTES), int(GENERATION_MAX)
_MAGIC, _VERSION = int(MAGIC), int(VERSION)

_NOTICED = np.isin(np.arange(max(Reason) + 1), [int(reason) for reason in NOTICED])


@jit
def u16(d: Any, at: int) -> Any:
    return np.int64(d[at]) << 8 | np.int64(d[at + 1])


@jit
def u32(d: Any, at: int) -> Any:
    return u16(d, at) << 16 | u16(d, at + 2)


@jit
def put32(d: Any, at: int, value: int) -> None:
    for i in range(4):
        d[at + i] = np.uint8(value >> (24 - 8 * i))


@jit
def _is_notice(d: Any, sent_op: int, job: Any) -> Any:
    """Whether a notice tells of what we sent. One that repeats what we never sent was damaged on its way to the switch
    or back."""
    reason = u16(d, REASON_AT)
    return (
        len(d) == HEADER
        and u16(d, LANES_AT) == 0
        and reason < len(_NOTICED)
        and _NOTICED[reason]
        and d[OP_AT] == sent_op
        and d[FORMAT_AT] == job.encoding[sent_op]
    )


@jit
def _is_result(d: Any, job: Any) -> Any:
    """Whether a result has the format, lanes and bytes that this job's have."""
    op = np.int64(d[OP_AT])
    return (
        op < OPS
        and job.result_size[op] == len(d)
        and d[FORMAT_AT] == job.result_encoding[op]
        and u16(d, LANES_AT) == job.result_lanes[op]
        and u16(d, REASON_AT) == 0
    )


@jit
def outcome(d: Any, st: State, shard: int) -> tuple[int, int]:
    """What the datagram ``d`` from ``shard`` is to us, and the block that it is about."""
    job, s = st.job[0], st.shards[shard]
    if len(d) < HEADER or u16(d, 0) != _MAGIC or d[2] != _VERSION:
        return FOREIGN, 0
    if u16(d, JOB_AT) != job.number or u32(d, TOKEN_AT) != job.token:
        return FOREIGN, 0
    place = u32(d, SLOT_AT) - s.base
    if not 0 <= place < s.slots:
        return FOREIGN, 0
    row = st.rows[shard, place]
    notice, sent_op = d[KIND_AT] == NOTICE, int(row.op)
    if not (_is_notice(d, sent_op, job) if notice else d[KIND_AT] == RESULT and _is_result(d, job)):
        return FOREIGN, 0
    block = s.snd_una + ((place - s.snd_una) & (s.slots - 1))  # the only one of the next 2P that has this slot
    if block >= s.snd_nxt or u32(d, GENERATION_AT) != 1 + (block // s.slots) % GENERATIONS:
        return REPEATED, block
    if notice:
        return REFUSED, block
    if row.acked:
        return REPEATED, block
    return (FRESH if d[OP_AT] == row.op else DISAGREES), block


@jit
def write_header(d: Any, op: int, block: int, st: State, shard: int) -> None:
    """That of the contribution to ``block`` (the shard's number), at the beginning of ``d``."""
    job, s = st.job[0], st.shards[shard]
    for i in range(HEADER):
        d[i] = job.header[op, i]
    put32(d, SLOT_AT, s.base + (block & (s.slots - 1)))
    put32(d, GENERATION_AT, 1 + block // s.slots % GENERATIONS)
