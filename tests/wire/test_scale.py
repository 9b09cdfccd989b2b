"""Scale bytes: the smallest power of two that reaches, and its refinement, both exactly."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.wire.exact import (
    ALL_FORMATS,
    REFINED,
    SHAPES,
    agreed_unit,
    floats,
    fractions,
    named,
    smallest,
    switch_max,
    unit_value,
)

from inagg_wire import scale
from inagg_wire.formats import FORMATS, JobFormat
from inagg_wire.layout import Encoding
from inagg_wire.scale import Floats, FloatType, refine_byte, scale_byte

LOWEST, HIGHEST = -119, 129


@st.composite
def blocks(draw: st.DrawFn, float_type: FloatType, least: int = 1, most: int = 4) -> Floats:
    """Any bits of a type that are a number which the highest scale reaches (as all are but those of float64)."""
    bits = 8 * float_type.dtype.itemsize
    unsigned: Any = {16: np.uint16, 32: np.uint32, 64: np.uint64}[bits]
    words = draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=least, max_size=most))
    raw = np.array(words, unsigned)
    values = raw if float_type is FloatType.BFLOAT16 else raw.view(float_type.dtype)
    return values[np.abs(scale.widen(values, float_type)) <= 2.0**HIGHEST * 127 / 128]


any_format = st.sampled_from(ALL_FORMATS)
any_type = st.sampled_from(FloatType)
any_workers = st.integers(1, 32)


def needed(fmt: JobFormat, values: Floats, float_type: FloatType) -> Fraction:
    """What S, or the refined V, must reach: for dith8 level 127 of 128 is the top."""
    largest = max((abs(x) for x in fractions(values, float_type)), default=Fraction(0))
    return largest * Fraction(128, 127) if fmt.up is Encoding.DITH8 else largest


def floor_of(fmt: JobFormat, workers: int, float_type: FloatType) -> int:
    """The smallest s: that of the byte, and for formats of one-bit units the one that puts level 1 at the smallest
    subnormal."""
    if fmt.refined:
        return LOWEST
    return max(LOWEST, float_type.value + fmt.top(workers).bit_length() - 1)


@given(st.data(), any_format, any_type, any_workers)
@settings(max_examples=400)
def test_scale_is_the_smallest_power_of_two_that_reaches(
    data: st.DataObject, fmt: JobFormat, float_type: FloatType, workers: int
) -> None:
    values = data.draw(blocks(float_type))
    need = needed(fmt, values, float_type)
    assume(need)
    s = scale_byte(fmt, workers, values, float_type) - scale.SCALE_BIAS
    assert LOWEST <= s <= HIGHEST
    assert need <= Fraction(2) ** s
    assert need > Fraction(2) ** (s - 1) or s == floor_of(fmt, workers, float_type)


@pytest.mark.parametrize("fmt", ALL_FORMATS, ids=named)
@pytest.mark.parametrize("float_type", FloatType, ids=named)
def test_scale_is_exact_around_every_power_of_two(fmt: JobFormat, float_type: FloatType) -> None:
    """Powers of two and their neighbours in the type, where an estimate by logarithm would fail."""
    bits = SHAPES[float_type].mantissa_bits
    for s in range(-60 if float_type is not FloatType.FLOAT16 else -3, 15):
        below, at, above = (Fraction(2) ** s * (1 + Fraction(d, 1 << (bits + (d < 0)))) for d in (-1, 0, 1))
        for x in (below, at, above):
            need = x * Fraction(128, 127) if fmt.up is Encoding.DITH8 else x
            want = min(e for e in range(s - 1, s + 3) if need <= Fraction(2) ** e)
            got = scale_byte(fmt, 3, floats([x], float_type), float_type) - scale.SCALE_BIAS
            assert got == max(want, floor_of(fmt, 3, float_type))


@given(st.data(), any_format, any_type, any_workers)
@settings(max_examples=300)
def test_maximum_of_the_bytes_is_the_byte_of_the_maximum(
    data: st.DataObject, fmt: JobFormat, float_type: FloatType, workers: int
) -> None:
    """So that the workers agree on what one of them would choose who saw all values."""
    listed = data.draw(st.lists(blocks(float_type), min_size=1, max_size=4))
    own = [scale_byte(fmt, workers, values, float_type) for values in listed]
    assert max(own) == scale_byte(fmt, workers, np.concatenate(listed), float_type)
    assert switch_max(fmt, workers, own) == max(own)


@pytest.mark.parametrize("fmt", ALL_FORMATS, ids=named)
def test_switch_returns_the_largest_byte_unchanged(fmt: JobFormat) -> None:
    """Also for formats whose sums it shifts: a scale has no unit to shift by."""
    for workers in (1, 2, 3, 8, 32):
        assert [switch_max(fmt, workers, [0, byte, byte // 2]) for byte in range(256)] == list(range(256))


@given(st.data(), st.sampled_from(REFINED), any_type, any_workers)
@settings(max_examples=400)
def test_refined_scale_reaches_and_is_the_finest_that_does(
    data: st.DataObject, fmt: JobFormat, float_type: FloatType, workers: int
) -> None:
    """V >= what every worker needs, and one step less would not do, unless V is the smallest of its octave and the
    octave the lowest."""
    listed = data.draw(st.lists(blocks(float_type), min_size=1, max_size=4))
    need = max(needed(fmt, values, float_type) for values in listed)
    assume(need)
    own = [scale_byte(fmt, workers, values, float_type) for values in listed]
    q = max(refine_byte(fmt, v, float_type, o, max(own)) for v, o in zip(listed, own, strict=True))
    assert 0 <= q <= 255
    grid = Fraction(2) ** (max(own) - scale.SCALE_BIAS - 9)
    assert need <= (257 + q) * grid
    assert need > (256 + q) * grid or (q == 0 and max(own) == 1)


@given(st.data(), any_format, any_type)
@settings(max_examples=300)
def test_agreed_unit_puts_every_value_within_the_top_level(
    data: st.DataObject, fmt: JobFormat, float_type: FloatType
) -> None:
    listed = data.draw(st.lists(blocks(float_type), min_size=1, max_size=5))
    largest = max((abs(x) for values in listed for x in fractions(values, float_type)), default=Fraction(0))
    unit = agreed_unit(fmt, len(listed), listed, float_type)
    assert unit is not None
    assert largest <= unit_value(unit) * fmt.top(len(listed))
    assert unit.mantissa <= 512


@pytest.mark.parametrize("fmt", REFINED, ids=named)
def test_refinement_byte_covers_the_octave(fmt: JobFormat) -> None:
    """Every float16 that needs more than half of S = 1, and no more than S: q takes all values from 0 to 255 and no
    other."""
    blocks = [floats([Fraction(j, 4096)], FloatType.FLOAT16) for j in (*range(1025, 2048), *range(2048, 4097, 2))]
    octave = [b for b in blocks if Fraction(1, 2) < needed(fmt, b, FloatType.FLOAT16) <= 1]
    assert {scale_byte(fmt, 2, b, FloatType.FLOAT16) for b in octave} == {120}
    assert {refine_byte(fmt, b, FloatType.FLOAT16, 120, 120) for b in octave} == set(range(256))


@pytest.mark.parametrize("fmt", REFINED, ids=named)
def test_worker_below_the_agreed_scale_sends_no_refinement(fmt: JobFormat) -> None:
    assert refine_byte(fmt, floats([Fraction(1)], FloatType.FLOAT32), FloatType.FLOAT32, 120, 121) == 0


@pytest.mark.parametrize("agreed", [scale.SCALE_ZERO, 250, 254, scale.SCALE_NONFINITE])
@pytest.mark.parametrize("fmt", REFINED, ids=named)
def test_zero_and_non_finite_scales_are_not_refined(fmt: JobFormat, agreed: int) -> None:
    values = np.array([0.0 if agreed == 0 else np.inf], np.float32)
    assert refine_byte(fmt, values, FloatType.FLOAT32, agreed, agreed) == 0


@pytest.mark.parametrize("name", ["nat8", "nat4", "nat4-nat8", "fix32"])
@pytest.mark.parametrize("float_type", FloatType, ids=named)
def test_no_level_of_a_shared_power_of_two_falls_below_the_subnormals(name: str, float_type: FloatType) -> None:
    fmt = FORMATS[name]
    tiny = max(smallest(float_type), Fraction(2) ** -200)
    for workers in (1, 2, 32):
        unit = scale.unit(fmt, workers, scale_byte(fmt, workers, floats([tiny], float_type), float_type))
        assert unit is not None
        assert unit.mantissa == 1
        assert unit_value(unit) >= smallest(float_type)


@pytest.mark.parametrize("float_type", [FloatType.FLOAT16, FloatType.BFLOAT16, FloatType.FLOAT32], ids=named)
@pytest.mark.parametrize("name", ["nat8", "nat4", "fix32"])
def test_scale_that_subnormals_hold_up_loses_no_accuracy(name: str, float_type: FloatType) -> None:
    """Held up, level 1 is the smallest subnormal or (float32 with more than one worker) the byte's own lowest unit."""
    fmt = FORMATS[name]
    for workers in (1, 2, 32):
        unit = scale.unit(
            fmt, workers, scale_byte(fmt, workers, floats([smallest(float_type)], float_type), float_type)
        )
        assert unit is not None
        held_by_byte = unit.exponent + fmt.top(workers).bit_length() - 1 == LOWEST
        assert unit.exponent == float_type.value or held_by_byte


