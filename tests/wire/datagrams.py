"""Strategies for datagrams of all kinds of wrongness, and an oracle that says what is wrong with one.

The oracle knows the format from its description and uses nothing of `inagg_wire` but the names of the reasons.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from hypothesis import strategies as st

from inagg_wire.errors import Reason
from inagg_wire.header import Datagram, Header
from inagg_wire.layout import (
    BARE,
    CARRIED,
    GENERATION_MAX,
    LANE_COUNT_MAX,
    OWNER_MAX,
    SLOT_COUNT_MAX,
    Kind,
    Op,
    payload_bytes,
)

STRUCT: Final = struct.Struct(">HBBBBHHHIII")
NAMES: Final = ["magic", "version", "kind", "op", "format", "lanes", "job", "owner", "token", "slot", "generation"]
BITS: Final = {1: 8, 2: 4, 3: 2, 4: 8, 5: 32, 6: 4, 7: 8, 8: 16, 9: 8}


def oracle(data: bytes) -> Reason | None:
    """The first thing that is wrong with ``data``, by the description of the format."""
    if len(data) < 24:
        return Reason.TOO_SHORT
    magic, version, kind, op, format_, lanes, job, owner, token, slot, generation = STRUCT.unpack(data[:24])
    if magic != 0x494E:
        return Reason.BAD_MAGIC
    if version != 1:
        return Reason.BAD_VERSION
    if kind not in (1, 2, 3, 4):
        return Reason.BAD_KIND
    if op not in (1, 2):
        return Reason.BAD_OP
    results = {1, 2, 4, 5, 6, 7, 8}
    of_sum = {1: {1, 2, 3, 4, 5, 8}, 2: results, 3: {1, 2, 3, 4, 5, 6, 7, 8}, 4: results}[kind]
    of_max = set() if kind == 4 else {9}
    if format_ not in (of_sum if op == 1 else of_max):
        return Reason.BAD_FORMAT
    if (lanes != 0) if kind in (3, 4) else (lanes == 0 or lanes % 8 != 0):
        return Reason.BAD_LANES
    owners = {int(r) for r in Reason} if kind == 3 else range(kind == 4, 1 if op == 2 else 32769)
    if owner not in owners:
        return Reason.BAD_OWNER
    if job == 0:
        return Reason.BAD_JOB
    if token == 0:
        return Reason.BAD_TOKEN
    if slot >= 1 << 24:
        return Reason.BAD_SLOT
    if not 1 <= generation <= (1 << 31) - 1:
        return Reason.BAD_GENERATION
    want = 24 + lanes * BITS[format_] // 8
    if len(data) != want:
        return Reason.TRUNCATED if len(data) < want else Reason.TRAILING_BYTES
    return None


def numbers(low: int, high: int) -> st.SearchStrategy[int]:
    """Integers that stand at the ends of their range more often than not."""
    return st.sampled_from([low, high]) | st.integers(low, high)


@st.composite
def headers(draw: st.DrawFn, lanes_max: int = LANE_COUNT_MAX) -> Header:
    """Valid headers of every kind."""
    kind, op = draw(st.sampled_from([pair for pair, encodings in CARRIED.items() if encodings]))
    notice = kind is Kind.NOTICE
    return Header(
        kind=kind,
        op=op,
        format=draw(st.sampled_from(sorted(CARRIED[kind, op]))),
        lanes=0 if kind in BARE else 8 * draw(numbers(1, lanes_max // 8)),
        job=draw(numbers(1, 0xFFFF)),
        token=draw(numbers(1, 0xFFFFFFFF)),
        slot=draw(numbers(0, SLOT_COUNT_MAX - 1)),
        generation=draw(numbers(1, GENERATION_MAX)),
        reason=draw(st.sampled_from(Reason)) if notice else None,
        owner=0 if notice or op is Op.MAX else draw(numbers(int(kind is Kind.ACK), OWNER_MAX)),
    )


@st.composite
def datagrams(draw: st.DrawFn) -> Datagram:
    """Valid datagrams with few lanes and any payload."""
    header = draw(headers(lanes_max=32))
    size = payload_bytes(header.format, header.lanes)
    return Datagram(header, draw(st.binary(min_size=size, max_size=size)))


_NEAR: Final = {  # values at and beyond what each field may hold
    "magic": [0x494E, 0x4E49, 0],
    "version": [1, 0, 2, 255],
    "kind": [1, 2, 3, 4, 0, 5, 255],
    "op": [1, 2, 0, 3, 255],
    "format": [*range(11), 255],
    "lanes": [0, 8, 16, 1, 7, 9, 12, 65528, 65535],
    "job": [1, 65535, 0],
    "owner": [0, 1, 14, 15, 31, 32, 43, 44, 256, 32768, 32769, 65535],
    "token": [1, 0xFFFFFFFF, 0],
    "slot": [0, (1 << 24) - 1, 1 << 24, 0xFFFFFFFF],
    "generation": [1, GENERATION_MAX, 0, GENERATION_MAX + 1, 0xFFFFFFFF],
}
assert list(_NEAR) == NAMES


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid datagram with some fields set to likely mistakes, some bytes changed, cut or made longer."""
    data = bytearray(draw(datagrams()).pack())
    fields: dict[str, Any] = dict(zip(NAMES, STRUCT.unpack(data[:24]), strict=True))
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3)):
        fields[name] = draw(st.sampled_from(_NEAR[name]))
    data[:24] = STRUCT.pack(*fields.values())
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    keep = draw(st.sampled_from([len(data), len(data) - 1, 24, 23]) | st.integers(0, len(data)))
    return bytes(data[:keep]) + draw(st.just(b"") | st.binary(max_size=9))


def any_bytes() -> st.SearchStrategy[bytes]:
    """Anything: mostly nearly valid datagrams, as all else fails at the magic number."""
    return mutated() | datagrams().map(Datagram.pack) | st.binary(max_size=64)
