"""The kernels against `inagg_wire.reencode`: every encoding, code and number of workers, extreme sums."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inagg_switch.aggregation.deferred_sum import HELD_WORKERS, emit_held, exact_in_floats, hold_nat8, range_of_levels
from inagg_switch.aggregation.kernels import absorb, emit
from inagg_switch.aggregation.noise_word import group_0_word
from inagg_switch.aggregation.state import make_noise
from inagg_wire.formats import CHILDREN_MAX, FORMATS, JobFormat
from inagg_wire.layout import GENERATION_MAX, LANE_BITS, LANE_MULTIPLE, SLOT_COUNT_MAX, Encoding, Op, payload_bytes
from inagg_wire.noise import GROUP_LANES, group_table, switch_word, switch_words
from inagg_wire.payload import Codes, pack
from inagg_wire.reencode import combine, integers, result_codes

UP = (Encoding.NAT8, Encoding.NAT4, Encoding.TERN, Encoding.DITH8, Encoding.FIX32, Encoding.SCALE8)
FORMAT_OF = {f.up: f for f in FORMATS.values() if not f.roundings}
LANES = (8, 16, 24, 40, 64, 72, 136, 256, 360, 1000, 1440, 1448)
GUARD = 0x5A5A5A5A

Acc = npt.NDArray[np.int32]


def op_of(encoding: Encoding) -> Op:
    return Op.MAX if encoding is Encoding.SCALE8 else Op.SUM


def levels_of(encoding: Encoding, workers: int) -> int:
    return 255 if encoding is Encoding.SCALE8 else FORMAT_OF[encoding].levels(workers)


def all_codes(encoding: Encoding, levels: int) -> Codes:
    """Every code, or for fix32 those around every edge, and many others; a multiple of 8 of them."""
    bits = LANE_BITS[encoding]
    if bits <= 8:
        return np.arange(max(8, 1 << bits)).astype(np.uint32) % np.uint32(1 << bits)
    rng = np.random.default_rng(1)
    edges = [0, 1, -1, levels, -levels, levels - 1, 1 - levels, levels + 1, -levels - 1, (1 << 31) - 1, -(1 << 31)]
    values = np.concatenate([edges, rng.integers(-levels, levels + 1, 800), rng.integers(-(1 << 31), 1 << 31, 213)])
    return (values & 0xFFFFFFFF).astype(np.uint32)


def at_offset(payload: bytes, offset: int) -> npt.NDArray[np.uint8]:
    """The payload at an address that is ``offset`` modulo 16, with other bytes around it."""
    space = np.full(len(payload) + 64, 0xFF, np.uint8)
    start = -space.ctypes.data % 16 + 16 + offset
    space[start : start + len(payload)] = np.frombuffer(payload, np.uint8)
    return space[start : start + len(payload)]


def absorbed(encoding: Encoding, codes: Codes, acc: Acc, first: bool, levels: int, offset: int = 0) -> tuple[Acc, int]:
    """``acc`` after one contribution; asserts that the lanes beyond it stay untouched."""
    row = np.full(codes.size + 24, GUARD, np.int32)
    row[: codes.size] = acc
    payload = at_offset(pack(encoding, codes), offset)
    invalid = absorb(int(encoding), row, payload, codes.size, first, levels)
    assert (row[codes.size :] == GUARD).all(), "wrote beyond the lanes"
    return row[: codes.size], int(invalid)


@pytest.mark.parametrize("encoding", UP, ids=lambda e: e.name.lower())
@pytest.mark.parametrize("first", [True, False], ids=["first", "next"])
def test_every_code_is_absorbed_as_the_reference_says_for_every_number_of_workers(
    encoding: Encoding, first: bool
) -> None:
    op = op_of(encoding)
    for workers in range(1, CHILDREN_MAX + 1):
        levels = levels_of(encoding, workers)
        codes = all_codes(encoding, levels)
        values, invalid = integers(encoding, codes, levels)
        # What the other workers can have sent: their sum leaves room for this one.
        room = 255 if op is Op.MAX else (workers - 1) * (FORMAT_OF[encoding].top(workers))
        for before in (0, room, -room if op is Op.SUM else 1):
            acc = np.full(codes.size, before, np.int32)
            want = values if first else combine(op, acc.astype(np.int64), values)
            got, counted = absorbed(encoding, codes, acc, first, levels)
            np.testing.assert_array_equal(got, want)
            assert counted == invalid


@pytest.mark.parametrize("encoding", UP, ids=lambda e: e.name.lower())
@pytest.mark.parametrize("lanes", LANES)
def test_any_number_of_lanes_is_absorbed_from_any_address(encoding: Encoding, lanes: int) -> None:
    rng, levels, op = np.random.default_rng(lanes), levels_of(encoding, 3), op_of(encoding)
    for offset in range(16):
        codes = rng.integers(0, 1 << LANE_BITS[encoding], lanes, np.uint64).astype(np.uint32)
        acc = rng.integers(0, 250, lanes).astype(np.int32)
        values, invalid = integers(encoding, codes, levels)
        for first in (True, False):
            want = values if first else combine(op, acc.astype(np.int64), values)
            got, counted = absorbed(encoding, codes, acc, first, levels, offset)
            np.testing.assert_array_equal(got, want)
            assert counted == invalid


def extreme_sums(fmt: JobFormat, workers: int, lanes: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Sums that ``workers`` can make: zero, ones, the ends, and around every power of two on the way."""
    end = workers * fmt.top(workers)
    powers = 1 << np.arange(end.bit_length())
    edges = np.concatenate([[0, end, end - 1], powers, powers - 1, powers + 1])
    edges = edges[edges <= end]
    return np.concatenate([edges, -edges, rng.integers(-end, end + 1, lanes)])[:lanes]


