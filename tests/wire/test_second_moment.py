"""Natural compression's second moment, and natural dithering as natural compression after standard dithering.

C_nat (Horvath et al. 2019, arXiv 1905.10988, definition 2): for |x| = (1 + m) 2^e the second moment over x^2 is
((1 - m) + 4 m) / (1 + m)^2 = (1 + 3m) / (1 + m)^2 = 9/8 - (1 - 3m)^2 / (8 (1 + m)^2): at most 9/8, and 9/8 at
m = 1/3 only.

A binary float is never 4/3 2^e. So 9/8 itself is shown for the rounding rule, which takes p = 1/3 as a fraction, and
the encoder is shown to fall short of it by (1 - 3m)^2 / (8 (1 + m)^2) exactly, for dyadic m that approach 1/3.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from tests.wire.exact import (
    NATURAL,
    all_words,
    contribution,
    floats,
    named,
    spelled,
    step,
    unit_for,
    unit_value,
)

from inagg_wire import codec, reencode
from inagg_wire.formats import JobFormat, job_format
from inagg_wire.scale import FloatType, Unit

NINE_EIGHTHS = Fraction(9, 8)
WIDTH = 10

by_natural = pytest.mark.parametrize("fmt", NATURAL, ids=named)


def second_moment(m: Fraction) -> Fraction:
    """E C_nat(x)^2 / x^2 for |x| = (1 + m) 2^e."""
    return (1 + 3 * m) / (1 + m) ** 2


def enumerated(fmt: JobFormat, unit: Unit, inputs: list[Fraction]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Integers for all noise of ten bits, of shape (noise, inputs)."""
    words = all_words(WIDTH)
    values = np.tile(floats(inputs, FloatType.FLOAT32), words.size)
    codes = codec.encode(values, FloatType.FLOAT32, fmt, 1, unit, spelled(np.repeat(words, len(inputs))))
    return contribution(fmt, 1, codes).reshape(words.size, len(inputs))


@by_natural
def test_second_moment_is_that_of_natural_compression_and_at_most_nine_eighths(fmt: JobFormat) -> None:
    """All mantissas of ten bits, in the lowest octave of the window, one inside, and the highest."""
    unit = unit_for(fmt, 1, Fraction(1), FloatType.FLOAT32)
    mantissas = [Fraction(m, 1 << WIDTH) for m in range(1 << WIDTH)]
    for power in (0, 3, fmt.levels(1) - 2):
        y = [(1 << power) * (1 + m) for m in mantissas]
        integers = enumerated(fmt, unit, [v * unit_value(unit) for v in y]) >> power  # 1 or 2
        squares = (integers**2).sum(axis=0).tolist()
        moments = [Fraction(total, 1 << WIDTH) / (1 + m) ** 2 for total, m in zip(squares, mantissas, strict=True)]
        assert moments == [second_moment(m) for m in mantissas]
        assert max(moments) < NINE_EIGHTHS