@pytest.mark.parametrize("fmt", REFINED, ids=named)
@pytest.mark.parametrize("exponent", [0, -8, -12, -14, -20, -24])
def test_refined_scale_of_small_float16_values_is_as_fine_as_of_large_ones(fmt: JobFormat, exponent: int) -> None:
    """The top level is within 1 + 1/256 (and, for a subnormal, its own grain) of the largest value."""
    x = Fraction(2) ** exponent
    block = floats([x], FloatType.FLOAT16)
    unit = agreed_unit(fmt, 2, [block, block], FloatType.FLOAT16)
    assert unit is not None
    assert x <= unit_value(unit) * fmt.top(2) <= x * Fraction(257, 256)


def test_unit_of_a_zero_block_is_zero() -> None:
    assert all(scale.unit(fmt, 4, scale.SCALE_ZERO) == scale.ZERO for fmt in ALL_FORMATS)


@pytest.mark.parametrize("byte", range(250, 256))
def test_bytes_beyond_the_highest_scale_are_non_finite(byte: int) -> None:
    assert all(scale.unit(fmt, 4, byte) is None for fmt in ALL_FORMATS)


@pytest.mark.parametrize("fmt", ALL_FORMATS, ids=named)
def test_every_scale_byte_gives_the_unit_of_its_power_of_two(fmt: JobFormat) -> None:
    for workers in (1, 3, 32):
        for byte in range(1, 250):
            power = Fraction(2) ** (byte - 120)
            unit = scale.unit(fmt, workers, byte, 255)
            assert unit is not None
            level = 128 if fmt.up is Encoding.DITH8 else fmt.top(workers)
            assert unit_value(unit) * level == power  # V = S at the largest refinement
            assert Fraction(float(unit)) == unit_value(unit)