def emitted(encoding: Encoding, acc: npt.NDArray[np.int64], noise: Any, word: int, shift: int, offset: int) -> bytes:
    """The payload of a result; asserts that the bytes beyond it stay untouched."""
    count = payload_bytes(encoding, acc.size)
    space = np.full(count + 64, 0xA5, np.uint8)
    start = -space.ctypes.data % 16 + 16 + offset
    emit(int(encoding), space[start:], acc.astype(np.int32), acc.size, noise, np.uint32(word), shift)
    assert (space[:start] == 0xA5).all()
    assert (space[start + count :] == 0xA5).all(), "wrote beyond the lanes"
    return space[start : start + count].tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_extreme_sums_are_emitted_as_the_reference_says_for_every_number_of_workers(name: str) -> None:
    fmt = FORMATS[name]
    for workers in range(1, CHILDREN_MAX + 1):
        rng = np.random.default_rng(workers)
        sums = extreme_sums(fmt, workers, 1448, rng)
        table = np.repeat(group_table(sums.size), GROUP_LANES)
        encoding = fmt.result_encoding(Op.SUM, workers)
        for word in (0, 0xFFFFFFFF, int(rng.integers(1 << 32))):
            for noise in (table, np.zeros_like(table)):  # all the same bits for all lanes, too: none, or all ones
                want = pack(encoding, result_codes(Op.SUM, fmt, workers, sums, noise ^ np.uint32(word)))
                assert emitted(encoding, sums, noise, word, fmt.result_shift(workers), 0) == want


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("lanes", LANES)
def test_any_number_of_lanes_is_emitted_to_any_address(name: str, lanes: int) -> None:
    fmt, workers, rng = FORMATS[name], 5, np.random.default_rng(lanes)
    end = workers * fmt.top(workers)
    noise = np.repeat(group_table(lanes), GROUP_LANES)
    encoding = fmt.result_encoding(Op.SUM, workers)
    for offset in range(16):
        sums, word = rng.integers(-end, end + 1, lanes), int(rng.integers(1 << 32))
        want = pack(encoding, result_codes(Op.SUM, fmt, workers, sums, noise ^ np.uint32(word)))
        assert emitted(encoding, sums, noise, word, fmt.result_shift(workers), offset) == want


def test_a_maximum_of_scales_is_emitted_as_it_is() -> None:
    fmt, scales = FORMATS["dith8"], np.arange(256)
    noise = np.repeat(group_table(256), GROUP_LANES)
    want = pack(Encoding.SCALE8, result_codes(Op.MAX, fmt, 9, scales, noise))
    assert emitted(Encoding.SCALE8, scales, noise, 0xFFFFFFFF, fmt.result_shift(9), 3) == want == bytes(range(256))


@pytest.mark.parametrize("workers", [1, 2, 3, 16, 17, 31, 32])
@pytest.mark.parametrize("encoding", [Encoding.NAT8, Encoding.FIX32], ids=lambda e: e.name.lower())
@pytest.mark.parametrize("negative", [False, True])
def test_all_workers_at_the_top_level_do_not_overflow(encoding: Encoding, workers: int, negative: bool) -> None:
    fmt = FORMAT_OF[encoding]
    top = fmt.top(workers)
    value = -top if negative else top
    code = (fmt.levels(workers) | negative << 7) if encoding is Encoding.NAT8 else value & 0xFFFFFFFF
    codes, acc = np.full(8, code, np.uint32), np.zeros(8, np.int32)
    for rank in range(workers):
        acc, _ = absorbed(encoding, codes, acc, rank == 0, fmt.levels(workers))
    assert acc.tolist() == [workers * value] * 8
    down, sums, ones = fmt.down(workers), np.full(8, workers * value), np.full(8, 0xFFFFFFFF, np.uint32)
    want = pack(down, result_codes(Op.SUM, fmt, workers, sums, ones))
    assert emitted(down, sums, np.zeros(8, np.uint32), 0xFFFFFFFF, fmt.result_shift(workers), 0) == want


def test_the_kernel_computes_the_noise_word_of_the_wire_package() -> None:
    rng = np.random.default_rng(0)
    ends = list(product((0, 1, 0xFFFFFFFF), (0, SLOT_COUNT_MAX - 1), (1, GENERATION_MAX)))
    some = [(int(rng.integers(1 << 32)), int(rng.integers(1 << 24)), int(rng.integers(1, 1 << 31))) for _ in range(200)]
    for seed, slot, generation in ends + some:
        assert int(group_0_word(seed, slot, generation)) == switch_word(seed, slot, generation, 0)


