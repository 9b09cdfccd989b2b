"""Vectors of words in compiled loops, against numpy."""

from __future__ import annotations

import ctypes
import mmap
import operator
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from inagg_link import simd
from inagg_link.simd import LANES

Words = np.ndarray[Any, np.dtype[np.uint32]]

LIBC = ctypes.CDLL(None)
LIBC.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

RNG = np.random.default_rng(0)
A, B = (RNG.integers(0, 1 << 32, LANES, np.uint32) for _ in range(2))
A[0] = B[1] = 0xFFFFFFFF
A[2] = B[3] = 0


def on_vectors(function: Callable[[Any, Any], Any], a: Words, b: Words) -> Words:
    """``function`` of two vectors, compiled."""
    compiled = numba.njit(function)

    @numba.njit
    def run(a: Any, b: Any, out: Any) -> None:
        simd.store(out, 0, compiled(simd.load(a, 0), simd.load(b, 0)))

    out = np.zeros(LANES, np.uint32)
    run(a, b, out)
    return out


@pytest.mark.parametrize(
    "symbol", [operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor]
)
def test_operators_are_those_of_uint32(symbol: Callable[[Any, Any], Any]) -> None:
    assert (on_vectors(lambda a, b: symbol(a, b), A, B) == symbol(A, B)).all()


@pytest.mark.parametrize("symbol", [operator.lshift, operator.rshift])
def test_shifts_are_those_of_uint32(symbol: Callable[[Any, Any], Any]) -> None:
    by = np.resize(np.array([0, 1, 7, 8, 9, 16, 30, 31], np.uint32), LANES)
    assert (on_vectors(lambda a, b: symbol(a, b), A, by) == symbol(A, by)).all()


def test_an_integer_stands_for_all_lanes() -> None:
    assert (on_vectors(lambda a, b: (a + 5) ^ b, A, B) == (A + np.uint32(5)) ^ B).all()
    assert (on_vectors(lambda a, b: a & np.uint32(0xFFFF0000), A, B) == A & np.uint32(0xFFFF0000)).all()


def test_larger_and_smaller_are_without_sign() -> None:
    larger, smaller = simd.larger, simd.smaller
    assert (on_vectors(lambda a, b: larger(a, b), A, B) == np.maximum(A, B)).all()
    assert (on_vectors(lambda a, b: smaller(a, b), A, B) == np.minimum(A, B)).all()


def test_bytes_are_rearranged() -> None:
    order = RNG.integers(0, 4 * LANES, 4 * LANES)  # some of them more than once
    rearranged = simd.rearranged(order.tolist())
    got = on_vectors(lambda a, _: rearranged(a), A, B)
    assert got.view(np.uint8).tolist() == A.view(np.uint8)[order].tolist()


def test_the_largest_lane() -> None:
    @numba.njit
    def largest(a: Any) -> Any:
        return simd.largest(simd.load(a, 0))

    assert largest(B) == B.max()


def test_lanes_are_counted_from_zero() -> None:
    counting = simd.counting
    assert on_vectors(lambda a, b: counting(), A, B).tolist() == list(range(LANES))


def test_halving_keeps_the_sign() -> None:
    halved = simd.halved
    assert (on_vectors(lambda a, _: halved(a), A, B).view(np.int32) == A.view(np.int32) >> 1).all()


@pytest.mark.parametrize(
    ("of_bits", "of_floats"),
    [
        (simd.float_sum, np.add),
        (simd.float_product, np.multiply),
        (simd.float_quotient, np.divide),
    ],
)
def test_bits_of_floats_are_calculated_with_as_floats(of_bits: Any, of_floats: np.ufunc) -> None:
    x, y = RNG.standard_normal((2, LANES)).astype(np.float32)
    x[0] = y[0] = -0.0
    with np.errstate(invalid="ignore"):
        want = of_floats(x, y)
    got = on_vectors(lambda a, b: of_bits(a, b), x.view(np.uint32), y.view(np.uint32)).view(np.float32)
    assert np.array_equal(got, want, equal_nan=True)
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


