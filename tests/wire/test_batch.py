"""A buffer of equal datagrams: the same verdicts and values as one at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.datagrams import STRUCT, any_bytes, datagrams, headers, mutated
from tests.wire.verdicts import reasons

from inagg_wire import batch
from inagg_wire.errors import Reason, WireError
from inagg_wire.header import Datagram, Header, parse
from inagg_wire.layout import FIELDS, HEADER_BYTES, Encoding, Kind, Op, datagram_bytes

HEADER = Header(Kind.RESULT, Op.SUM, Encoding.NAT4, lanes=16, job=5, token=6, slot=7, generation=8)


def verdict(data: bytes) -> int:
    try:
        parse(data)
    except WireError as error:
        return error.reason
    return 0


def array(data: bytes) -> batch.Bytes:
    return np.frombuffer(data, np.uint8)


@given(st.lists(mutated() | datagrams().map(Datagram.pack), min_size=1, max_size=6), st.integers(1, 60))
@settings(max_examples=250)
def test_reasons_agree_with_parse_for_every_datagram(listed: list[bytes], odd_size: int) -> None:
    sizes = {len(data) for data in listed} | {odd_size}
    for size in sizes - {0}:
        equal = [data.ljust(size, b"\0")[:size] for data in listed]
        assert reasons(array(b"".join(equal)), size).tolist() == [verdict(data) for data in equal]


@given(any_bytes().filter(len))
@settings(max_examples=300)
def test_reasons_agree_with_parse_for_a_batch_of_one(data: bytes) -> None:
    assert reasons(array(data), len(data)).tolist() == [verdict(data)]


def test_owner_that_no_job_has_is_bad() -> None:
    data, size = batch.allocate(HEADER, 2)
    batch.headers(data, size)["owner"] = [32768, 32769]
    assert reasons(data, size).tolist() == [0, Reason.BAD_OWNER]


@pytest.mark.parametrize("size", [1, 23, 24, 32, 1472])
def test_empty_buffer_has_no_reasons(size: int) -> None:
    assert reasons(np.zeros(0, np.uint8), size).tolist() == []


@given(headers(lanes_max=64), st.integers(0, 5))
@settings(max_examples=100)
def test_allocated_datagrams_are_valid_and_carry_the_header(header: Header, count: int) -> None:
    data, size = batch.allocate(header, count)
    assert size == datagram_bytes(header.format, header.lanes)
    assert reasons(data, size).tolist() == [0] * count
    assert [parse(row.tobytes()).header for row in batch.rows(data, size)] == [header] * count


@given(st.lists(headers(lanes_max=8), min_size=1, max_size=8), st.integers(0, 9))
@settings(max_examples=100)
def test_header_views_read_what_struct_reads(listed: list[Header], payload: int) -> None:
    data = array(b"".join(header.pack() + bytes(range(payload)) for header in listed))
    views = batch.headers(data, HEADER_BYTES + payload)
    assert [tuple(int(v) for v in row) for row in views.tolist()] == [STRUCT.unpack(h.pack()) for h in listed]


def test_header_views_write_through_to_the_buffer() -> None:
    data, size = batch.allocate(HEADER, 3)
    views = batch.headers(data, size)
    views["slot"], views["generation"] = [10, 11, 12], [20, 21, 22]
    parsed = [parse(row.tobytes()).header for row in batch.rows(data, size)]
    assert [(h.slot, h.generation) for h in parsed] == [(10, 20), (11, 21), (12, 22)]


def test_payload_views_write_through_to_the_buffer() -> None:
    data, size = batch.allocate(HEADER, 2)
    batch.payloads(data, size)[1] = np.arange(8)
    assert [parse(row.tobytes()).payload for row in batch.rows(data, size)] == [bytes(8), bytes(range(8))]


def test_headers_of_read_only_bytes_are_read_only() -> None:
    assert not batch.headers(array(HEADER.pack()), HEADER_BYTES).flags.writeable


def test_dtype_has_every_field_at_its_offset() -> None:
    fields = batch.HEADER_DTYPE.fields
    assert fields is not None
    assert {name: (dtype.itemsize, offset) for name, (dtype, offset, *_) in fields.items()} == {
        f.name: (f.size, f.offset) for f in FIELDS
    }


@pytest.mark.parametrize("size", [0, -1, 5])
def test_buffer_that_is_no_whole_number_of_datagrams_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="no whole number of datagrams"):
        batch.rows(np.zeros(24, np.uint8), size)


def test_headers_of_datagrams_without_room_for_one_are_refused() -> None:
    with pytest.raises(ValueError, match="no header"):
        batch.headers(np.zeros(46, np.uint8), 23)