@pytest.mark.parametrize("near", [True, False], ids=["levels that floats hold", "any levels"])
@pytest.mark.parametrize("workers", range(1, HELD_WORKERS + 1))
def test_codes_that_are_held_are_written_as_their_sums_are(workers: int, near: bool) -> None:
    """Every pair of codes, the invalid ones too, and at random what else there is."""
    fmt, lanes, rng = FORMAT_OF[Encoding.NAT8], 1448, np.random.default_rng(workers)
    pairs = np.array(list(product(range(256), repeat=2)), np.uint32)
    codes = np.concatenate([pairs, rng.integers(0, 256, (1024, 2), np.uint32)]).T
    others = np.where(rng.random(codes.shape) < 0.5, codes, rng.integers(0, 256, codes.shape, np.uint32))
    codes = np.concatenate([codes, others])[:workers]
    table, levels = make_noise(lanes), fmt.levels(workers)
    valid = np.where((codes & 127) > levels, 0, codes & 127)
    apart = valid.max(0) - np.where(valid == 0, 99, valid).min(0).astype(np.int64)
    codes = codes[:, apart <= 22] if near else codes
    codes = codes[:, : codes.shape[1] // LANE_MULTIPLE * LANE_MULTIPLE]  # of those at random at the end
    for start in range(0, codes.shape[1], lanes):
        block = codes[:, start : start + lanes]
        size = block.shape[1]
        held = rng.integers(0, 256, HELD_WORKERS * size, np.uint8)
        out, kept = np.zeros((2, size), np.uint8)
        rows = [*range(workers - 1), HELD_WORKERS - 1]
        found = [
            hold_nat8(held[size * i :], c.astype(np.uint8), size, levels) for i, c in zip(rows, block, strict=True)
        ]
        ranges = [range_of_levels(c.astype(np.uint8), size) for c in block]
        assert found == [(int(((row & 127) > levels).sum()), *r) for row, r in zip(block, ranges, strict=True)]
        want = integers(Encoding.NAT8, block[0], levels)[0]
        for row in block[1:]:
            want = combine(Op.SUM, want, integers(Encoding.NAT8, row, levels)[0])
        seed, slot, generation = 5, start, 1 + start
        last, word = held[size * (HELD_WORKERS - 1) :], np.uint32(group_0_word(seed, slot, generation))
        octaves = max(high for _, high in ranges) - min(low for low, _ in ranges)
        emit_held(out, kept, held, last, workers, octaves, size, table, word)
        noise = switch_words(seed, slot, generation, size)
        assert out.tolist() == kept.tolist() == result_codes(Op.SUM, fmt, workers, want, noise).tolist()
        a, b, c = (held[size * i :][:size] if i < workers - 1 else np.zeros(size, np.uint8) for i in range(3))
        assert exact_in_floats(a, b, c, last, size) or not near


@pytest.mark.parametrize("span", [22, 23])
@pytest.mark.parametrize("low", [1, 5])
def test_sums_of_levels_that_are_as_far_apart_as_floats_hold(low: int, span: int) -> None:
    """Those of one lane are where those of all lanes are; the smallest difference counts."""
    fmt, lanes, rng = FORMAT_OF[Encoding.NAT8], 1448, np.random.default_rng(span)
    codes = low + rng.integers(0, span + 1, (4, lanes)) | 128 * rng.integers(0, 2, (4, lanes))
    codes[:, 0] = low, low + span, low + span, low + span
    octaves = range_of_levels(codes.reshape(-1).astype(np.uint8), codes.size)
    assert octaves == (low - 1, low + span)
    held, out = codes.astype(np.uint8).reshape(-1), np.zeros((2, lanes), np.uint8)
    table, word = make_noise(lanes), np.uint32(group_0_word(5, 0, 1))
    emit_held(out[0], out[1], held, held[3 * lanes :], 4, span + 1, lanes, table, word)
    want = np.array([integers(Encoding.NAT8, row, fmt.levels(4))[0] for row in codes.astype(np.uint32)]).sum(0)
    assert out[0].tolist() == result_codes(Op.SUM, fmt, 4, want, switch_words(5, 0, 1, lanes)).tolist()


def test_the_range_of_levels_is_of_those_that_are_not_zero() -> None:
    assert range_of_levels(np.array([0, 128, 7, 128 + 9, 0], np.uint8), 5) == (6, 9)
    assert range_of_levels(np.array([0, 128], np.uint8), 2) == (255, 0)


def test_levels_that_are_too_far_apart_for_floats_are_seen() -> None:
    codes = np.zeros((4, 64), np.uint8)
    for far in (22, 23):
        for high, low in product(range(4), repeat=2):
            if high != low:
                codes[:] = 0
                codes[high, 63], codes[low, 63] = 128 + 6 + far, 6
                a, b, c, d = codes
                assert exact_in_floats(a, b, c, d, 64) == (far == 22)