def test_integers_become_the_nearest_floats() -> None:
    float_of = simd.float_of
    got = on_vectors(lambda a, _: float_of(a), A, B).view(np.float32)
    assert got.tolist() == A.view(np.int32).astype(np.float32).tolist()


def test_bytes_are_loaded_with_their_signs() -> None:
    @numba.njit
    def run(a: Any, out: Any) -> None:
        simd.store(out, 0, simd.load_signed(a, 3))

    signed, out = A.view(np.uint8), np.zeros(LANES, np.uint32)
    run(signed, out)
    assert out.view(np.int32).tolist() == signed[3 : 3 + LANES].view(np.int8).tolist()


def test_halves_are_doubled_each_on_its_own() -> None:
    doubled = simd.doubled
    got = on_vectors(lambda a, _: doubled(a), A, B)
    assert got.view(np.uint16).tolist() == (A.view(np.uint16) << np.uint16(1)).tolist()


def test_bytes_are_not_less_than_zero() -> None:
    bytes_less = simd.bytes_less
    x, y = A.view(np.uint8), B.view(np.uint8)
    got = on_vectors(lambda a, b: bytes_less(a, b), A, B)
    assert got.view(np.uint8).tolist() == np.where(x > y, x - y, 0).tolist()


def test_the_smaller_of_two_in_each_byte_and_the_smallest_of_all() -> None:
    smaller_bytes = simd.smaller_bytes
    x, y = A.view(np.uint8), B.view(np.uint8)
    assert on_vectors(lambda a, b: smaller_bytes(a, b), A, B).view(np.uint8).tolist() == np.minimum(x, y).tolist()

    @numba.njit
    def smallest_byte(a: Any) -> Any:
        return simd.smallest_byte(simd.load(a, 0))

    for byte in range(4 * LANES):
        some = np.arange(100, 100 + 4 * LANES).astype(np.uint8)
        some[byte] = byte
        assert smallest_byte(some.view(np.uint32)) == byte


@pytest.mark.parametrize("lane", range(LANES))
def test_one_bit_of_any_lane_is_seen(lane: int) -> None:
    @numba.njit
    def any_set(a: Any) -> Any:
        return simd.any_set(simd.load(a, 0))

    x = np.zeros(LANES, np.uint32)
    assert not any_set(x)
    x[lane] = 1 << 2 * lane
    assert any_set(x)


def test_upper_parts_of_two_are_put_together() -> None:
    upper_halves, upper_bytes = simd.upper_halves, simd.upper_bytes
    halves = on_vectors(lambda a, b: upper_halves(a, b), A, B).view(np.uint16)
    assert halves[::2].tolist() == A.view(np.uint16)[1::2].tolist()
    assert halves[1::2].tolist() == B.view(np.uint16)[1::2].tolist()
    parts = on_vectors(lambda a, b: upper_bytes(a, b), A, B).view(np.uint8)
    assert parts[::2].tolist() == A.view(np.uint8)[1::2].tolist()
    assert parts[1::2].tolist() == B.view(np.uint8)[1::2].tolist()


def test_bytes_come_and_go_four_a_lane() -> None:
    data = RNG.integers(0, 256, 4 * LANES + 8, np.uint8)

    @numba.njit
    def run(a: Any, words: Any, out: Any) -> None:
        x = simd.load(a, 3)
        simd.store(words, 0, x)
        simd.store(out, 1, x)

    words, out, end = np.zeros(LANES, np.uint32), np.zeros(4 * LANES + 8, np.uint8), 4 * LANES
    run(data, words, out)
    assert words.tobytes() == data[3 : 3 + end].tobytes() == out[1 : 1 + end].tobytes()
    assert not out[:1].any()
    assert not out[1 + end :].any(), "nothing around them is written"


def test_bytes_are_stored_those_of_one_place_together() -> None:
    @numba.njit
    def run(a: Any, out: Any) -> None:
        simd.store_bytes(out, 3, simd.load(a, 0))

    out, end = np.zeros(4 * LANES + 8, np.uint8), 3 + 4 * LANES
    run(A, out)
    assert out[3:end].tolist() == [int(a) >> 8 * place & 0xFF for place in range(4) for a in A]
    assert not out[:3].any()
    assert not out[end:].any(), "nothing around them is written"


