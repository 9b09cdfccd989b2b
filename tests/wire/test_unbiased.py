"""Every format is unbiased for every float type, exactly: by enumeration, and by the threshold of each noise word.

1. Where p, the fraction of the way to the upper level, has at most ten bits, all noise of ten bits is enumerated
   through the real encoder, and the mean of what the codes stand for is the input, as fractions.
2. For any other p (float32 and float64 mantissas, values far below the window, the rational p of a refined scale) the
   state p meets one 32-bit word w: it goes up for exactly floor(2^32 p) words, one further word is a tie that hands the
   state p' = frac(2^32 p) to the next word, and the others go down. So P(up) = (floor(2^32 p) + P'(up)) / 2^32, which
   P = p solves at every depth; the part that is left open after k words is at most 2^-32k. The encoder adds and
   compares, so it is enough to look at the words around the tie and at the ends.
3. The same recursion is enumerated whole, over up to three words of reduced width, for the rule `codec.carries`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.exact import (
    ALL_FORMATS,
    SHAPES,
    Words,
    all_words,
    contribution,
    floats,
    fractions,
    named,
    representable,
    smallest,
    spelled,
    step,
    unit_for,
    unit_value,
)

from inagg_wire import codec, scale
from inagg_wire.formats import Family, JobFormat, job_format
from inagg_wire.layout import Encoding
from inagg_wire.scale import FloatType, Unit

by_format = pytest.mark.parametrize("fmt", ALL_FORMATS, ids=named)
by_type = pytest.mark.parametrize("float_type", FloatType, ids=named)

WIDTH = 10
ONES = 0xFFFFFFFF
WORKERS = (1, 3, 32)

MANTISSAS = [Fraction(m, 1024) for m in (0, 512, 256, 768, 128, 341, 344, 682, 85, 1, 1023, 8, 1016)]
"""Fractions of the way up: 341/1024 is nearest to the 1/3 at which natural compression is noisiest."""


def largest_values(fmt: JobFormat, float_type: FloatType) -> Iterator[Fraction]:
    """Block maxima whose S, or refined V, is a power of two: high, middle, low, and as low as a type has."""
    high = min(SHAPES[float_type].largest, Fraction(2) ** 129)
    for power in (Fraction(2) ** (high.numerator.bit_length() - 1), Fraction(1), SHAPES[float_type].smallest_normal):
        yield max(power, Fraction(2) ** -119) * (Fraction(127, 128) if fmt.up is Encoding.DITH8 else 1)
    if fmt.family is Family.NATURAL:
        yield smallest(float_type)


def magnitudes(fmt: JobFormat, workers: int) -> Iterator[Fraction]:
    """Magnitudes in units: zero, levels, points between them, and down to ten octaves below the lowest level."""
    yield Fraction(0)
    yield from (Fraction(fmt.top(workers)) * f for f in (1, Fraction(1023, 1024), Fraction(255, 256)))
    for octave in range(1, WIDTH + 1):  # below the lowest level
        yield from (m * Fraction(1, 1 << octave) for m in (1, 1 + Fraction(1, 2), 1 + Fraction(5, 8)))
    if fmt.family is Family.NATURAL:
        levels = fmt.levels(workers)
        for k in {1, 2, 3, levels // 2, levels - 1}:
            yield from ((1 << (k - 1)) * (1 + m) for m in MANTISSAS)
    else:
        for level in {0, 1, 2, fmt.top(workers) // 2, fmt.top(workers) - 1}:
            yield from (level + m for m in MANTISSAS)


def has_few_bits(p: Fraction) -> bool:
    return (p * (1 << WIDTH)).denominator == 1


@by_type
@by_format
def test_mean_over_all_noise_is_the_input(fmt: JobFormat, float_type: FloatType) -> None:
    proved = 0
    for workers, largest in product(WORKERS, largest_values(fmt, float_type)):
        unit = unit_for(fmt, workers, largest, float_type)
        few_bits = {y for y in magnitudes(fmt, workers) if y <= fmt.top(workers) and has_few_bits(step(fmt, y).p)}
        inputs = [x for x in sorted(y * unit_value(unit) for y in few_bits) if representable(x, float_type)]
        proved += len(inputs)
        integers = enumerate_noise(fmt, workers, unit, [*inputs, *(-x for x in inputs)], float_type)
        exact = [x / unit_value(unit) for x in inputs]
        totals = [Fraction(int(total), 1 << WIDTH) for total in integers.sum(axis=0)]
        assert totals == [*exact, *(-y for y in exact)]
    assert proved > 200


def enumerate_noise(
    fmt: JobFormat, workers: int, unit: Unit, inputs: list[Fraction], float_type: FloatType
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Integers that the codes of ``inputs`` stand for, of shape (noise, inputs): a row for each value of the noise.

    On the way: nothing but the two neighbours of an input, and the upper one for the largest noise. The bits below
    those enumerated are ones, which makes false ties if anything does; a second noise word is never asked for.
    """
    words = all_words(WIDTH, low_bits=ONES)
    values = np.tile(floats(inputs, float_type), words.size)
    noise = np.repeat(words, len(inputs))
    codes = codec.encode(values, float_type, fmt, workers, unit, spelled(noise))
    integers = contribution(fmt, workers, codes).reshape(words.size, len(inputs))
    steps = [step(fmt, abs(x) / unit_value(unit)) for x in inputs]
    ups = np.abs(integers) != np.array([s.below for s in steps])
    assert (np.where(ups, [s.above for s in steps], np.abs(integers)) == np.abs(integers)).all()
    assert (ups[1:] >= ups[:-1]).all()
    assert (integers * np.array([1 if x >= 0 else -1 for x in inputs]) >= 0).all()
    return integers


