"""Rounding noise: exactly uniform where unbiasedness needs it, replayable, and without patterns that one would see."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.exact import Words

from inagg_wire import noise, noise_keys
from inagg_wire.layout import GENERATION_MAX, LANE_COUNT_MAX, SLOT_COUNT_MAX
from inagg_wire.noise import group_table, hashes, host_words, switch_word, switch_words
from inagg_wire.noise_keys import BlockKey, block_key, seed_for_lease

MASK = 0xFFFFFFFF
u32 = st.integers(0, MASK)


def rank(columns: Sequence[int]) -> int:
    """The rank over GF(2) of a matrix whose columns are the bits of integers."""
    basis: list[int] = []
    for column in columns:
        for b in basis:
            column = min(column, column ^ b)
        if column:
            basis.append(column)
    return len(basis)


# --- the switch -----------------------------------------------------------------------------------------

ORIGIN = switch_word(0, 0, 0, 0)


def columns(word: Callable[[int], int], bits: int) -> list[int]:
    """What each bit of an input flips in the word: column i of its matrix."""
    return [word(1 << i) ^ ORIGIN for i in range(bits)]


SEED = columns(lambda v: switch_word(v, 0, 0, 0), 32)
SLOT = columns(lambda v: switch_word(0, v, 0, 0), 32)
GENERATION = columns(lambda v: switch_word(0, 0, v, 0), 32)
GROUP = columns(lambda v: switch_word(0, 0, 0, v), 16)


def linear(matrix: list[int], value: int) -> int:
    result = 0
    for i, column in enumerate(matrix):
        result ^= column if value >> i & 1 else 0
    return result


def test_switch_word_is_the_crc_of_fourteen_big_endian_bytes() -> None:
    data = bytes.fromhex("01234567 00abcdef 00000102 0304")
    assert switch_word(0x01234567, 0x00ABCDEF, 0x102, 0x304) == zlib.crc32(data)


def test_crc_is_that_of_ieee_802_3() -> None:
    """The check value of the catalogue of CRCs, and of P4's crc32: reflected, polynomial 0x04C11DB7."""
    assert zlib.crc32(b"123456789") == 0xCBF43926


@given(u32, u32, u32, st.integers(0, 0xFFFF))
def test_switch_word_is_affine_over_gf2(seed: int, slot: int, generation: int, group: int) -> None:
    parts = linear(SEED, seed) ^ linear(SLOT, slot) ^ linear(GENERATION, generation) ^ linear(GROUP, group)
    assert switch_word(seed, slot, generation, group) == ORIGIN ^ parts


def test_switch_word_is_exactly_uniform_over_seeds() -> None:
    """Affine in the seed with a matrix of full rank: a bijection of 32 bits, for every slot, generation and group."""
    assert rank(SEED) == 32


def test_switch_word_never_repeats_over_slots_generations_or_groups() -> None:
    assert rank(SLOT) == rank(GENERATION) == 32
    assert rank(GROUP) == 16


@pytest.mark.parametrize("k", range(1, 31))
def test_noise_that_decides_is_even_over_every_64_generations_of_a_slot(k: int) -> None:
    """The upper four of the low k bits, which all but decide how a sum with its leading one at k is rounded, take every
    value equally often in generations 64 i to 64 i + 63: what rounds the same lane again and again averages out."""
    upper = min(k, 4)
    assert rank([column >> (k - upper) & ((1 << upper) - 1) for column in GENERATION[:6]]) == upper


