"""What the kernel calls malformed, against the specification, by one and in numpy, field by field at every edge."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.verdicts import reasons

from inagg_switch.aggregation.validation import malformed
from inagg_wire import header as wire
from inagg_wire.errors import Reason, WireError
from inagg_wire.layout import (
    FIELDS,
    GENERATION_MAX,
    HEADER_BYTES,
    LANE_BITS,
    MAGIC,
    SLOT_COUNT_MAX,
    VERSION,
    Encoding,
    Kind,
    Op,
)

EDGES = {
    "magic": [MAGIC] * 20 + [0, MAGIC ^ 1, 0x4E49],
    "version": [VERSION] * 20 + [0, 2, 255],
    "kind": [*Kind] * 4 + [0, 5, 255],
    "op": [*Op] * 5 + [0, 3, 255],
    "format": [*Encoding] * 3 + [0, 10, 11, 127, 128, 255],
    "lanes": [8] * 20 + [0, 1, 4, 12, 16, 1448, 1449, 65528, 65535],
    "job": [1] * 10 + [0, 65535],
    "owner": [0] * 15 + [*Reason] + [15, 31, 45, 63, 64, 255, 256, 257, 32768, 32769, 65535],
    "token": [1] * 10 + [0, 0x80000000, 0xFFFFFFFF],
    "slot": [0] * 10 + [SLOT_COUNT_MAX - 1, SLOT_COUNT_MAX, 0x80000000, 0xFFFFFFFF],
    "generation": [1] * 10 + [0, GENERATION_MAX, GENERATION_MAX + 1, 0xFFFFFFFF],
}


@st.composite
def nearly_valid(draw: st.DrawFn) -> bytes:
    """A header of edge values, and a payload that fits it most of the time."""
    head = b"".join(int(draw(st.sampled_from(EDGES[f.name]))).to_bytes(f.size, "big") for f in FIELDS)
    lanes, bits = int.from_bytes(head[6:8], "big"), LANE_BITS.get(Encoding(head[5]), 8) if 1 <= head[5] <= 9 else 8
    size = lanes * bits // 8 + draw(st.sampled_from([0] * 8 + [-1, 1, -8, 8, 100]))
    return (head + bytes(max(0, size)))[: draw(st.sampled_from([None] * 10 + [0, 1, 23, 24, 25]))]


def reason_of(data: bytes) -> int:
    try:
        wire.parse(data)
    except WireError as error:
        return error.reason
    return 0


def kernel_reason_of(data: bytes) -> int:
    return int(malformed(np.frombuffer(bytearray(data), np.uint8)))


@settings(max_examples=800)
@given(nearly_valid())
def test_the_kernel_names_the_reason_that_the_parsers_name(data: bytes) -> None:
    want = reason_of(data)
    assert kernel_reason_of(data) == want
    if data:
        assert reasons(np.frombuffer(data, np.uint8), len(data)).tolist() == [want]


@given(st.binary(max_size=80))
def test_random_bytes_get_the_reason_that_the_parser_gives(data: bytes) -> None:
    assert kernel_reason_of(data) == reason_of(data)


@pytest.mark.parametrize("kind", range(6))
@pytest.mark.parametrize("op", range(5))
def test_every_kind_op_format_and_owner_is_judged_as_the_parser_judges_it(kind: int, op: int) -> None:
    for encoding in range(16):
        for lanes, owner in itertools.product((8, 0), (0, 1, 15, 41, 44, 45, 300, 32768, 32769, 65535)):
            values = {"magic": MAGIC, "version": VERSION, "kind": kind, "op": op, "format": encoding, "lanes": lanes}
            values |= {"job": 1, "owner": owner, "token": 1, "slot": 0, "generation": 1}
            head = wire.STRUCT.pack(*(values[f.name] for f in FIELDS))
            for size in (0, 2, 4, 8, 16, 32):
                assert kernel_reason_of(head + bytes(size)) == reason_of(head + bytes(size))


def test_each_length_short_of_a_header_is_too_short() -> None:
    for size in range(HEADER_BYTES):
        assert kernel_reason_of(bytes(size)) == Reason.TOO_SHORT
