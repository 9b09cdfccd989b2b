"""The table of offsets: what every implementation relies on."""

from __future__ import annotations

import re
import struct

import pytest

from inagg_wire.errors import NOTICED, Reason
from inagg_wire.layout import (
    CARRIED,
    FIELDS,
    HEADER_BYTES,
    LANE_BITS,
    LANE_COUNT_MAX,
    LANE_MULTIPLE,
    UDP_PAYLOAD_BYTES_1500,
    Encoding,
    Kind,
    Op,
    datagram_bytes,
    payload_bytes,
)


def test_fields_cover_the_header_without_holes_or_overlaps() -> None:
    covered = [byte for field in FIELDS for byte in range(field.offset, field.offset + field.size)]
    assert covered == list(range(HEADER_BYTES))


def test_fields_stand_at_their_natural_alignment() -> None:
    assert {field.name: field.offset % field.size for field in FIELDS if field.offset % field.size} == {}


def test_lanes_start_at_a_multiple_of_eight_bytes() -> None:
    assert HEADER_BYTES % 8 == 0


def test_offsets_are_those_that_were_published() -> None:
    assert [(f.name, f.offset, f.size) for f in FIELDS] == [
        ("magic", 0, 2),
        ("version", 2, 1),
        ("kind", 3, 1),
        ("op", 4, 1),
        ("format", 5, 1),
        ("lanes", 6, 2),
        ("job", 8, 2),
        ("owner", 10, 2),
        ("token", 12, 4),
        ("slot", 16, 4),
        ("generation", 20, 4),
    ]


def test_field_maximum_is_that_of_its_bytes() -> None:
    assert {f.size: f.max for f in FIELDS} == {
        size: struct.unpack(code, b"\xff" * size)[0] for size, code in ((1, ">B"), (2, ">H"), (4, ">I"))
    }


def test_numbers_are_those_that_were_published() -> None:
    assert {k.name: k.value for k in Kind} == {"CONTRIBUTION": 1, "RESULT": 2, "NOTICE": 3, "ACK": 4}
    assert {o.name: o.value for o in Op} == {"SUM": 1, "MAX": 2}
    assert [e.name for e in Encoding] == ["NAT8", "NAT4", "TERN", "DITH8", "FIX32", "INT4", "INT8", "INT16", "SCALE8"]
    assert [e.value for e in Encoding] == list(range(1, 10))


def test_reasons_are_numbered_as_published_and_in_the_order_of_checking() -> None:
    assert {r.label: r.value for r in Reason} == {
        "too_short": 1,
        "bad_magic": 2,
        "bad_version": 3,
        "bad_kind": 4,
        "bad_op": 5,
        "bad_format": 6,
        "bad_lanes": 7,
        "bad_owner": 8,
        "bad_job": 9,
        "bad_token": 10,
        "bad_slot": 11,
        "bad_generation": 12,
        "truncated": 13,
        "trailing_bytes": 14,
        "wrong_kind": 32,
        "unknown_job": 33,
        "unknown_source": 34,
        "wrong_token": 35,
        "wrong_format": 36,
        "wrong_lanes": 37,
        "slot_outside_lease": 38,
        "stale": 39,
        "wrong_op": 40,
        "duplicate": 41,
        "outside_window": 42,
        "wrong_owner": 43,
    }
    late = [Reason.WRONG_OWNER]  # numbered after others that are checked later
    assert [r for r in Reason if r not in late] == sorted(set(Reason) - set(late))


def test_reason_labels_are_fit_for_metric_names() -> None:
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", r.label) for r in Reason)


def test_only_reasons_that_follow_the_check_of_the_source_are_noticed() -> None:
    assert min(NOTICED) > Reason.UNKNOWN_SOURCE


def test_every_kind_and_op_says_what_it_carries() -> None:
    assert set(CARRIED) == {(kind, op) for kind in Kind for op in Op}
    assert [key for key, encodings in CARRIED.items() if not encodings] == [(Kind.ACK, Op.MAX)]


def test_max_carries_scale_bytes_and_nothing_else_does() -> None:
    for (kind, op), encodings in CARRIED.items():
        scales = set() if kind is Kind.ACK else {Encoding.SCALE8}
        assert (encodings == scales) if op is Op.MAX else (Encoding.SCALE8 not in encodings)


@pytest.mark.parametrize("encoding", Encoding)
def test_eight_lanes_of_any_encoding_end_on_a_byte(encoding: Encoding) -> None:
    assert LANE_MULTIPLE * LANE_BITS[encoding] % 8 == 0


@pytest.mark.parametrize("encoding", Encoding)
def test_payload_bytes_are_lanes_times_bits(encoding: Encoding) -> None:
    for lanes in (8, 16, 1448, LANE_COUNT_MAX):
        assert payload_bytes(encoding, lanes) * 8 == lanes * LANE_BITS[encoding]


def test_full_frame_carries_1448_lanes_of_a_byte() -> None:
    assert datagram_bytes(Encoding.NAT8, 1448) == UDP_PAYLOAD_BYTES_1500 == 1472


def test_headers_take_less_than_a_twentieth_of_a_full_frame() -> None:
    frame = 1500
    assert 20 + 8 + datagram_bytes(Encoding.NAT8, 1448) == frame
    assert (20 + 8 + HEADER_BYTES) / frame < 0.05


def test_header_shorter_by_less_than_eight_bytes_would_carry_no_more_lanes() -> None:
    def lanes(header_bytes: int) -> int:
        return (UDP_PAYLOAD_BYTES_1500 - header_bytes) // LANE_MULTIPLE * LANE_MULTIPLE

    assert {lanes(size) for size in range(HEADER_BYTES - 7, HEADER_BYTES + 1)} == {1448}
    assert lanes(HEADER_BYTES - 8) > 1448
