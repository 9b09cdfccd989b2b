"""The switch's re-encoding of a sum: exactly natural compression, by enumeration of all the noise that it can see.

The noise enters as ``r & (2^k - 1)``, with k the position of the leading one or of the lowest level. So all of the
noise of a sum with position k are 2^k words, and what stands above them must not matter. For sums too large to
enumerate, the threshold stands in: exactly the ``m mod 2^k`` largest of the 2^k words go up.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.exact import ALL_FORMATS, NATURAL, WORKER_COUNTS, Words, named

from inagg_wire import reencode
from inagg_wire.formats import JobFormat, ceil_log2, job_format
from inagg_wire.layout import LANE_BITS, Encoding, Op

Integers = npt.NDArray[np.int64]

ONES = 0xFFFFFFFF
NAT8 = job_format("nat8")


def result(fmt: JobFormat, workers: int, sums: Integers, noise: Words) -> Integers:
    """What a sum becomes, in units of a contribution."""
    codes = reencode.result_codes(Op.SUM, fmt, workers, sums, noise)
    integers, invalid = reencode.integers(fmt.down(workers), codes, fmt.result_levels(workers))
    assert invalid == 0
    return integers << fmt.result_shift(workers)


def by_position(most: int, low: int) -> list[tuple[int, Integers]]:
    """0..``most`` by k: the position of the leading one, or ``low`` if that is higher."""
    bounds = [0, *(1 << k for k in range(low + 1, most.bit_length())), most + 1]
    return [(max(low, a.bit_length() - 1), np.arange(a, b)) for a, b in pairwise(bounds)]


def check_all_noise(fmt: JobFormat, workers: int, most: int, negative: bool, above: int) -> None:
    """Enumerate: mean exactly the sum, only the two neighbours, second moment at most 9/8 in the window and exactly
    that of natural compression. ``above`` fills the noise bits above those that count."""
    low, sign = fmt.result_shift(workers), -1 if negative else 1
    for k, sums in by_position(most, low):
        noise = np.arange(1 << k, dtype=np.uint32)
        masked = noise | np.uint32(above & (ONES << k) & ONES)
        out = result(fmt, workers, np.repeat(sign * sums, noise.size), np.tile(masked, sums.size))
        got = sign * out.reshape(sums.size, noise.size)
        below = np.where(sums >= 1 << k, 1 << k, 0)
        assert (got.sum(axis=1) == sums << k).all()  # unbiased
        higher = np.where(below == 0, 1 << k, 2 << k)
        assert ((got == below[:, None]) | (got == higher[:, None])).all()
        squares = (got.astype(np.float64) ** 2).sum(axis=1)  # below 2^53: exact
        assert (squares == (below**2) * ((1 << k) - (sums - below)) + higher**2 * (sums - below))[below > 0].all()
        inside = below > 0
        assert (8 * squares[inside] <= 9 * (sums[inside].astype(np.float64) ** 2) * (1 << k)).all()


@pytest.mark.parametrize("negative", [False, True])
def test_every_sum_up_to_4096_becomes_its_natural_compression(negative: bool) -> None:
    check_all_noise(NAT8, 8, 1 << 12, negative, above=ONES if negative else 0)


@pytest.mark.parametrize("workers", WORKER_COUNTS)
def test_every_sum_of_nat4_becomes_its_natural_dithering_in_the_shifted_window(workers: int) -> None:
    """All sums that a job with this many workers can have: up to n * 64, in a window from 2^c up."""
    fmt = job_format("nat4")
    assert fmt.result_shift(workers) == ceil_log2(workers)
    check_all_noise(fmt, workers, workers * fmt.top(workers), negative=workers % 2 == 0, above=0xDEADBEEF)


def test_every_sum_of_nat4_that_goes_down_as_nat8_becomes_its_natural_compression() -> None:
    check_all_noise(job_format("nat4-nat8"), 32, 32 * 64, negative=True, above=0x12345678)


def test_large_sums_with_few_bits_become_their_natural_compression() -> None:
    """Sums whose bits below the highest ten are zero: only the ten highest noise bits below the leading one count, and
    those are enumerated, with all others ones."""
    for k in (12, 20, 28, 29):
        fractions = np.arange(1 << 10)
        sums = (1 << k) + (fractions << (k - 10))
        noise = (np.arange(1 << 10) << (k - 10)) + (1 << (k - 10)) - 1
        out = result(NAT8, 2, np.repeat(sums, 1 << 10), np.tile(noise.astype(np.uint32), 1 << 10))
        ups = (out.reshape(1 << 10, 1 << 10) == 2 << k).sum(axis=1)
        assert (ups == fractions).all()


@given(st.integers(1, 30), st.data())
@settings(max_examples=200)
def test_exactly_the_highest_noise_words_carry(k: int, data: st.DataObject) -> None:
    """m - 2^k of the 2^k words, the highest: so the probability is exactly the fraction, at any magnitude."""
    m = data.draw(
        st.sampled_from([1 << k, (1 << k) + 1, (2 << k) - 1, (4 << k) // 3]) | st.integers(1 << k, (2 << k) - 1)
    )
    m = min(m, 1 << 30)
    k = m.bit_length() - 1
    above = data.draw(st.integers(0, (1 << (32 - k)) - 1)) << k
    first = (2 << k) - m  # the lowest word that carries, 2^k if none does
    words = sorted({0, first - 1, min(first, (1 << k) - 1), (1 << k) - 1})
    for sign in (1, -1):
        out = result(NAT8, 1, np.full(len(words), sign * m), np.array([above | w for w in words], np.uint32))
        assert (sign * out).tolist() == [(2 << k) if w >= first else (1 << k) for w in words]


def test_second_moment_of_sums_comes_nearest_to_nine_eighths_at_four_thirds() -> None:
    k = 10
    sums = np.arange(1 << k, 2 << k)
    noise = np.arange(1 << k, dtype=np.uint32)
    out = result(NAT8, 1, np.repeat(sums, noise.size), np.tile(noise, sums.size)).reshape(sums.size, -1)
    squares = ((out >> k) ** 2).sum(axis=1).tolist()
    ratios = [Fraction(total << k, m**2) for total, m in zip(squares, sums.tolist(), strict=True)]
    assert max(ratios) <= Fraction(9, 8)
    assert int(sums[ratios.index(max(ratios))]) == round(Fraction(4 << k, 3))
    assert Fraction(9, 8) - max(ratios) < Fraction(1, 10**6)


@pytest.mark.parametrize("workers", WORKER_COUNTS)
def test_every_sum_of_dith8_is_dithered_again_without_bias_and_within_its_levels(workers: int) -> None:
    fmt = job_format("dith8")
    c, most = ceil_log2(workers), 127 * workers
    sums, noise = np.arange(-most, most + 1), np.arange(1 << c, dtype=np.uint32) | np.uint32(0xABCD << c)
    out = result(fmt, workers, np.repeat(sums, noise.size), np.tile(noise, sums.size)).reshape(sums.size, -1)
    assert (out.sum(axis=1) == sums << c).all()
    assert (np.abs(out - sums[:, None]) < 1 << c).all()
    assert np.abs(out).max() <= 127 << c


@pytest.mark.parametrize("fmt", [f for f in ALL_FORMATS if not f.reduced], ids=named)
def test_exact_results_are_the_sums_whatever_the_noise(fmt: JobFormat) -> None:
    for workers in WORKER_COUNTS:
        most = workers * fmt.top(workers)
        sums = np.unique(np.linspace(-most, most, 1001).astype(np.int64))
        for noise in (0, ONES):
            assert (result(fmt, workers, sums, np.full(sums.size, noise, np.uint32)) == sums).all()


@pytest.mark.parametrize("fmt", ALL_FORMATS, ids=named)
def test_sum_of_zero_is_zero_whatever_the_noise(fmt: JobFormat) -> None:
    noise = np.array([0, 1, 31, ONES], np.uint32)
    for workers in WORKER_COUNTS:
        assert not reencode.result_codes(Op.SUM, fmt, workers, np.zeros(4, np.int64), noise).any()


@pytest.mark.parametrize("name", ["nat4", "dith8"])
def test_negative_sum_that_rounds_to_zero_has_code_zero(name: str) -> None:
    codes = reencode.result_codes(Op.SUM, job_format(name), 32, np.array([-1, -31]), np.zeros(2, np.uint32))
    assert codes.tolist() == [0, 0]


@pytest.mark.parametrize("fmt", NATURAL, ids=named)
def test_powers_of_two_in_the_window_are_fixed_points(fmt: JobFormat) -> None:
    for workers in WORKER_COUNTS:
        low, high = fmt.result_shift(workers), (workers * fmt.top(workers)).bit_length() - 1
        sums = 1 << np.arange(low, high + 1)
        for noise in (0, ONES):
            assert (result(fmt, workers, sums, np.full(sums.size, noise, np.uint32)) == sums).all()


@pytest.mark.parametrize("fmt", [f for f in ALL_FORMATS if f.reduced], ids=named)
def test_re_encoding_is_odd(fmt: JobFormat) -> None:
    """The noise acts on magnitudes: the result of -v is the negative of that of v, with the same noise."""
    rng = np.random.default_rng(5)
    for workers in (1, 3, 32):
        sums = rng.integers(0, workers * fmt.top(workers) + 1, 4000)
        noise = rng.integers(0, 1 << 32, sums.size, np.uint32)
        assert (result(fmt, workers, -sums, noise) == -result(fmt, workers, sums, noise)).all()


def test_32_bit_arithmetic_gives_the_same_levels() -> None:
    """As a switch computes it: unsigned 32-bit words and a search for the leading one."""
    rng = np.random.default_rng(6)
    sums = rng.integers(0, 1 << 30, 20000) >> rng.integers(0, 30, 20000)
    noise = rng.integers(0, 1 << 32, sums.size, np.uint32)
    for low in range(6):
        want = reencode.natural_levels(sums, low, noise)
        m = sums.astype(np.uint32)
        position = np.zeros(m.size, np.uint32)
        for bit in range(low, 32):
            position = np.where(m >> np.uint32(bit) != 0, np.uint32(bit), np.maximum(position, np.uint32(low)))
        rounded = m + (noise & ((np.uint32(1) << position) - np.uint32(1)))
        levels = np.zeros(m.size, np.uint32)
        for bit in range(low, 32):
            levels = np.where(rounded >> np.uint32(bit) != 0, np.uint32(bit - low + 1), levels)
        assert (levels == want).all()


# --- codes to integers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "top", "values"),
    [
        (Encoding.NAT4, 7, [0, 1, 2, 4, 8, 16, 32, 64, 0, -1, -2, -4, -8, -16, -32, -64]),
        (Encoding.NAT4, 2, [0, 1, 2, 0, 0, 0, 0, 0, 0, -1, -2, 0, 0, 0, 0, 0]),
        (Encoding.TERN, 1, [0, 1, 0, -1]),
        (Encoding.INT4, 7, [0, 1, 2, 3, 4, 5, 6, 7, 0, -7, -6, -5, -4, -3, -2, -1]),
        (Encoding.INT4, 3, [0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, -3, -2, -1]),
    ],
)
def test_small_codes_stand_for_the_integers_worked_out_by_hand(encoding: Encoding, top: int, values: list[int]) -> None:
    codes = np.arange(1 << LANE_BITS[encoding], dtype=np.uint32)
    integers, invalid = reencode.integers(encoding, codes, top)
    assert integers.tolist() == values
    zeros = 2 if encoding is Encoding.NAT4 else 1
    assert invalid == values.count(0) - zeros


def test_sign_without_a_level_is_a_valid_zero() -> None:
    integers, invalid = reencode.integers(Encoding.NAT8, np.array([0x80], np.uint32), 31)
    assert (integers.tolist(), invalid) == ([0], 0)


@pytest.mark.parametrize(
    ("encoding", "code", "top", "value"),
    [
        (Encoding.NAT8, 31, 31, 1 << 30),
        (Encoding.NAT8, 0x80 | 31, 31, -(1 << 30)),
        (Encoding.DITH8, 0x81, 127, -127),
        (Encoding.INT16, 0xF020, 4064, -4064),
        (Encoding.FIX32, 0xC0000000, 1 << 30, -(1 << 30)),
        (Encoding.SCALE8, 255, 0, 255),
    ],
)
def test_extreme_codes_stand_for_extreme_integers(encoding: Encoding, code: int, top: int, value: int) -> None:
    assert reencode.integers(encoding, np.array([code], np.uint32), top)[0].tolist() == [value]


@pytest.mark.parametrize(
    ("encoding", "code", "top"),
    [
        (Encoding.NAT8, 32, 31),
        (Encoding.NAT8, 127, 31),
        (Encoding.NAT8, 0xFF, 31),
        (Encoding.TERN, 0b10, 1),
        (Encoding.DITH8, 0x80, 127),
        (Encoding.INT8, 0x80, 127),
        (Encoding.INT16, 0x8000, 4064),
        (Encoding.FIX32, 0x80000000, 1 << 30),
        (Encoding.FIX32, (1 << 30) + 1, 1 << 30),
    ],
)
def test_codes_beyond_the_top_count_as_zero_and_are_counted(encoding: Encoding, code: int, top: int) -> None:
    integers, invalid = reencode.integers(encoding, np.array([code, 1], np.uint32), top)
    assert (integers.tolist(), invalid) == ([0, 1], 1)


@pytest.mark.parametrize("fmt", ALL_FORMATS, ids=named)
def test_maximum_of_scale_bytes_is_their_maximum_in_any_order(fmt: JobFormat) -> None:
    rng = np.random.default_rng(7)
    sent = rng.integers(0, 256, (5, 64)).astype(np.uint32)
    for order in (sent, sent[::-1]):
        accumulators = np.zeros(64, np.int64)
        for codes in order:
            integers, _ = reencode.contribution_integers(Op.MAX, fmt, 5, codes)
            accumulators = reencode.combine(Op.MAX, accumulators, integers)
        noise = rng.integers(0, 1 << 32, 64, np.uint32)
        assert (reencode.result_codes(Op.MAX, fmt, 5, accumulators, noise) == sent.max(axis=0)).all()


@pytest.mark.parametrize("bits", range(53))
def test_bit_length_is_that_of_python(bits: int) -> None:
    near = [v for v in ((1 << bits) - 1, 1 << bits, (1 << bits) + 1) if 0 <= v < 1 << 52]
    assert reencode.bit_length(np.array(near, np.int64)).tolist() == [v.bit_length() for v in near]