@pytest.mark.parametrize("name", ["tern", "dith8"])
def test_smallest_refinement_is_just_above_half_the_scale(name: str) -> None:
    unit = scale.unit(FORMATS[name], 2, 120, 0)
    assert unit is not None
    assert unit_value(unit) * (128 if name == "dith8" else 1) == Fraction(257, 512)


def test_empty_block_has_the_scale_of_zero() -> None:
    assert scale_byte(FORMATS["nat8"], 2, np.zeros(0, np.float32), FloatType.FLOAT32) == scale.SCALE_ZERO


@pytest.mark.parametrize("float_type", [FloatType.FLOAT16, FloatType.BFLOAT16], ids=named)
def test_widening_is_exact_for_every_16_bit_value(float_type: FloatType) -> None:
    """Against the definition of a binary interchange format (IEEE 754, section 3.4)."""
    t = SHAPES[float_type].mantissa_bits
    exponent_bits = 15 - t
    bits = np.arange(1 << 16)
    exponent, mantissa = bits >> t & ((1 << exponent_bits) - 1), bits & ((1 << t) - 1)
    finite = exponent < (1 << exponent_bits) - 1
    significand = np.where(exponent > 0, mantissa + (1 << t), mantissa).astype(np.float64)
    magnitude = np.ldexp(significand, np.maximum(exponent, 1) - (1 << (exponent_bits - 1)) + 1 - t)
    got = scale.widen(bits.astype(np.uint16).view(float_type.dtype), float_type)
    assert (np.abs(got[finite]) == magnitude[finite]).all()
    assert (np.signbit(got) == (bits >> 15 == 1))[finite].all()
    assert (np.isnan(got) == (mantissa > 0))[~finite].all()
    assert np.isinf(got[~finite & (mantissa == 0)]).all()


def test_array_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="float32 values come as float32, not float64"):
        scale.widen(np.zeros(1), FloatType.FLOAT32)


def test_scale_bytes_reach_from_float32_subnormals_to_beyond_its_largest_value() -> None:
    nat8, dith8 = FORMATS["nat8"], FORMATS["dith8"]
    assert LOWEST - (nat8.levels(1) - 1) == FloatType.FLOAT32.value
    largest = SHAPES[FloatType.FLOAT32].largest
    assert scale_byte(nat8, 1, floats([largest], FloatType.FLOAT32), FloatType.FLOAT32) == 128 + scale.SCALE_BIAS
    assert scale_byte(dith8, 1, floats([largest], FloatType.FLOAT32), FloatType.FLOAT32) == scale.SCALE_BYTE_MAX


@pytest.mark.parametrize("fmt", ALL_FORMATS, ids=named)
def test_float64_that_no_scale_reaches_is_non_finite(fmt: JobFormat) -> None:
    top = Fraction(127, 128) * Fraction(2) ** 129 if fmt.up is Encoding.DITH8 else Fraction(2) ** 129
    beyond = math.nextafter(float(top), math.inf)
    assert scale_byte(fmt, 1, np.array([float(top)]), FloatType.FLOAT64) == scale.SCALE_BYTE_MAX
    assert scale_byte(fmt, 1, np.array([beyond]), FloatType.FLOAT64) == scale.SCALE_NONFINITE