@given(u32, st.integers(0, SLOT_COUNT_MAX - 1), st.integers(1, GENERATION_MAX), st.integers(1, 400))
def test_table_of_groups_gives_the_word_of_every_lane(seed: int, slot: int, generation: int, lanes: int) -> None:
    want = [switch_word(seed, slot, generation, lane // 4) for lane in range(lanes)]
    got = switch_words(seed, slot, generation, lanes)
    assert got.dtype == np.uint32
    assert got.tolist() == want


def test_table_of_groups_reaches_the_last_lane() -> None:
    got = switch_words(1, 2, 3, LANE_COUNT_MAX)
    assert got.size == LANE_COUNT_MAX
    assert got[-1] == switch_word(1, 2, 3, (LANE_COUNT_MAX - 1) // 4)


def test_shared_table_of_groups_cannot_be_written() -> None:
    assert not group_table(64).flags.writeable
    assert switch_words(1, 2, 3, 64).flags.writeable


# --- hosts ----------------------------------------------------------------------------------------------


def lowbias32(counter: int, k0: int, k1: int) -> int:
    """The hash of a lane as a chain of bijections of 32 bits, which `unlowbias32` takes back one by one."""
    x = (counter + k0) & MASK
    x ^= x >> 16
    x = x * noise.MULTIPLIER_1 & MASK
    x ^= x >> 15
    x = (x + k1) & MASK
    x = x * noise.MULTIPLIER_2 & MASK
    return x ^ x >> 16


def unlowbias32(word: int, counter: int, k1: int) -> int:
    """The k0 that gives ``word``."""
    x = word ^ word >> 16
    x = x * pow(noise.MULTIPLIER_2, -1, 1 << 32) & MASK
    x = (x - k1) & MASK
    x ^= x >> 15 ^ x >> 30
    x = x * pow(noise.MULTIPLIER_1, -1, 1 << 32) & MASK
    x ^= x >> 16
    return (x - counter) & MASK


@given(u32, u32, u32)
def test_hashes_are_the_chain_of_bijections(k0: int, k1: int, counter: int) -> None:
    words = hashes(BlockKey(k0, k1), np.array([counter], np.uint32))
    assert words.dtype == np.uint32
    assert words[0] == lowbias32(counter, k0, k1)


@given(u32, u32, st.integers(0, 0xFFFF), st.integers(0, LANE_COUNT_MAX - 1))
def test_host_words_are_hashes_with_their_bytes_rotated(k0: int, k1: int, index: int, lane: int) -> None:
    words = host_words(BlockKey(k0, k1), lane + 1, index)
    group, j, i = lane // 32, lane % 32 // 8, lane % 8
    hashed = lowbias32(index << 16 | 8 * group + i, k0, k1).to_bytes(4, "big")
    assert words.dtype == np.uint32
    assert words[lane] == int.from_bytes(hashed[j:] + hashed[:j], "big")


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("j", [1, 2, 3])
def test_lanes_that_share_a_hash_round_almost_independently(bits: int, j: int) -> None:
    """All hashes of four digits of ``bits`` bits in place of bytes, and all pairs of chances to go up: the proof in
    `host_words`, at reduced width."""
    count = 1 << 4 * bits
    word = np.arange(count)
    other = (word << j * bits | word >> (4 - j) * bits) & count - 1
    both = np.zeros(
        (count + 1, count + 1)
    )  # [a, b]: of all hashes, those with word >= count - a and other >= count - b
    both[count - word, count - other] = 1
    joint = both.cumsum(0).cumsum(1) / count
    alone = np.arange(count + 1) / count
    covariance = np.abs(joint - np.outer(alone, alone))
    digit = 1 << bits
    assert covariance.max() <= 2 / (4 * digit) + 1 / digit**2
    coarse = np.arange(0, count + 1, count // digit)
    assert not covariance[np.ix_(coarse, coarse)].any()


@given(u32, u32, st.integers(0, (1 << 32) - 1))
def test_every_host_word_comes_from_exactly_one_k0(word: int, k1: int, counter: int) -> None:
    """So each word is exactly uniform over keys, for any fixed k1."""
    k0 = unlowbias32(word, counter, k1)
    assert lowbias32(counter, k0, k1) == word
    assert unlowbias32(lowbias32(counter, word, k1), counter, k1) == word


@pytest.mark.parametrize("shift", [15, 16])
def test_shifts_of_the_host_hash_are_bijections_at_full_width(shift: int) -> None:
    assert rank([1 << i ^ (1 << i >> shift) for i in range(32)]) == 32


@pytest.mark.parametrize("multiplier", [noise.MULTIPLIER_1, noise.MULTIPLIER_2])
def test_multipliers_of_the_host_hash_are_odd_and_so_bijections(multiplier: int) -> None:
    assert multiplier % 2 == 1


def test_chain_of_the_host_hash_is_a_bijection_of_every_12_bit_word() -> None:
    """All words at reduced width, with shifts and multipliers cut to it."""
    mask = (1 << 12) - 1
    for k1 in (0, 1, 0x5A5):
        x = np.arange(1 << 12)
        x ^= x >> 6
        x = x * (noise.MULTIPLIER_1 & mask) & mask
        x ^= x >> 5
        x = (x + k1) & mask
        x = x * (noise.MULTIPLIER_2 & mask) & mask
        x ^= x >> 6
        assert np.unique(x).size == 1 << 12


def test_mixing_of_the_key_is_a_bijection_of_64_bits() -> None:
    """The shifts by rank, the multipliers by being odd; and the published value of splitmix64 for seed 0."""
    for shift in (30, 27, 31):
        assert rank([1 << i ^ (1 << i >> shift) for i in range(64)]) == 64
    assert noise_keys.mix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_blocks_of_a_worker_never_share_a_key() -> None:
    keys = {block_key(7, 3, block) for block in [*range(5000), *(1 << b for b in range(13, 64))]}
    assert len(keys) == 5000 + 51


def test_keys_use_all_bits_of_seed_worker_and_block() -> None:
    keys = {block_key(1 << b, 0, 0) for b in range(32)} | {block_key(0, 1 << b, 0) for b in range(5)}
    keys |= {block_key(0, 0, 1 << b) for b in range(64)} | {block_key(0, 0, 0)}
    assert len(keys) == 32 + 5 + 64 + 1


@pytest.mark.parametrize("difference", [1, 0x9E3779B9, 0x7F4A7C15, 0x7FEB352D, 0x846CA68B, 0x80000000])
def test_seeds_that_differ_by_a_constant_of_the_hash_do_not_replay_each_other(difference: int) -> None:
    """A counter multiplied by a constant and added to the seed would."""
    for seed in (0, 1, 0xDEADBEEF):
        ours = {block_key(seed, 0, block) for block in range(2000)}
        theirs = {block_key((seed + difference) & MASK, 0, block) for block in range(2000)}
        assert not ours & theirs
        assert len({k0 for k0, _ in ours | theirs}) > 3990  # nor half a key


def test_workers_do_not_replay_each_other() -> None:
    keys = {block_key(1, worker, block) for worker in range(32) for block in range(200)}
    assert len(keys) == 32 * 200


# --- quality, at a fixed seed ---------------------------------------------------------------------------

LANES = 1448
COUNT = 64


def host_matrix(worker: int = 0, index: int = 0, seed: int = 42) -> Words:
    """Noise of consecutive blocks: shape (blocks, lanes)."""
    return np.stack([host_words(block_key(seed, worker, block), LANES, index) for block in range(COUNT)])


def switch_matrix(seed: int = 42) -> Words:
    return np.stack([switch_words(seed, block % 128, 1 + block // 128, LANES)[::4] for block in range(COUNT)])


def bits_of(words: Words) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """One row of 32 bits for each word."""
    return np.unpackbits(words.ravel().astype(">u4").view(np.uint8)).reshape(-1, 32)


def worst_deviation(agreements: np.ndarray[tuple[int, ...], np.dtype[np.float64]], samples: int) -> float:
    """The largest deviation of frequencies from one half, in standard deviations of ``samples`` fair coins."""
    return float(np.abs(agreements - 0.5).max() * 2 * np.sqrt(samples))


def worst_bit_correlation(a: Words, b: Words) -> float:
    """Over all 32 * 32 pairs of a bit of ``a`` and one of ``b``: the worst deviation from independence."""
    turned = ((b << np.uint32(turn)) | (b >> np.uint32(32 - turn)) for turn in range(1, 33))
    return max(worst_deviation(bits_of(a ^ t).mean(axis=0), a.size) for t in turned)


SIGMAS_OF_1024 = 5.5
"""1024 independent normal deviates exceed this with probability 4e-5."""


def test_each_bit_of_host_noise_is_balanced() -> None:
    words = host_matrix()
    assert worst_deviation(bits_of(words).mean(axis=0), words.size) < 5


def test_host_noise_of_each_lane_and_each_block_is_balanced() -> None:
    ups = (host_matrix() >> np.uint32(31)).astype(np.float64)
    assert worst_deviation(ups.mean(axis=0), COUNT) < SIGMAS_OF_1024
    assert worst_deviation(ups.mean(axis=1), LANES) < 5


def test_adjacent_lanes_of_a_host_are_uncorrelated() -> None:
    words = host_matrix()
    assert worst_bit_correlation(words[:, :-1], words[:, 1:]) < SIGMAS_OF_1024


def test_adjacent_blocks_of_a_host_are_uncorrelated() -> None:
    words = host_matrix()
    assert worst_bit_correlation(words[:-1], words[1:]) < SIGMAS_OF_1024


def test_adjacent_words_of_a_lane_are_uncorrelated() -> None:
    assert worst_bit_correlation(host_matrix(), host_matrix(index=1)) < SIGMAS_OF_1024


def test_workers_are_uncorrelated() -> None:
    matrices = [host_matrix(worker) for worker in range(3)]
    assert all(worst_bit_correlation(a, b) < SIGMAS_OF_1024 for a, b in combinations(matrices, 2))


def test_seeds_are_uncorrelated() -> None:
    assert worst_bit_correlation(host_matrix(seed=1), host_matrix(seed=2)) < SIGMAS_OF_1024


def test_host_words_hardly_repeat_within_a_block() -> None:
    """As often as random words would: with 65528 of them, 0.5 pairs on average."""
    repeats = [LANE_COUNT_MAX - np.unique(host_words(block_key(3, 0, b), LANE_COUNT_MAX)).size for b in range(20)]
    assert sum(repeats) <= 25


def test_switch_noise_is_evenly_spread() -> None:
    """Its top byte over blocks and groups: no value further from its share than chance allows."""
    words = switch_matrix()
    counts = np.bincount((words >> np.uint32(24)).ravel(), minlength=256)
    share = words.size / 256
    assert np.abs(counts - share).max() < 5 * np.sqrt(share)


def test_groups_and_blocks_of_the_switch_differ() -> None:
    words = switch_matrix()
    assert np.unique(words).size == words.size


@given(u32, st.integers(1, 20), st.integers(0, SLOT_COUNT_MAX), st.integers(0, SLOT_COUNT_MAX), u32, st.integers(0, 1))
def test_the_noise_of_a_lease_does_not_depend_on_where_it_lies(
    seed: int, log_slots: int, base: int, i: int, generation: int, group: int
) -> None:
    slots = 1 << log_slots
    base, i = base // slots * slots, i % slots
    moved = seed_for_lease(seed, base)
    assert switch_word(moved, base + i, generation, group) == switch_word(seed, i, generation, group)


def test_leases_have_seeds_of_their_own() -> None:
    """One to one: as the proof says."""
    bases = [1 << i for i in range(32)]
    assert rank([seed_for_lease(0, base) for base in bases]) == 32
    assert seed_for_lease(7, 0) == 7
