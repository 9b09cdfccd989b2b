"""Means and second moments, exactly: by going through all the noise there is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from inagg_host.compress import Dithering, Key, Natural, NaturalDithering, TernGrad
from inagg_wire.noise import Words

BITS = 10
ALL = 1 << BITS


@dataclass(frozen=True)
class EveryNoise(Key):
    """Element i has the noise i in its top bits: the first ALL elements have all the noise of so many bits.

    A fraction of no more bits decides by these alone, so what the elements do on average is what one does over all
    noise.
    """

    def words(self, count: int, index: int = 0) -> Words:
        words = np.zeros(count, np.uint32) if index else np.arange(count, dtype=np.uint32) << np.uint32(32 - BITS)
        return words & np.uint32(0xFFFFFFFF)


EVERY = EveryNoise(0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [-100, 0, 37])
def test_natural_compression_is_unbiased_and_has_its_second_moment(dtype: type, exponent: int) -> None:
    for mantissa in range(0, ALL, 13):
        m = mantissa / ALL
        for sign in (1, -1):
            value = sign * math.ldexp(1 + m, exponent)
            compressed = Natural()(np.full(ALL, value, dtype), EVERY).astype(np.float64)
            assert compressed.mean() == value
            assert np.square(compressed / value).mean() == pytest.approx((1 + 3 * m) / (1 + m) ** 2, rel=1e-12)
            assert set(np.log2(np.abs(compressed))) <= {exponent, exponent + 1}


def test_the_worst_mantissa_of_natural_compression_is_a_third() -> None:
    moments = [(1 + 3 * m) / (1 + m) ** 2 for m in np.arange(ALL) / ALL]
    assert max(moments) <= 9 / 8
    assert moments[round(ALL / 3)] == pytest.approx(9 / 8, rel=1e-6)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, {0.0}), (-0.0, {0.0}), (1.0, {1.0}), (-(2.0**-126), {-(2.0**-126)}), (2.0**127, {2.0**127})],
)
def test_zero_and_powers_of_two_stay(value: float, expected: set[float]) -> None:
    compressed = Natural()(np.full(ALL, value, np.float32), EVERY)
    assert set(compressed.tolist()) == expected
    assert not np.signbit(compressed[compressed == 0]).any()


def test_subnormal_numbers_become_the_smallest_normal_one_or_zero_without_bias() -> None:
    compressed = Natural()(np.full(ALL, 2.0**-128, np.float32), EVERY).astype(np.float64)
    assert set(compressed.tolist()) == {0.0, 2.0**-126}
    assert compressed.mean() == 2.0**-128


@pytest.mark.parametrize("s", [1, 2, 8])
def test_standard_dithering_is_unbiased_and_has_the_variance_of_its_step(s: int) -> None:
    for step in range(0, ALL * s + 1, 37):
        value = step / ALL / s
        compressed = Dithering(math.inf, s)(np.append(np.full(ALL, -value), 1.0), EVERY)
        p = step / ALL % 1
        assert compressed[:-1].mean() == -value
        assert np.square(compressed[:-1] + value).mean() == pytest.approx(p * (1 - p) / s**2, abs=1e-15)


@pytest.mark.parametrize("s", [1, 3, 7])
def test_natural_dithering_is_unbiased_between_its_levels(s: int) -> None:
    levels = [0.0, *(2.0 ** (1 - s + i) for i in range(s))]
    for low, high in pairwise(levels):
        for step in range(0, ALL + 1, 41):
            value = low + (high - low) * step / ALL
            compressed = NaturalDithering(math.inf, s)(np.append(np.full(ALL, value), 1.0), EVERY)[:-1]
            assert compressed.mean() == value
            assert set(compressed.tolist()) <= {low, high}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("kind", [Dithering, NaturalDithering])
def test_a_norm_beyond_the_largest_number_leaves_finite_values_finite(
    kind: type[Dithering | NaturalDithering], p: float, dtype: type[np.float32 | np.float64]
) -> None:
    half = float(np.finfo(dtype).max) / 2
    compressed = kind(p, 7)(np.full(ALL, -half, dtype), EVERY)
    assert (compressed / -half).mean() == pytest.approx(1.0, rel=1e-6)


def test_terngrad_is_unbiased() -> None:
    for step in range(0, ALL + 1, 41):
        value = 3.0 * step / ALL
        compressed = TernGrad(0, "own")(np.append(np.full(ALL, value), -3.0), EVERY)
        assert compressed[:-1].mean() == value
        assert set(compressed.tolist()) <= {0.0, 3.0, -3.0}


def test_terngrad_clips_to_so_many_standard_deviations_of_the_layer() -> None:
    x = np.random.default_rng(1).standard_normal(10_000)
    assert TernGrad(2.5).scale(x) == pytest.approx(2.5 * x.std())
    assert TernGrad(100).scale(x) == np.abs(x).max()
    assert TernGrad(0).scale(x) == np.abs(x).max()
    assert np.abs(TernGrad(2.5, "own")(x, Key(1))).max() == pytest.approx(2.5 * x.std())


@pytest.mark.parametrize("unit", [2.0**-1000, 2.0**1000])
def test_terngrad_clips_values_whose_squares_are_no_numbers(unit: float) -> None:
    x = np.random.default_rng(1).standard_normal(10_000)
    limit = TernGrad(2.5).scale(unit * x)
    assert limit is not None
    assert limit / unit == pytest.approx(2.5 * x.std())


def test_terngrad_clips_nothing_where_the_limit_is_beyond_the_largest_number() -> None:
    x = np.array([3e38, -3e38], np.float32)
    assert TernGrad(2.5).clipped(x).tolist() == x.tolist()


@pytest.mark.parametrize("clip", [2.5, math.inf])
def test_terngrad_clips_no_values_that_have_no_deviation(clip: float) -> None:
    for alike in ([3.0], [-0.5, -0.5], [0.0], []):
        x = np.array(alike, np.float32)
        assert TernGrad(clip, "own")(x, Key(1)).tolist() == TernGrad(clip).clipped(x).tolist() == alike
    tenths = np.full(3, 0.1)  # of which the mean in float64 is another number
    assert TernGrad(clip).clipped(tenths).tolist() == tenths.tolist()
