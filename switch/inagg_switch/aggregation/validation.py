"""Whether a datagram is valid, and fits its binding: all of it is looked at before any state changes.

The order of the checks is that of `Reason`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import inline
from inagg_wire.errors import NOTICED, Reason
from inagg_wire.layout import (
    CARRIED,
    FIELDS,
    GENERATION_MAX,
    HEADER_BYTES,
    LANE_BITS,
    LANE_MULTIPLE,
    MAGIC,
    OWNER_MAX,
    SLOT_COUNT_MAX,
    VERSION,
    Encoding,
    Kind,
    Op,
)

from .kernels import Array
from .peers import PARENT

(
    MAGIC_AT, VERSION_AT, KIND_AT, OP_AT, FORMAT_AT, LANES_AT, JOB_AT, OWNER_AT, TOKEN_AT, SLOT_AT, GENERATION_AT,
) = (field.offset for field in FIELDS)  # fmt: skip

CONTRIBUTION, RESULT, NOTICE, ACK = int(Kind.CONTRIBUTION), int(Kind.RESULT), int(Kind.NOTICE), int(Kind.ACK)
SUM, MAX = int(Op.SUM), int(Op.MAX)
_ENCODINGS = max(Encoding) + 1
CARRIES = np.zeros((max(Kind) + 1, max(Op) + 1, _ENCODINGS), np.bool_)
for (_kind, _op), _carried in CARRIED.items():
    CARRIES[_kind, _op, [int(e) for e in _carried]] = True
BITS = np.array([LANE_BITS.get(Encoding(e), 0) if e else 0 for e in range(_ENCODINGS)], np.int64)
KNOWN_REASONS = np.isin(np.arange(max(Reason) + 1), [int(r) for r in Reason])
NOTICED_REASONS = np.isin(np.arange(max(Reason) + 1), [int(r) for r in NOTICED])

(
    TOO_SHORT, BAD_MAGIC, BAD_VERSION, BAD_KIND, BAD_OP, BAD_FORMAT, BAD_LANES, BAD_OWNER, BAD_JOB, BAD_TOKEN,
    BAD_SLOT, BAD_GENERATION, TRUNCATED, TRAILING_BYTES, WRONG_KIND, UNKNOWN_JOB, UNKNOWN_SOURCE, WRONG_TOKEN,
    WRONG_FORMAT, WRONG_LANES, SLOT_OUTSIDE_LEASE, WRONG_OWNER, STALE, WRONG_OP, DUPLICATE, OUTSIDE_WINDOW,
) = (int(r) for r in Reason)  # fmt: skip


@inline
def u16(data: Array, at: int) -> Any:
    return np.int64(data[at]) << 8 | np.int64(data[at + 1])  # int() of a uint8 would be a uint64


@inline
def u32(data: Array, at: int) -> Any:
    return u16(data, at) << 16 | u16(data, at + 2)


@inline
def put_u16(data: Array, at: int, value: int) -> None:
    data[at] = np.uint8(value >> 8)
    data[at + 1] = np.uint8(value)


@inline
def put_u32(data: Array, at: int, value: int) -> None:
    put_u16(data, at, value >> 16)
    put_u16(data, at + 2, value)


@inline
def malformed(d: Array) -> int:
    """The `Reason` for which ``d``, the bytes of one datagram, is no valid datagram at all; 0 if it is one."""
    size = len(d)
    if size < HEADER_BYTES:
        return TOO_SHORT
    if u16(d, MAGIC_AT) != MAGIC:
        return BAD_MAGIC
    if d[VERSION_AT] != VERSION:
        return BAD_VERSION
    kind, op, encoding, lanes, owner = d[KIND_AT], d[OP_AT], d[FORMAT_AT], u16(d, LANES_AT), u16(d, OWNER_AT)
    if kind not in (CONTRIBUTION, RESULT, NOTICE, ACK):
        return BAD_KIND
    if op not in (SUM, MAX):
        return BAD_OP
    if encoding >= CARRIES.shape[2] or not CARRIES[kind, op, encoding]:
        return BAD_FORMAT
    if lanes != 0 if kind in (NOTICE, ACK) else (lanes == 0 or lanes % LANE_MULTIPLE != 0):
        return BAD_LANES
    if kind == NOTICE:
        if owner >= len(KNOWN_REASONS) or not KNOWN_REASONS[owner]:
            return BAD_OWNER
    elif owner > (0 if op == MAX else OWNER_MAX) or (kind == ACK and owner == 0):
        return BAD_OWNER
    if u16(d, JOB_AT) == 0:
        return BAD_JOB
    if u32(d, TOKEN_AT) == 0:
        return BAD_TOKEN
    if u32(d, SLOT_AT) >= SLOT_COUNT_MAX:
        return BAD_SLOT
    if not 1 <= u32(d, GENERATION_AT) <= GENERATION_MAX:
        return BAD_GENERATION
    want = HEADER_BYTES + lanes * BITS[encoding] // 8
    if size < want:
        return TRUNCATED
    if size > want:
        return TRAILING_BYTES
    return 0


@inline
def unbound(d: Array, row: int, child: int, jobs: Any) -> int:
    """The `Reason` for which a valid datagram does not fit the binding in ``row``; 0 if it fits. ``child``: its source
    among those of the job, see `Peers.ranks`."""
    from_parent = child == PARENT and d[KIND_AT] in (RESULT, ACK)
    if d[KIND_AT] != CONTRIBUTION and not from_parent:
        return WRONG_KIND
    if row < 0:
        return UNKNOWN_JOB
    if child < 0 or (child == PARENT and not from_parent):
        return UNKNOWN_SOURCE
    if u32(d, TOKEN_AT) != jobs.table[row].token:
        return WRONG_TOKEN
    op = d[OP_AT]
    if d[FORMAT_AT] != (jobs.table[row].result_encoding[op] if from_parent else jobs.table[row].encoding[op]):
        return WRONG_FORMAT
    lanes = jobs.table[row].up_lanes[op] if from_parent else jobs.table[row].lanes[op]
    if u16(d, LANES_AT) != (0 if d[KIND_AT] == ACK else lanes):
        return WRONG_LANES
    mask, base = jobs.table[row].mask, jobs.table[row].base
    if from_parent:
        mask, base = jobs.table[row].up_mask, jobs.table[row].up_base
    if u32(d, SLOT_AT) & ~mask != base:
        return SLOT_OUTSIDE_LEASE
    owner = u16(d, OWNER_AT)
    if owner > jobs.table[row].owners:
        return WRONG_OWNER
    if from_parent and (d[KIND_AT] == ACK) != (owner != 0 and jobs.child_of[row, owner - 1] < 0):
        return WRONG_OWNER
    return 0
