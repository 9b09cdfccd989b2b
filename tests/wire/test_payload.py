"""How lanes are packed into payload bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inagg_wire.layout import LANE_BITS, Encoding, payload_bytes
from inagg_wire.payload import pack, unpack

COUNTING = {  # codes 1, 2, 3, ... (as many as the bits can hold), in bytes worked out by hand
    Encoding.NAT8: "0102030405060708",
    Encoding.NAT4: "12345678",
    Encoding.TERN: "6c6c",  # 01 10 11 00 twice
    Encoding.DITH8: "0102030405060708",
    Encoding.FIX32: "0000000100000002000000030000000400000005000000060000000700000008",
    Encoding.INT4: "12345678",
    Encoding.INT8: "0102030405060708",
    Encoding.INT16: "00010002000300040005000600070008",
    Encoding.SCALE8: "0102030405060708",
}


@pytest.mark.parametrize("encoding", Encoding)
def test_first_lane_stands_in_the_most_significant_bits(encoding: Encoding) -> None:
    codes = np.arange(1, 9, dtype=np.uint32) % np.uint32(min(1 << LANE_BITS[encoding], 1 << 31))
    assert pack(encoding, codes).hex() == COUNTING[encoding]


@given(st.data(), st.sampled_from(Encoding), st.integers(0, 12))
@settings(max_examples=100)
def test_unpack_inverts_pack(data: st.DataObject, encoding: Encoding, eighths: int) -> None:
    code = st.integers(0, (1 << LANE_BITS[encoding]) - 1)
    codes = np.array(data.draw(st.lists(code, min_size=8 * eighths, max_size=8 * eighths)), np.uint32)
    packed = pack(encoding, codes)
    assert len(packed) == payload_bytes(encoding, codes.size)
    assert unpack(encoding, packed).tolist() == codes.tolist()


@given(st.data(), st.sampled_from(Encoding), st.integers(0, 12))
@settings(max_examples=100)
def test_pack_inverts_unpack(data: st.DataObject, encoding: Encoding, eighths: int) -> None:
    size = payload_bytes(encoding, 8 * eighths)
    packed = data.draw(st.binary(min_size=size, max_size=size))
    assert pack(encoding, unpack(encoding, packed)) == packed


@pytest.mark.parametrize("encoding", [e for e in Encoding if LANE_BITS[e] <= 16])
def test_every_code_survives(encoding: Encoding) -> None:
    codes = np.arange(1 << LANE_BITS[encoding], dtype=np.uint32)
    if codes.size % 8:
        codes = np.tile(codes, 2)
    assert (unpack(encoding, pack(encoding, codes)) == codes).all()


def test_unpack_takes_a_view_of_a_larger_buffer() -> None:
    buffer = memoryview(bytes(24) + b"\x12\x34\x56\x78")
    assert unpack(Encoding.NAT4, buffer[24:]).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
