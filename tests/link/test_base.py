"""Batches: what they say of themselves, how they are cut and gathered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.link.gathering import gather

from inagg_link.addresses import canonical
from inagg_link.base import MAX_BATCH_DATAGRAMS, MAX_DATAGRAM_BYTES, Batch, count_datagrams, datagrams_per_call, split

PEER = ("127.0.0.1", 9000)


def numbered(count: int, size: int) -> Batch:
    return Batch(np.arange(count * size, dtype=np.uint32).astype(np.uint8), size, PEER)


def test_a_batch_counts_its_datagrams() -> None:
    assert len(numbered(44, 1472)) == 44


def test_rows_of_datagrams_are_views_of_the_data() -> None:
    batch = numbered(3, 10)
    batch.datagrams[1, 0] = 99
    assert batch.data[10] == 99


def test_a_copy_has_memory_of_its_own() -> None:
    batch = numbered(3, 10)
    copy = batch.copy()
    batch.data[:] = 0
    assert copy.data[1] == 1


def test_a_full_frame_goes_44_to_a_call() -> None:
    assert datagrams_per_call(1472) == 44


def test_small_datagrams_go_64_to_a_call() -> None:
    assert datagrams_per_call(1) == datagrams_per_call(1000) == 64


def test_so_do_as_many_as_the_kernel_takes() -> None:
    assert [datagrams_per_call(size, 128) for size in (1, 500, 1000, 1472)] == [128, 128, 65, 44]


def test_the_largest_datagram_goes_alone() -> None:
    assert datagrams_per_call(MAX_DATAGRAM_BYTES) == 1


@pytest.mark.parametrize("size", [0, -1, MAX_DATAGRAM_BYTES + 1])
def test_a_size_that_udp_cannot_carry_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"1\.\.{MAX_DATAGRAM_BYTES} bytes"):
        datagrams_per_call(size)


def test_data_that_is_not_whole_datagrams_is_refused() -> None:
    with pytest.raises(ValueError, match="25 bytes are not a whole number of datagrams of 10"):
        count_datagrams(np.zeros(25, np.uint8), 10)


def test_a_batch_that_fits_is_not_cut() -> None:
    batch = numbered(44, 1472)
    assert list(split(batch)) == [batch]


@given(count=st.integers(0, 300), size=st.integers(1, 3000))
def test_the_parts_of_a_batch_fit_a_call_and_are_the_batch(count: int, size: int) -> None:
    batch = numbered(count, size)
    parts = list(split(batch))
    assert b"".join(part.data.tobytes() for part in parts) == batch.data.tobytes()
    assert all(len(part) <= MAX_BATCH_DATAGRAMS and part.data.nbytes <= MAX_DATAGRAM_BYTES for part in parts)
    assert all(part.size == size and part.peer == PEER for part in parts)


@given(st.lists(st.binary(min_size=1, max_size=4), max_size=200))
def test_gathered_datagrams_keep_bytes_and_order(datagrams: list[bytes]) -> None:
    batches = gather(datagrams, PEER)
    assert [row.tobytes() for batch in batches for row in batch.datagrams] == datagrams
    assert all(len(batch) <= MAX_BATCH_DATAGRAMS for batch in batches)


def test_gathering_refuses_an_empty_datagram() -> None:
    with pytest.raises(ValueError, match="not 0"):
        gather([b"a", b""], PEER)


def test_an_address_has_one_way_to_be_written() -> None:
    assert canonical(("0:0:0:0:0:0:0:1", 5)) == ("::1", 5)


@pytest.mark.parametrize("address", [("localhost", 5), ("127.0.0.1", 65_536), ("127.0.0.1", -1), ("", 5)])
def test_what_is_no_literal_address_is_refused(address: tuple[str, int]) -> None:
    with pytest.raises(ValueError, match=r"not|port"):
        canonical(address)
