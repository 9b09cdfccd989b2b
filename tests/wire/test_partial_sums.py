"""Sums that every switch of a tree rounds again: unbiased, and within 9/8 a rounding, by enumeration and with the noise
that switches have."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from inagg_wire import noise, noise_keys, reencode
from inagg_wire.formats import FORMATS, WORKERS_MAX, JobFormat, ceil_log2, job_format
from inagg_wire.layout import CARRIED, LANE_BITS, Kind, Op
from inagg_wire.noise import Words
from inagg_wire.reencode import Integers

ROUNDING = [fmt for fmt in FORMATS.values() if fmt.roundings]
NAT8 = job_format("nat8-reencode")
NINE_EIGHTHS = Fraction(9, 8)
SEED = 77


def sent_up(fmt: JobFormat, workers: int, sums: Integers, words: Words) -> Integers:
    """What the parent makes of partial sums, in units of a contribution."""
    codes = reencode.partial_codes(Op.SUM, fmt, workers, sums, words)
    integers, invalid = reencode.integers(fmt.up, codes, fmt.result_levels(workers))
    assert invalid == 0
    return integers << fmt.partial_shift(workers)


def result(fmt: JobFormat, workers: int, sums: Integers, words: Words) -> Integers:
    """What workers make of the sum at the root, in units of a contribution."""
    shift = fmt.partial_shift(workers)
    codes = reencode.result_codes(Op.SUM, fmt, workers, sums >> shift, words, shift)
    integers, invalid = reencode.integers(fmt.down(workers), codes, fmt.result_levels(workers))
    assert invalid == 0
    return integers << fmt.result_shift(workers)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("fmt", ROUNDING, ids=lambda fmt: fmt.name)
def test_two_roundings_keep_the_mean_and_multiply_the_second_moment_by_nine_eighths_each(
    fmt: JobFormat, sign: int
) -> None:
    """Every sum of 4 workers up to 63, all the noise of a leaf, and all of the root."""
    workers = 4
    lowest = 1 << fmt.result_shift(workers)
    words = np.arange(1 << 8, dtype=np.uint32)
    for v in range(1, 64):
        partial = sent_up(fmt, workers, np.full(words.size, sign * v), words)
        out = result(fmt, workers, np.repeat(partial, words.size), np.tile(words, words.size))
        assert Fraction(int(out.sum()), out.size) == sign * v
        second_moment = Fraction(int((out**2).sum()), out.size * v**2)
        # Below the lowest level a value is that level, or nothing: as often as the mean asks for.
        assert second_moment <= (NINE_EIGHTHS**2 if v >= lowest else Fraction(lowest, v))


@pytest.mark.parametrize("fmt", ROUNDING, ids=lambda fmt: fmt.name)
def test_sums_that_were_rounded_up_as_far_as_can_be_fit_accumulators_and_results(fmt: JobFormat) -> None:
    """In as many levels as the format takes, below each switch one worker at the top more than a power of two."""
    counts = [2 ** (ceil_log2(fmt.workers_max) - levels) + 1 for levels in range(1, fmt.roundings + 1)]
    workers = fmt.workers_max
    ones = np.array([0xFFFFFFFF], np.uint32)
    for below in (1, 3, *counts):
        total = np.array([below * fmt.top(workers)])
        for _ in range(fmt.roundings):
            rounded = sent_up(fmt, workers, total, ones)
            assert int(rounded[0]) < 2 * int(total[0]) or int(rounded[0]) == 1 << fmt.partial_shift(workers)
            total = rounded
        switches = workers // below
        assert int(total[0]) * switches < 1 << 31
        assert result(fmt, workers, total * switches, ones) >= total * switches


def moments(word: object) -> tuple[np.ndarray, np.ndarray]:
    """Of results of two leaves' sums in 1,024 lanes, over 2,048 slots: how many standard errors each lane's mean is off
    the sum, and the second moment over the square of it. ``word``: of a leaf's noise, by leaf and slot."""
    assert callable(word)
    lanes, slots = 1024, 2048
    sums = np.random.default_rng(5).integers(1, 1 << 20, (2, lanes))
    total, squares = np.zeros(lanes), np.zeros(lanes)
    for slot in range(slots):
        there = sum(sent_up(NAT8, 4, sums[leaf], word(leaf, slot, lanes)) for leaf in range(2))
        out = result(NAT8, 4, np.asarray(there), noise.switch_words(SEED, slot, 1, lanes)).astype(np.float64)
        total, squares = total + out, squares + out**2
    mean, second = total / slots, squares / slots
    want = sums.sum(0)
    return (mean - want) / np.sqrt((second - mean**2) / slots), second / want.astype(np.float64) ** 2


def test_noise_of_switches_does_not_go_together() -> None:
    """Over slots, with the words that switches really have: no bias, and errors of leaves and root do not add up."""
    keys = [noise_keys.block_key(SEED, 2 * leaf, 1) for leaf in range(2)]
    off, second = moments(lambda leaf, slot, lanes: noise.partial_words(keys[leaf], SEED, slot, 1, lanes))
    assert np.abs(off).max() < 4.5
    assert 0.7 < np.sqrt((off**2).mean()) < 1.3
    assert second.max() < NINE_EIGHTHS**2


def test_crcs_of_other_seeds_alone_would_go_together() -> None:
    """Why `partial_words` is a hash: two such CRCs differ by a constant."""
    _, second = moments(lambda leaf, slot, lanes: noise.switch_words(SEED + 1 + leaf, slot, 1, lanes))
    assert second.max() > NINE_EIGHTHS**2


EXACTLY = [fmt for fmt in FORMATS.values() if not fmt.roundings]


@pytest.mark.parametrize("workers", [1, 2, 127, 128, 258, 259, WORKERS_MAX])
@pytest.mark.parametrize("fmt", EXACTLY, ids=lambda fmt: fmt.name)
def test_exact_sums_go_up_in_the_narrowest_integer_that_holds_that_of_all(fmt: JobFormat, workers: int) -> None:
    most = workers * fmt.top(workers)
    bits = next(bits for bits in (8, 16, 32) if most < 1 << bits - 1)
    encoding = fmt.partial(Op.SUM, workers)
    assert LANE_BITS[encoding] == bits
    assert encoding in CARRIED[Kind.CONTRIBUTION, Op.SUM]
    sums = np.array([most, -most, 0, 1, -1, most // 2, -(most // 2), most - 1])
    codes = reencode.partial_codes(Op.SUM, fmt, workers, sums, np.zeros(8, np.uint32))
    integers, invalid = reencode.integers(encoding, codes, most)
    assert integers.tolist() == sums.tolist()
    assert invalid == 0
