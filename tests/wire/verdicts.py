"""What `inagg_wire.header.parse` says of a datagram, for many at a time: a third account of the rules, in numpy."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from inagg_wire.batch import Bytes, headers, rows
from inagg_wire.errors import Reason
from inagg_wire.layout import (
    BARE,
    CARRIED,
    GENERATION_MAX,
    HEADER_BYTES,
    LANE_BITS,
    LANE_MULTIPLE,
    MAGIC,
    OWNER_MAX,
    SLOT_COUNT_MAX,
    VERSION,
    Kind,
    Op,
)

_KNOWN_REASON: Final = np.zeros(1 << 16, np.bool_)
_KNOWN_REASON[[int(r) for r in Reason]] = True
_CARRIED: Final = np.zeros((256, 256, 256), np.bool_)
for (_kind, _op), _encodings in CARRIED.items():
    _CARRIED[_kind, _op, [int(e) for e in _encodings]] = True
_KIND = np.isin(np.arange(256), [int(k) for k in Kind])
_OP = np.isin(np.arange(256), [int(o) for o in Op])
_LANE_BITS: Final = np.zeros(256, np.int64)
_LANE_BITS[[int(e) for e in LANE_BITS]] = list(LANE_BITS.values())


def reasons(data: Bytes, size: int) -> npt.NDArray[np.uint8]:
    """For each datagram of ``size`` bytes, 0 if it is valid, else the `Reason` that `header.parse` would give."""
    if size < HEADER_BYTES:
        return np.full(len(rows(data, size)), Reason.TOO_SHORT, np.uint8)
    h = headers(data, size)
    kind, op, format_, lanes = (h[name] for name in ("kind", "op", "format", "lanes"))
    owner, bare = h["owner"], np.isin(kind, [int(k) for k in BARE])
    foreign = (owner < (kind == Kind.ACK)) | (owner > np.where(op == Op.MAX, 0, OWNER_MAX))
    want = HEADER_BYTES + lanes.astype(np.int64) * _LANE_BITS[format_] // 8
    wrong = (
        (Reason.BAD_MAGIC, h["magic"] != MAGIC),
        (Reason.BAD_VERSION, h["version"] != VERSION),
        (Reason.BAD_KIND, ~_KIND[kind]),
        (Reason.BAD_OP, ~_OP[op]),
        (Reason.BAD_FORMAT, ~_CARRIED[kind, op, format_]),
        (Reason.BAD_LANES, np.where(bare, lanes != 0, (lanes == 0) | (lanes % LANE_MULTIPLE != 0))),
        (Reason.BAD_OWNER, np.where(kind == Kind.NOTICE, ~_KNOWN_REASON[owner], foreign)),
        (Reason.BAD_JOB, h["job"] == 0),
        (Reason.BAD_TOKEN, h["token"] == 0),
        (Reason.BAD_SLOT, h["slot"] >= SLOT_COUNT_MAX),
        (Reason.BAD_GENERATION, (h["generation"] == 0) | (h["generation"] > GENERATION_MAX)),
        (Reason.TRUNCATED, size < want),
        (Reason.TRAILING_BYTES, size > want),
    )
    return np.select([bad for _, bad in wrong], [np.uint8(why) for why, _ in wrong], np.uint8(0))
