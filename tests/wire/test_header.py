"""One datagram: bytes to a valid value or one named reason, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.datagrams import NAMES, STRUCT, any_bytes, datagrams, headers, oracle

from inagg_wire.errors import Reason, WireError
from inagg_wire.header import Datagram, Header, parse
from inagg_wire.layout import GENERATION_MAX, LANE_COUNT_MAX, OWNER_MAX, SLOT_COUNT_MAX, Encoding, Kind, Op

CONTRIBUTION = Header(Kind.CONTRIBUTION, Op.SUM, Encoding.NAT8, lanes=8, job=1, token=2, slot=3, generation=4)
NOTICE = dataclasses.replace(CONTRIBUTION, kind=Kind.NOTICE, lanes=0, reason=Reason.WRONG_TOKEN)
VALID = Datagram(CONTRIBUTION, b"\x01\x02\x03\x04\x05\x06\x07\x08").pack()
HEX = "494e 01 01 01 01 0008 0001 0000 00000002 00000003 00000004 0102030405060708"


def reason_of(data: bytes) -> Reason | None:
    try:
        parse(data)
    except WireError as error:
        return error.reason
    return None


def with_fields(data: bytes, **changed: int) -> bytes:
    fields = dict(zip(NAMES, STRUCT.unpack(data[:24]), strict=True)) | changed
    return STRUCT.pack(*(fields[name] for name in NAMES)) + data[24:]


def test_datagram_has_the_bytes_worked_out_by_hand() -> None:
    assert bytes.fromhex(HEX) == VALID


@given(any_bytes())
@settings(max_examples=600)
def test_any_bytes_parse_or_give_the_one_reason_that_the_description_names(data: bytes) -> None:
    assert reason_of(data) is oracle(data)


@given(any_bytes())
@settings(max_examples=300)
def test_what_parses_builds_the_same_bytes(data: bytes) -> None:
    if oracle(data) is None:
        assert parse(data).pack() == data


@given(datagrams())
@settings(max_examples=300)
def test_parse_inverts_build(datagram: Datagram) -> None:
    parsed = parse(datagram.pack())
    assert parsed == datagram
    assert isinstance(parsed.header.kind, Kind)
    assert isinstance(parsed.header.op, Op)
    assert isinstance(parsed.header.format, Encoding)


@given(headers())
@settings(max_examples=100)
def test_header_announces_the_size_that_parses(header: Header) -> None:
    assert parse(header.pack() + bytes(header.payload_bytes)).header == header


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_parse_takes_any_buffer_of_bytes(buffer: Callable[[bytes], Any]) -> None:
    assert parse(buffer(VALID)).header == CONTRIBUTION


def test_payload_outlives_the_buffer_it_was_read_from() -> None:
    buffer = bytearray(VALID)
    datagram = parse(buffer)
    buffer[24:] = bytes(8)
    assert datagram.payload == VALID[24:]


@pytest.mark.parametrize("size", range(24))
def test_fewer_bytes_than_a_header_are_too_short(size: int) -> None:
    assert reason_of(VALID[:size]) is Reason.TOO_SHORT


@pytest.mark.parametrize("size", range(24, 32))
def test_missing_payload_is_truncated(size: int) -> None:
    assert reason_of(VALID[:size]) is Reason.TRUNCATED


def test_extra_byte_is_a_trailing_byte() -> None:
    assert reason_of(VALID + b"\0") is Reason.TRAILING_BYTES


def test_notice_with_a_payload_has_trailing_bytes() -> None:
    assert reason_of(NOTICE.pack()) is None
    assert reason_of(NOTICE.pack() + b"\0") is Reason.TRAILING_BYTES


@pytest.mark.parametrize("reason", Reason)
def test_notice_can_carry_every_reason(reason: Reason) -> None:
    assert parse(dataclasses.replace(NOTICE, reason=reason).pack()).header.reason is reason


@pytest.mark.parametrize("reason", [0, 15, 31, 44, 0xFFFF])
def test_notice_with_a_reason_that_nobody_knows_is_refused(reason: int) -> None:
    assert reason_of(with_fields(NOTICE.pack(), owner=reason)) is Reason.BAD_OWNER


@pytest.mark.parametrize("owner", [1, 33, OWNER_MAX])
def test_contribution_to_a_sum_can_say_which_rank_gets_the_result(owner: int) -> None:
    assert parse(with_fields(VALID, owner=owner)).header.owner == owner


@pytest.mark.parametrize("owner", [OWNER_MAX + 1, 0xFFFF])
def test_owner_beyond_the_last_rank_is_refused(owner: int) -> None:
    assert reason_of(with_fields(VALID, owner=owner)) is Reason.BAD_OWNER


def test_maxima_have_no_owner() -> None:
    scales = dataclasses.replace(CONTRIBUTION, op=Op.MAX, format=Encoding.SCALE8)
    data = Datagram(scales, bytes(scales.payload_bytes)).pack()
    assert reason_of(data) is None
    assert reason_of(with_fields(data, owner=1)) is Reason.BAD_OWNER


def test_acknowledgement_has_an_owner_and_no_payload() -> None:
    ack = Header(Kind.ACK, Op.SUM, Encoding.NAT8, 0, 1, 1, 0, 1, owner=1).pack()
    assert reason_of(ack) is None
    assert reason_of(with_fields(ack, owner=0)) is Reason.BAD_OWNER
    assert reason_of(ack + b"\0") is Reason.TRAILING_BYTES
    assert reason_of(with_fields(ack, op=Op.MAX, format=Encoding.SCALE8)) is Reason.BAD_FORMAT


# One way to be wrong for each reason; `size` cuts the datagram or makes it longer.
FIELD_FAULTS: dict[Reason, dict[str, int]] = {
    Reason.BAD_MAGIC: {"magic": 0x4E49},
    Reason.BAD_VERSION: {"version": 2},
    Reason.BAD_KIND: {"kind": 5},
    Reason.BAD_OP: {"op": 0},
    Reason.BAD_FORMAT: {"format": Encoding.SCALE8},
    Reason.BAD_LANES: {"lanes": 9},
    Reason.BAD_OWNER: {"owner": 0xFFFF},
    Reason.BAD_JOB: {"job": 0},
    Reason.BAD_TOKEN: {"token": 0},
    Reason.BAD_SLOT: {"slot": SLOT_COUNT_MAX},
    Reason.BAD_GENERATION: {"generation": GENERATION_MAX + 1},
}
SIZE_FAULTS = {Reason.TOO_SHORT: 23, Reason.TRUNCATED: 30, Reason.TRAILING_BYTES: 40}
WIRE_REASONS = sorted([*FIELD_FAULTS, *SIZE_FAULTS])


def faulty(*reasons: Reason) -> bytes:
    data = VALID
    for reason in reasons:
        data = with_fields(data, **FIELD_FAULTS.get(reason, {}))
    sizes = [SIZE_FAULTS[r] for r in reasons if r in SIZE_FAULTS]
    return (data + bytes(16))[: min(sizes)] if sizes else data


def test_there_is_a_fault_for_every_reason_of_the_wire() -> None:
    assert [r for r in Reason if r < 32] == WIRE_REASONS


@pytest.mark.parametrize("reason", WIRE_REASONS, ids=lambda r: r.label)
def test_each_fault_gives_its_reason(reason: Reason) -> None:
    assert reason_of(faulty(reason)) is reason


@pytest.mark.parametrize(
    ("first", "second"),
    [(a, b) for a in WIRE_REASONS for b in WIRE_REASONS if a < b and not {a, b} <= set(SIZE_FAULTS)],
    ids=lambda r: r.label,
)
def test_datagram_wrong_in_two_ways_gives_the_first_reason(first: Reason, second: Reason) -> None:
    assert reason_of(faulty(first, second)) is first


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("lanes", -8, Reason.BAD_LANES),
        ("lanes", LANE_COUNT_MAX + 8, Reason.BAD_LANES),
        ("job", 0x10000, Reason.BAD_JOB),
        ("job", -1, Reason.BAD_JOB),
        ("token", 1 << 32, Reason.BAD_TOKEN),
        ("token", -1, Reason.BAD_TOKEN),
        ("slot", -1, Reason.BAD_SLOT),
        ("generation", 1 << 32, Reason.BAD_GENERATION),
        ("reason", Reason.STALE, Reason.BAD_OWNER),
        ("owner", OWNER_MAX + 1, Reason.BAD_OWNER),
        ("owner", -1, Reason.BAD_OWNER),
    ],
)
def test_header_that_no_datagram_may_have_cannot_be_made(field: str, value: int, reason: Reason) -> None:
    with pytest.raises(WireError) as raised:
        dataclasses.replace(CONTRIBUTION, **{field: value})  # type: ignore[arg-type]
    assert raised.value.reason is reason


@pytest.mark.parametrize(("size", "reason"), [(7, Reason.TRUNCATED), (9, Reason.TRAILING_BYTES)])
def test_datagram_whose_payload_does_not_fit_its_header_cannot_be_made(size: int, reason: Reason) -> None:
    with pytest.raises(WireError) as raised:
        Datagram(CONTRIBUTION, bytes(size))
    assert raised.value.reason is reason


def test_error_text_starts_with_the_reason_and_says_what_was_found() -> None:
    with pytest.raises(WireError, match=r"^bad_lanes: 9 lanes, not a multiple of 8"):
        parse(faulty(Reason.BAD_LANES))


@given(st.binary(min_size=24, max_size=40))
@settings(max_examples=200)
def test_parse_raises_nothing_but_wire_errors(data: bytes) -> None:
    fields = with_fields(data, magic=0x494E, version=1)
    assert reason_of(fields) is oracle(fields)