def test_enumerated_second_moments_come_nearer_to_nine_eighths_with_every_bit() -> None:
    fmt = job_format("nat8")
    unit = unit_for(fmt, 1, Fraction(1), FloatType.FLOAT32)
    thirds = [Fraction((1 << bits) // 3, 1 << bits) for bits in range(1, WIDTH + 1)]
    integers = enumerated(fmt, unit, [(1 + m) * unit_value(unit) for m in thirds])
    squares = (integers**2).sum(axis=0).tolist()
    moments = [Fraction(total, 1 << WIDTH) / (1 + m) ** 2 for total, m in zip(squares, thirds, strict=True)]
    assert [NINE_EIGHTHS - moment for moment in moments] == [(1 - 3 * m) ** 2 / (8 * (1 + m) ** 2) for m in thirds]
    assert moments == sorted(moments)
    assert NINE_EIGHTHS - moments[-1] < Fraction(1, 10**6)


@pytest.mark.parametrize("width", [2, 4, 8])
def test_rule_at_four_thirds_has_a_second_moment_of_exactly_nine_eighths(width: int) -> None:
    """p = 1/3 meets a word of an even width: (2^w - 1) / 3 of the words go up and one is a tie that leads to p = 1/3
    again. So P = ((2^w - 1) / 3 + P) / 2^w, which gives P = 1/3 exactly."""
    third, words = Fraction(1, 3), 1 << width

    class TieError(Exception):
        pass

    def no_more(_: int) -> int:
        raise TieError

    ups = ties = 0
    for word in range(words):
        try:
            ups += codec.carries(third, lambda i, word=word: word if i == 0 else no_more(i), width)  # type: ignore[misc]
        except TieError:
            ties += 1
            assert third * words - int(third * words) == third  # the state after the tie
    assert ties == 1
    probability = Fraction(ups, words - ties)
    assert probability == third
    assert ((1 - probability) * 1 + probability * 4) / Fraction(4, 3) ** 2 == NINE_EIGHTHS == second_moment(third)


def test_full_width_words_at_four_thirds_lead_from_one_third_to_one_third() -> None:
    third = Fraction(1, 3)
    tie = 0xFFFFFFFF - 0x55555555
    assert [codec.carries(third, lambda _, w=w: w) for w in (tie - 1, tie + 1)] == [False, True]  # type: ignore[misc]
    assert third * 2**32 - 0x55555555 == third


# --- D_nat with s levels = C_nat o D_sta with 2^(s-1) levels ---------------------------------------------

Distribution = dict[Fraction, Fraction]


def natural_dithering(y: Fraction, s: int) -> Distribution:
    """D_nat^{inf,s} of 0 <= y <= 1: unbiased between the neighbours among 0, 2^(1-s), ..., 1/2, 1."""
    levels = [Fraction(0), *(Fraction(2) ** (k - s) for k in range(1, s + 1))]
    below = max(v for v in levels if v <= y)
    if below == y:
        return {y: Fraction(1)}
    above = min(v for v in levels if v > y)
    p = (y - below) / (above - below)
    return {below: 1 - p, above: p}


def standard_dithering(y: Fraction, u: int) -> Distribution:
    """D_sta^{inf,u} of 0 <= y <= 1: unbiased between the neighbours among j / u."""
    below = Fraction(int(y * u), u)
    p = (y - below) * u
    return {below: 1 - p, below + Fraction(1, u): p} if p else {below: Fraction(1)}


def natural_compression(x: Fraction) -> Distribution:
    """C_nat of x >= 0."""
    if x == 0:
        return {x: Fraction(1)}
    below = Fraction(2) ** (x.numerator.bit_length() - x.denominator.bit_length())
    below = below if below <= x else below / 2
    p = (x - below) / below
    return {below: 1 - p, 2 * below: p} if p else {x: Fraction(1)}


def composed(y: Fraction, s: int) -> Distribution:
    """C_nat of D_sta^{inf,2^(s-1)} of 0 <= y <= 1."""
    result: Distribution = {}
    for middle, weight in standard_dithering(y, 1 << (s - 1)).items():
        for value, p in natural_compression(middle).items():
            result[value] = result.get(value, Fraction(0)) + weight * p
    return result


@pytest.mark.parametrize("s", range(2, 9))
def test_natural_dithering_is_natural_compression_after_standard_dithering(s: int) -> None:
    """In fractions, on a grid that holds all levels of both, thirds and sevenths, and the ends."""
    grid = {Fraction(j, d) for d in (1 << (s + 2), 3 * 7 * 11) for j in range(d + 1)}
    assert all(natural_dithering(y, s) == composed(y, s) for y in grid)


@pytest.mark.parametrize("name", ["nat4", "nat4-nat8"])
def test_nat4_is_natural_dithering_with_seven_levels(name: str) -> None:
    """The encoder over all noise against the distribution in fractions, for all inputs of ten bits."""
    fmt = job_format(name)
    unit = unit_for(fmt, 1, Fraction(1), FloatType.FLOAT32)
    assert unit_value(unit) * 64 == 1
    inputs = [Fraction(j, 1 << WIDTH) for j in range((1 << WIDTH) + 1)]
    integers = enumerated(fmt, unit, inputs)
    for y, column in zip(inputs, integers.T, strict=True):
        s = step(fmt, y / unit_value(unit))
        values, counts = np.unique(column, return_counts=True)
        got = {Fraction(int(v), 64): Fraction(int(c), 1 << WIDTH) for v, c in zip(values, counts, strict=True)}
        assert got == natural_dithering(y, 7) == composed(y, 7)
        assert set(got) <= {Fraction(s.below, 64), Fraction(s.above, 64)}


def test_nat4_has_the_distribution_of_the_switch_s_natural_compression_after_standard_dithering() -> None:
    """Both sides from real code, as counts: nat4's encoder, and the switch's re-encoder of integers that a linear
    encoder, fix32's, dithered to 2^6 levels; over all noise of both."""
    nat4, fix32 = job_format("nat4"), job_format("fix32")
    unit = unit_for(nat4, 1, Fraction(1), FloatType.FLOAT32)
    inputs = [Fraction(j, 1 << WIDTH) for j in range((1 << WIDTH) + 1)]
    direct = enumerated(nat4, unit, inputs)
    # Standard dithering with u = 64 levels is linear rounding to units of 1/64.
    dithered = enumerated(fix32, unit, inputs)
    noise = np.tile(np.arange(64, dtype=np.uint32), 65)
    levels = reencode.natural_levels(np.repeat(np.arange(65), 64), 0, noise).reshape(65, 64)
    for i in range(len(inputs)):
        after = np.bincount(levels[dithered[:, i]].ravel(), minlength=8)
        before = np.bincount(reencode.bit_length(direct[:, i]), minlength=8)
        assert (after == before * 64).all()


@pytest.mark.parametrize("s", range(2, 9))
def test_re_encoding_with_a_shifted_window_is_natural_dithering(s: int) -> None:
    """The switch's window with s levels from 2^low up, over all noise, for every integer up to its top level."""
    low = 3
    top = 1 << (s - 1 + low)
    width = s - 1 + low
    sums, noise = np.arange(top + 1), np.arange(1 << width, dtype=np.uint32)
    levels = reencode.natural_levels(np.repeat(sums, noise.size), low, np.tile(noise, sums.size))
    counts = [np.bincount(row, minlength=s + 1) for row in levels.reshape(sums.size, noise.size)]
    for v, count in zip(sums.tolist(), counts, strict=True):
        assert count.size == s + 1
        got = {
            Fraction(2) ** (k - s) if k else Fraction(0): Fraction(int(c), noise.size) for k, c in enumerate(count) if c
        }
        assert got == composed(Fraction(v, top), s)