# --- any p, by the threshold of each word ---------------------------------------------------------------


def awkward(fmt: JobFormat, workers: int, unit: Unit, float_type: FloatType) -> list[Fraction]:
    """Inputs with as many bits as the type has: long mantissas from the top level down to far below the window, the
    neighbours of powers of two, and the smallest subnormals."""
    bits, top = SHAPES[float_type].mantissa_bits, unit_value(unit) * fmt.top(workers)
    ends = [x.numerator.bit_length() - x.denominator.bit_length() for x in (top, unit_value(unit))]
    powers = [Fraction(2) ** (end - below) for end in ends for below in (-1, 0, 1, 2, 9, 40)]
    mantissas = [Fraction(n, 1 << bits) for n in (0, 1, (1 << bits) // 3, 2 * (1 << bits) // 3 + 1, (1 << bits) - 1)]
    inputs = {power * (1 + m) for power in powers for m in mantissas} | {smallest(float_type), 3 * smallest(float_type)}
    return sorted(x for x in inputs if representable(x, float_type) and x <= top)


@by_type
@by_format
def test_each_noise_word_moves_up_exactly_its_share(fmt: JobFormat, float_type: FloatType) -> None:
    bits = SHAPES[float_type].mantissa_bits
    third = 1 + Fraction((1 << bits) // 3, 1 << bits)
    for workers, largest in product((1, 32), (Fraction(1), third, max(smallest(float_type), Fraction(2) ** -149) * 5)):
        unit = unit_for(fmt, workers, largest, float_type)
        check_shares(fmt, workers, unit, awkward(fmt, workers, unit, float_type), float_type, words=3)


@by_format
def test_the_smallest_float64_takes_as_many_words_as_it_has_bits(fmt: JobFormat) -> None:
    """2^-1074 lies some 925 binary places below the lowest level: 28 words that are all ones, and then its own."""
    unit = unit_for(fmt, 2, Fraction(2) ** -119, FloatType.FLOAT64)
    tiny = smallest(FloatType.FLOAT64)
    check_shares(fmt, 2, unit, [tiny, 3 * tiny, 12345 * tiny], FloatType.FLOAT64, words=32)


def check_shares(
    fmt: JobFormat, workers: int, unit: Unit, inputs: list[Fraction], float_type: FloatType, words: int
) -> None:
    """Part 2 of the proof for ``inputs``, through chains of ``words`` ties."""
    values = floats(inputs, float_type)
    steps = [step(fmt, x / unit_value(unit)) for x in inputs]
    below = np.array([s.below for s in steps])
    states = [s.p for s in steps]
    zeros, ones = np.zeros(len(inputs), np.uint32), np.full(len(inputs), ONES, np.uint32)
    chain: list[Words] = []

    def ups(word: Words, rest: Words) -> list[bool]:
        """Which inputs go up if ``word`` follows the chain of ties, and ``rest`` follows for ever."""
        begin = [*chain, word]
        codes = codec.encode(values, float_type, fmt, workers, unit, lambda i: begin[i] if i < len(begin) else rest)
        integers = contribution(fmt, workers, codes)
        assert all(i in (s.below, s.above) for i, s in zip(integers.tolist(), steps, strict=True))
        return [bool(up) for up in integers != below]

    for _ in range(words):
        shares = [int(p * 2**32) for p in states]
        left = [p * 2**32 - share for p, share in zip(states, shares, strict=True)]
        tie = ones - np.array(shares, np.uint32)
        all_up = [share == ONES and p > 0 for share, p in zip(shares, left, strict=True)]
        # The words above the tie, of which there are `share`, go up whatever follows.
        assert ups(np.where(tie < ones, tie + 1, tie), zeros) == [share > 0 for share in shares]
        assert ups(ones, zeros) == [share > 0 for share in shares]
        # Those below it do not. (Where there are none, 0 is the tie.)
        assert ups(np.where(tie > zeros, tie - 1, tie), ones) == all_up
        assert ups(zeros, ones) == all_up
        # In a tie the words that follow decide, if p has anything left for them.
        assert ups(tie, zeros) == [False] * len(inputs)
        assert ups(tie, ones) == [p > 0 for p in left]
        chain.append(tie)
        states = left


def spell(words: list[int], width: int = 32) -> Fraction:
    """U = 0.w0 w1 w2 ..., with zeros to follow."""
    return sum((Fraction(w, 1 << (width * (i + 1))) for i, w in enumerate(words)), Fraction(0))


@st.composite
def lanes(draw: st.DrawFn, fmt: JobFormat, unit: Unit) -> tuple[float, list[int]]:
    """A float64 within the window or far below it, and noise words that tie with it, or nearly so."""
    top = unit_value(unit) * fmt.top(2)
    x = draw(st.floats(0.0, float(top)) | st.floats(0.0, float(unit_value(unit))))
    p, words = step(fmt, Fraction(x) / unit_value(unit)).p, []
    for _ in range(3):
        p *= 2**32
        near = ONES - int(p) + draw(st.sampled_from([0, 0, 0, 1, -1]))
        words.append(min(max(near, 0), ONES))
        p -= int(p)
    return draw(st.sampled_from([x, -x])), words


@given(st.data(), st.sampled_from(ALL_FORMATS), st.integers(0, 255))
@settings(max_examples=300)
def test_encoder_carries_as_the_sum_of_fractions_does(data: st.DataObject, fmt: JobFormat, refinement: int) -> None:
    """U + p >= 1 in fractions, against encoder and `codec.carries`, for noise that ties in one word, two or three."""
    unit = scale.unit(fmt, 2, scale.SCALE_BIAS, refinement)
    assert unit is not None
    drawn = data.draw(st.lists(lanes(fmt, unit), min_size=1, max_size=6))
    values, words = np.array([x for x, _ in drawn]), np.array([w for _, w in drawn], np.uint32)
    zeros = np.zeros(len(drawn), np.uint32)
    codes = codec.encode(values, FloatType.FLOAT64, fmt, 2, unit, lambda i: words[:, i] if i < 3 else zeros)
    for x, (_, spelling), integer in zip(values.tolist(), drawn, contribution(fmt, 2, codes).tolist(), strict=True):
        s = step(fmt, abs(Fraction(x)) / unit_value(unit))
        up = spell(spelling) + s.p >= 1
        assert codec.carries(s.p, lambda i, w=spelling: w[i] if i < 3 else 0) is up  # type: ignore[misc]
        assert integer == (s.above if up else s.below) * (-1 if x < 0 else 1)


# --- the rule, enumerated over several words ------------------------------------------------------------


class Open(Exception):
    """The words that are enumerated were all ties."""


PROBABILITIES = [
    Fraction(a, b) for b in (1, 3, 5, 7, 8, 64, 257, 512, 4096) for a in {0, 1, b // 3, b // 2, b - 1} if a < b
]


@pytest.mark.parametrize(("width", "words"), [(1, 8), (2, 4), (3, 3), (4, 2), (8, 1)])
def test_rule_goes_up_with_probability_p_over_all_noise(width: int, words: int) -> None:
    """Of all noise, p goes up, but for the one that ties in every word: that leaves p' to the words after."""
    total = 1 << (width * words)
    for p in PROBABILITIES:
        ups = ties = 0
        for noise in product(range(1 << width), repeat=words):

            def word(index: int, noise: tuple[int, ...] = noise) -> int:
                if index == len(noise):
                    raise Open
                return noise[index]

            try:
                ups += codec.carries(p, word, width)
            except Open:
                ties += 1
        left = p * total - int(p * total)
        assert ties == (1 if left else 0)
        assert Fraction(ups + left) / total == p


def test_rule_is_the_sum_of_fractions_at_reduced_width() -> None:
    for p, noise in product(PROBABILITIES, product(range(8), repeat=3)):
        carried = codec.carries(p, lambda i, noise=noise: noise[i] if i < 3 else 0, 3)  # type: ignore[misc]
        assert carried is (spell(list(noise), 3) + p >= 1)


# --- fixed points ---------------------------------------------------------------------------------------


@by_type
@by_format
def test_levels_are_fixed_points_for_all_noise(fmt: JobFormat, float_type: FloatType) -> None:
    """Zero, and for natural formats the powers of two, whatever the noise: p is 0, and the noise is not looked at."""
    for workers in (1, 2, 32):
        unit = unit_for(fmt, workers, Fraction(1), float_type)
        if fmt.family is Family.NATURAL:
            levels = [Fraction(0), *(Fraction(1 << k) for k in range(fmt.levels(workers)))]
        else:
            levels = [
                Fraction(k) for k in (0, 1, 2, 3, fmt.top(workers) // 2, fmt.top(workers)) if k <= fmt.top(workers)
            ]
        inputs = [y * unit_value(unit) for y in levels]
        kept = [(x, y) for x, y in zip(inputs, levels, strict=True) if representable(x, float_type)]
        values = floats([x for x, _ in kept], float_type)
        for noise in (0, 1, 0x7FFFFFFF, ONES):
            codes = codec.encode(values, float_type, fmt, workers, unit, spelled(np.full(len(kept), noise, np.uint32)))
            assert contribution(fmt, workers, codes).tolist() == [y for _, y in kept]


def test_natural_rounding_of_float32_is_adding_noise_to_the_bits() -> None:
    """The design's ``(bits + r) & 0xFF800000`` with r of 23 bits is the same rule: r is the top of word 0."""
    rng = np.random.default_rng(1)
    values = np.ldexp(rng.uniform(1, 2, 20000), rng.integers(-29, 0, 20000)).astype(np.float32)
    words = rng.integers(0, 1 << 32, values.size, np.uint32)
    rounded = ((values.view(np.uint32) + (words >> np.uint32(9))) & np.uint32(0xFF800000)).view(np.float32)
    nat8 = job_format("nat8")
    unit = unit_for(nat8, 1, Fraction(1), FloatType.FLOAT32)
    codes = codec.encode(values, FloatType.FLOAT32, nat8, 1, unit, spelled(words))
    assert (codec.decode(codes, FloatType.FLOAT32, nat8, 1, unit) == rounded).all()


@by_format
def test_float_types_of_the_same_number_get_the_same_code(fmt: JobFormat) -> None:
    exact = [Fraction(n, 1024) for n in range(-1024, 1025) if representable(Fraction(n, 1024), FloatType.BFLOAT16)]
    words = np.random.default_rng(2).integers(0, 1 << 32, len(exact), np.uint32)
    unit = unit_for(fmt, 3, Fraction(1), FloatType.FLOAT64)
    codes = {tuple(codec.encode(floats(exact, t), t, fmt, 3, unit, lambda _: words).tolist()) for t in FloatType}
    assert len(codes) == 1
    assert fractions(floats(exact, FloatType.BFLOAT16), FloatType.BFLOAT16) == exact
