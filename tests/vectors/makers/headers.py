"""headers.json: every valid combination of kind, op and format, and every way to be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inagg_wire.errors import Reason, WireError
from inagg_wire.header import Datagram, Header, parse
from inagg_wire.layout import (
    BARE,
    CARRIED,
    FIELDS,
    GENERATION_MAX,
    OWNER_MAX,
    SLOT_COUNT_MAX,
    Encoding,
    Kind,
    Op,
    payload_bytes,
)

from .common import Vector

MEANING = (
    "Whole datagrams. Each of `valid` parses into the fields beside it and is what those fields build; its "
    "payload is any payload. Each of `invalid` is refused for the one reason beside it, the first in the order of"
    " checks that fits."
)

OFFSET = {f.name: (f.offset, f.size) for f in FIELDS}
JOB, TOKEN, SLOT, GENERATION = 0x0102, 0x1A2B3C4D, 0x00A0B0C0, 0x01020304


def _payload(encoding: Encoding, lanes: int) -> bytes:
    """Bytes 1, 2, 3, ...: a swapped or lost byte shows."""
    return bytes((i + 1) & 0xFF for i in range(payload_bytes(encoding, lanes)))


def _datagram(kind: Kind, op: Op, encoding: Encoding, lanes: int, **other: Any) -> Datagram:
    values: dict[str, Any] = {"job": JOB, "token": TOKEN, "slot": SLOT, "generation": GENERATION} | other
    return Datagram(Header(kind=kind, op=op, format=encoding, lanes=lanes, **values), _payload(encoding, lanes))


def _valid() -> Iterator[tuple[str, Datagram]]:
    for (kind, op), encodings in CARRIED.items():
        for encoding in sorted(encodings):
            other: dict[Kind, dict[str, Any]] = {Kind.NOTICE: {"reason": Reason.WRONG_FORMAT}, Kind.ACK: {"owner": 2}}
            what = f"{kind.name.lower()}, {op.name}, {encoding.name.lower()}"
            yield what, _datagram(kind, op, encoding, 0 if kind in BARE else 8, **other.get(kind, {}))
    for reason in Reason:
        yield f"error notice: {reason.label}", _datagram(Kind.NOTICE, Op.SUM, Encoding.NAT8, 0, reason=reason)
    contribution = (Kind.CONTRIBUTION, Op.SUM, Encoding.NAT8)
    yield "the smallest of every number", _datagram(*contribution, 8, job=1, token=1, slot=0, generation=1)
    largest: dict[str, Any] = {
        "job": 0xFFFF,
        "token": 0xFFFFFFFF,
        "slot": SLOT_COUNT_MAX - 1,
        "generation": GENERATION_MAX,
    }
    yield "the largest of every number", _datagram(*contribution, 8, **largest)
    for kind in (Kind.CONTRIBUTION, Kind.RESULT, Kind.ACK):
        lanes = 0 if kind in BARE else 8
        yield f"{kind.name.lower()} for rank 0", _datagram(kind, Op.SUM, Encoding.NAT8, lanes, owner=1)
        yield f"{kind.name.lower()} for rank 32767", _datagram(kind, Op.SUM, Encoding.NAT8, lanes, owner=OWNER_MAX)
    yield "an odd number of groups of 8 lanes, 2 bits each", _datagram(Kind.CONTRIBUTION, Op.SUM, Encoding.TERN, 40)
    yield "1448 lanes: a full 1500-byte frame", _datagram(*contribution, 1448)


def _changed(data: bytes, **fields: int) -> bytes:
    changed = bytearray(data)
    for name, value in fields.items():
        offset, size = OFFSET[name]
        changed[offset : offset + size] = value.to_bytes(size)
    return bytes(changed)


def _invalid() -> Iterator[tuple[str, bytes, Reason]]:
    sound = _datagram(Kind.CONTRIBUTION, Op.SUM, Encoding.NAT8, 8).pack()
    result = _datagram(Kind.RESULT, Op.SUM, Encoding.NAT8, 8).pack()
    notice = _datagram(Kind.NOTICE, Op.SUM, Encoding.NAT8, 0, reason=Reason.WRONG_TOKEN).pack()
    ack = _datagram(Kind.ACK, Op.SUM, Encoding.NAT8, 0, owner=2).pack()
    scales = _datagram(Kind.CONTRIBUTION, Op.MAX, Encoding.SCALE8, 8).pack()
    yield "no bytes at all", b"", Reason.TOO_SHORT
    yield "one byte less than a header", sound[:23], Reason.TOO_SHORT
    yield "magic in little-endian order", _changed(sound, magic=0x4E49), Reason.BAD_MAGIC
    yield "version 0", _changed(sound, version=0), Reason.BAD_VERSION
    yield "version 2", _changed(sound, version=2), Reason.BAD_VERSION
    yield "kind 0", _changed(sound, kind=0), Reason.BAD_KIND
    yield "kind 5", _changed(sound, kind=5), Reason.BAD_KIND
    yield "op 0", _changed(sound, op=0), Reason.BAD_OP
    yield "op 3", _changed(sound, op=3), Reason.BAD_OP
    yield "format 0", _changed(sound, format=0), Reason.BAD_FORMAT
    yield "format 10", _changed(sound, format=10), Reason.BAD_FORMAT
    yield from _not_carried(sound, result, notice, ack)
    yield "no lanes in a contribution", _changed(sound, lanes=0)[:24], Reason.BAD_LANES
    yield "lanes no multiple of 8, and as many bytes", _changed(sound, lanes=4)[:28], Reason.BAD_LANES
    yield "lanes of an error notice", _changed(notice, lanes=8) + bytes(8), Reason.BAD_LANES
    yield "lanes of an acknowledgement", _changed(ack, lanes=8) + bytes(8), Reason.BAD_LANES
    yield "an owner beyond the last rank, in a contribution", _changed(sound, owner=OWNER_MAX + 1), Reason.BAD_OWNER
    yield "an owner beyond the last rank, in a result", _changed(result, owner=0xFFFF), Reason.BAD_OWNER
    for bit in range(16):
        yield f"an owner with MAX: 2^{bit}", _changed(scales, owner=1 << bit), Reason.BAD_OWNER
    yield "an acknowledgement without an owner", _changed(ack, owner=0), Reason.BAD_OWNER
    yield "an error notice without a reason", _changed(notice, owner=0), Reason.BAD_OWNER
    for reason in (15, 31, 44, 45, 46, 47):
        yield f"an error notice with the unknown reason {reason}", _changed(notice, owner=reason), Reason.BAD_OWNER
    yield "an error notice with a reason beyond a byte", _changed(notice, owner=0x0123), Reason.BAD_OWNER
    yield "job 0", _changed(sound, job=0), Reason.BAD_JOB
    yield "token 0", _changed(sound, token=0), Reason.BAD_TOKEN
    yield "slot 2^24", _changed(sound, slot=SLOT_COUNT_MAX), Reason.BAD_SLOT
    yield "slot 2^32 - 1", _changed(sound, slot=0xFFFFFFFF), Reason.BAD_SLOT
    yield "generation 0", _changed(sound, generation=0), Reason.BAD_GENERATION
    yield "generation 2^31", _changed(sound, generation=GENERATION_MAX + 1), Reason.BAD_GENERATION
    yield "no payload", sound[:24], Reason.TRUNCATED
    yield "one payload byte too few", sound[:-1], Reason.TRUNCATED
    yield "one payload byte too many", sound + b"\0", Reason.TRAILING_BYTES
    yield "an error notice with a payload", notice + b"\0", Reason.TRAILING_BYTES
    yield "an acknowledgement with a payload", ack + b"\0", Reason.TRAILING_BYTES
    yield from _wrong_twice(sound)


def _not_carried(sound: bytes, result: bytes, notice: bytes, ack: bytes) -> Iterator[tuple[str, bytes, Reason]]:
    """Formats that exist, under a kind and op that cannot carry them."""
    yield "a SUM contribution of int4", _changed(sound, format=Encoding.INT4), Reason.BAD_FORMAT
    yield "a SUM contribution of int8", _changed(sound, format=Encoding.INT8), Reason.BAD_FORMAT
    yield "a SUM contribution of scale8", _changed(sound, format=Encoding.SCALE8), Reason.BAD_FORMAT
    yield "a MAX contribution of nat8", _changed(sound, op=Op.MAX), Reason.BAD_FORMAT
    yield "a SUM result of tern", _changed(result, format=Encoding.TERN), Reason.BAD_FORMAT
    yield "a SUM notice of scale8", _changed(notice, format=Encoding.SCALE8), Reason.BAD_FORMAT
    yield "an acknowledgement of tern", _changed(ack, format=Encoding.TERN), Reason.BAD_FORMAT
    yield "a MAX acknowledgement", _changed(ack, op=Op.MAX, format=Encoding.SCALE8), Reason.BAD_FORMAT
    yield "a MAX notice of nat8", _changed(notice, op=Op.MAX), Reason.BAD_FORMAT


def _wrong_twice(sound: bytes) -> Iterator[tuple[str, bytes, Reason]]:
    """Wrong from a certain field on to the last: the first one is what counts."""
    wrong = {
        "magic": (0, Reason.BAD_MAGIC),
        "version": (9, Reason.BAD_VERSION),
        "kind": (9, Reason.BAD_KIND),
        "op": (9, Reason.BAD_OP),
        "format": (99, Reason.BAD_FORMAT),
        "lanes": (7, Reason.BAD_LANES),
        "owner": (0xFFFF, Reason.BAD_OWNER),
        "job": (0, Reason.BAD_JOB),
        "token": (0, Reason.BAD_TOKEN),
        "slot": (0xFFFFFFFF, Reason.BAD_SLOT),
        "generation": (0, Reason.BAD_GENERATION),
    }
    names = list(wrong)
    for i, name in enumerate(names):
        fields = {n: wrong[n][0] for n in names[i:]}
        yield f"{' and '.join(names[i:])} wrong, and truncated", _changed(sound, **fields)[:25], wrong[name][1]


def _refused(what: str, data: bytes, reason: Reason) -> Vector:
    try:
        parse(data)
        found = None
    except WireError as error:
        found = error.reason
    assert found is reason, f"{what}: {found}"
    return {"what": what, "datagram": data.hex(), "reason": int(reason), "name": reason.label}


def _accepted(what: str, datagram: Datagram) -> Vector:
    header = datagram.header
    assert parse(datagram.pack()) == datagram
    fields = {f.name: int(getattr(header, f.name)) for f in FIELDS if f.name not in ("magic", "version")}
    fields["owner"] |= header.reason or 0
    return {"what": what, "datagram": datagram.pack().hex(), "fields": fields}


def make() -> Vector:
    """The content of headers.json."""
    return {
        "meaning": MEANING,
        "valid": [_accepted(*v) for v in _valid()],
        "invalid": [_refused(*v) for v in _invalid()],
    }
