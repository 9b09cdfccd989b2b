"""Headers: what datagrams from the switch are to us, and how those that go there are written."""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import inline, jit
from inagg_wire.errors import NOTICED, Reason
from inagg_wire.layout import FIELDS, GENERATION_MAX, HEADER_BYTES, MAGIC, VERSION, Kind, Op

from .state import DISAGREES, FOREIGN, FRESH, OPS, REFUSED, REPEATED, UNNEEDED, State

_AT = {f.name: f.offset for f in FIELDS}
KIND_AT, OP_AT, FORMAT_AT, LANES_AT = _AT["kind"], _AT["op"], _AT["format"], _AT["lanes"]
JOB_AT, OWNER_AT, TOKEN_AT = _AT["job"], _AT["owner"], _AT["token"]
SLOT_AT, GENERATION_AT = _AT["slot"], _AT["generation"]
RESULT, NOTICE, ACK = int(Kind.RESULT), int(Kind.NOTICE), int(Kind.ACK)
SUM = int(Op.SUM)
HEADER, GENERATIONS = int(HEADER_BYTES), int(GENERATION_MAX)
assert HEADER_BYTES >= TOKEN_AT + 4
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
    reason = u16(d, OWNER_AT)
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
    )


@jit
def _is_ack(d: Any, job: Any) -> Any:
    """Whether an acknowledgement is of this job's results."""
    return len(d) == HEADER and d[OP_AT] == SUM and d[FORMAT_AT] == job.result_encoding[SUM] and u16(d, LANES_AT) == 0


@inline
def outcome(d: Any, st: State, shard: int) -> tuple[int, int]:
    """The outcome of the datagram ``d`` from ``shard``, see `OUTCOMES`, and the block that it is about."""
    job, s = st.job[0], st.shards[shard]
    if len(d) < HEADER or u16(d, 0) != _MAGIC or d[2] != _VERSION:
        return FOREIGN, 0
    if u16(d, JOB_AT) != job.number or u32(d, TOKEN_AT) != job.token:
        return FOREIGN, 0
    place = u32(d, SLOT_AT) - s.base
    if not 0 <= place < s.slots:
        return FOREIGN, 0
    row = st.rows[shard, place]
    kind, sent_op = d[KIND_AT], int(row.op)
    known = (
        _is_notice(d, sent_op, job) if kind == NOTICE
        else (kind == RESULT and _is_result(d, job)) or (kind == ACK and _is_ack(d, job))
    )  # fmt: skip
    if not known:
        return FOREIGN, 0
    block = s.snd_una + ((place - s.snd_una) & (s.slots - 1))  # the only one of the next 2P that has this slot
    if block >= s.snd_nxt or u32(d, GENERATION_AT) != 1 + (block >> s.slot_bits) % GENERATIONS:
        return REPEATED, block
    if kind == NOTICE:
        return REFUSED, block
    if row.acked:
        return REPEATED, block
    if d[OP_AT] != row.op:
        return DISAGREES, block
    owner = u16(d, OWNER_AT)
    if owner != row.owner or (kind == RESULT) != is_for(row, job):
        # To a group the switch acknowledges what goes to one of its ranks, to that rank, too.
        return (UNNEEDED if owner == row.owner and kind == ACK else FOREIGN), block
    return FRESH, block


@inline
def is_for(row: Any, job: Any) -> Any:
    """Whether this rank gets the result of a block, and not only others."""
    return row.owner == 0 or row.owner == job.owner


@inline
def write_header(d: Any, op: int, block: int, owner: int, st: State, shard: int) -> None:
    """Write the header of the contribution to ``block`` (the shard's number) at the beginning of ``d``."""
    job, s = st.job[0], st.shards[shard]
    for i in range(HEADER):
        d[i] = job.header[op, i]
    d[OWNER_AT], d[OWNER_AT + 1] = np.uint8(owner >> 8), np.uint8(owner)
    put32(d, SLOT_AT, s.base + (block & (s.slots - 1)))
    put32(d, GENERATION_AT, 1 + (block >> s.slot_bits) % GENERATIONS)