@pytest.mark.parametrize("count", [-3, 0, 1, LANES - 1, LANES, LANES + 5])
def test_of_a_vector_only_the_first_lanes_are_loaded_and_stored(count: int) -> None:
    """At the very end of memory that may be read: what is beyond is not touched."""

    @numba.njit
    def run(a: Any, data: Any, out: Any, out_bytes: Any, count: Any) -> None:
        simd.store_first(out, 1, simd.load_first(a, len(a) - max(count, 0), count), count)
        simd.store_first(out_bytes, 3, simd.load_first(data, len(data) - 4 * max(count, 0), count), count)

    page = mmap.PAGESIZE
    with mmap.mmap(-1, 2 * page) as room:
        data = np.frombuffer(room, np.uint8)
        data[:page] = RNG.integers(0, 256, page)
        nobodys = data[page:].ctypes.data
        assert LIBC.mprotect(nobodys, page, 0) == 0
        wanted = min(max(count, 0), LANES)
        out, out_bytes = np.full(LANES + 2, 9, np.uint32), np.full(4 * LANES + 8, 9, np.uint8)
        try:
            run(data[:page].view(np.uint32), data[:page], out, out_bytes, min(count, LANES))
        finally:
            assert LIBC.mprotect(nobodys, page, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        last = data[page - 4 * wanted : page].tobytes()
        del data
    assert out[1 : 1 + wanted].tobytes() == last == out_bytes[3 : 3 + 4 * wanted].tobytes()
    assert (out[[0, *range(1 + wanted, LANES + 2)]] == 9).all(), "nothing around them is written"
    assert (out_bytes[[0, 1, 2, *range(3 + 4 * wanted, 4 * LANES + 8)]] == 9).all()


def test_lanes_that_are_not_loaded_are_zero() -> None:
    @numba.njit
    def run(a: Any, out: Any) -> None:
        simd.store(out, 0, simd.load_first(a, 0, 3))

    out = np.full(LANES, 9, np.uint32)
    run(A, out)
    assert out.tolist() == [*A[:3].tolist(), *[0] * (LANES - 3)]


@pytest.mark.parametrize("count", [0, 1, LANES, 4 * LANES - 1, 4 * LANES])
def test_the_first_bytes_are_stored_of_those_that_would_be(count: int) -> None:
    @numba.njit
    def run(a: Any, out: Any, first: Any, count: Any) -> None:
        simd.store_bytes(out, 0, simd.load(a, 0))
        simd.store_first_bytes(first, 3, simd.load(a, 0), count)

    out, first = np.zeros(4 * LANES, np.uint8), np.full(4 * LANES + 8, 9, np.uint8)
    run(A, out, first, count)
    assert first[3 : 3 + count].tolist() == out[:count].tolist()
    assert (first[[0, 1, 2, *range(3 + count, len(first))]] == 9).all(), "nothing around them is written"


def test_asking_for_memory_beyond_the_end_changes_nothing() -> None:
    @numba.njit
    def ask(a: Any) -> Any:
        for at in (0, 7, 1 << 40):
            simd.prefetch(a, at)
        return simd.largest(simd.load(a, 0))

    assert ask(A) == A.max()


def test_what_streams_past_the_caches_is_what_was_stored() -> None:
    stream, fence, load = simd.stream, simd.fence, simd.load

    @numba.njit
    def run(a: Any, out: Any, at: Any) -> None:
        stream(out, at, load(a, 0))
        fence()

    out = np.zeros(32, np.uint32)
    at = -out.ctypes.data % simd.STREAM_BYTES // 4 + simd.STREAM_BYTES // 4  # aligned to that, not to twice as much
    run(A, out, at)
    assert out[at : at + LANES].tolist() == A.tolist()
    assert np.count_nonzero(out) == np.count_nonzero(A)
