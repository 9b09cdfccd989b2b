"""Zero, -0.0, subnormals, the largest floats, infinity and NaN: what each becomes, in every type and format."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.exact import (
    ALL_FORMATS,
    SHAPES,
    agreed_unit,
    all_reduce,
    floats,
    fractions,
    named,
    nearest,
    smallest,
    spelled,
    unit_for,
    unit_value,
)

from inagg_wire import codec, reencode, scale
from inagg_wire.formats import FORMATS, Family, JobFormat
from inagg_wire.layout import LANE_BITS, Encoding
from inagg_wire.scale import Floats, FloatType

by_format = pytest.mark.parametrize("fmt", ALL_FORMATS, ids=named)
by_type = pytest.mark.parametrize("float_type", FloatType, ids=named)
by_workers = pytest.mark.parametrize("workers", [1, 2, 3, 32])

ONES = 0xFFFFFFFF


def block(float_type: FloatType, *values: float) -> Floats:
    """Values that may be special, as a block of eight lanes."""
    filled = np.array([*values, *[0.0] * (8 - len(values))])
    if float_type is FloatType.BFLOAT16:
        return (filled.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return filled.astype(float_type.dtype)


def raw(float_type: FloatType, *bits: int) -> Floats:
    """Values by their bits."""
    unsigned: Any = {2: np.uint16, 4: np.uint32, 8: np.uint64}[float_type.dtype.itemsize]
    return np.array(bits, unsigned).view(float_type.dtype)


def as_float64(values: Floats, float_type: FloatType) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return scale.widen(values, float_type)


# --- zero -----------------------------------------------------------------------------------------------


@by_workers
@by_type
@by_format
def test_blocks_of_zeros_of_both_signs_come_back_as_plus_zero(
    fmt: JobFormat, float_type: FloatType, workers: int
) -> None:
    outcome = all_reduce(fmt, [block(float_type, 0.0, -0.0)] * workers, float_type)
    assert outcome.unit == scale.ZERO
    assert outcome.decoded.tobytes() == bytes(outcome.decoded.nbytes)


@by_type
@by_format
def test_zeros_of_both_signs_have_code_zero_whatever_the_noise(fmt: JobFormat, float_type: FloatType) -> None:
    values = block(float_type, 0.0, -0.0)
    for unit in (scale.ZERO, unit_for(fmt, 2, Fraction(1), float_type)):
        for noise in (0, ONES):
            codes = codec.encode(values, float_type, fmt, 2, unit, spelled(np.full(8, noise, np.uint32)))
            assert codes.tolist() == [0] * 8


@by_format
def test_negative_value_that_rounds_to_zero_has_code_zero(fmt: JobFormat) -> None:
    unit = unit_for(fmt, 2, Fraction(1), FloatType.FLOAT64)
    zero = codec.encode(np.array([-1e-30]), FloatType.FLOAT64, fmt, 2, unit, spelled(np.zeros(1, np.uint32)))
    assert zero.tolist() == [0]


@by_format
def test_values_that_are_not_zero_under_a_scale_of_zero_are_an_error(fmt: JobFormat) -> None:
    with pytest.raises(ValueError, match="scale is zero"):
        codec.encode(np.ones(8), FloatType.FLOAT64, fmt, 2, scale.ZERO, spelled())


@by_type
@by_format
def test_result_that_cancels_is_plus_zero(fmt: JobFormat, float_type: FloatType) -> None:
    outcome = all_reduce(fmt, [block(float_type, 1.0), block(float_type, -1.0)], float_type)
    if fmt.family is Family.NATURAL or fmt.up is Encoding.FIX32 or fmt.up is Encoding.TERN:
        assert (outcome.result == 0).all()  # 1.0 is the top level, so nothing is random
    assert not np.signbit(as_float64(outcome.decoded, float_type))[outcome.result == 0].any()


# --- subnormals -----------------------------------------------------------------------------------------


@by_workers
@by_type
@by_format
def test_blocks_of_subnormals_are_summed_within_their_unit(fmt: JobFormat, float_type: FloatType, workers: int) -> None:
    """The smallest subnormal, and the largest, alone in a block; float64's are below every unit, and come back as zero
    or one unit."""
    tiny = smallest(float_type)
    for x in (tiny, SHAPES[float_type].smallest_normal - tiny):
        blocks = [floats([x, -x, *[Fraction(0)] * 6], float_type)] * workers
        outcome = all_reduce(fmt, blocks, float_type)
        assert outcome.unit is not None
        unit, shift = unit_value(outcome.unit), fmt.result_shift(workers)
        got = fractions(outcome.decoded, float_type)
        most = 2 * workers * x if fmt.family is Family.NATURAL else Fraction(0)
        bound = workers * max(unit, x) + max(unit * (1 << shift), most) + tiny
        assert abs(got[0] - workers * x) <= bound
        assert abs(got[1] + workers * x) <= bound
        assert got[2:] == [0] * 6


@pytest.mark.parametrize("float_type", [FloatType.FLOAT16, FloatType.BFLOAT16, FloatType.FLOAT32], ids=named)
@pytest.mark.parametrize("name", ["nat8", "nat4"])
def test_smallest_subnormal_of_one_worker_comes_back_exactly(name: str, float_type: FloatType) -> None:
    """It is level 1 of the lowest scale that the type can have."""
    values = floats([smallest(float_type), -smallest(float_type), *[Fraction(0)] * 6], float_type)
    fmt = FORMATS[name]
    unit = unit_for(fmt, 1, smallest(float_type), float_type)
    if unit_value(unit) == smallest(float_type):
        assert all_reduce(fmt, [values], float_type).decoded.tobytes() == values.tobytes()
    else:  # bfloat16 and float32 with nat4's seven levels: the scale byte ends at 2^-119, so the unit at 2^-125
        assert name == "nat4"
        assert unit_value(unit) == Fraction(2) ** -125


@by_workers
@pytest.mark.parametrize("name", ["nat8", "nat4", "nat4-nat8"])
@pytest.mark.parametrize("float_type", FloatType, ids=named)
def test_every_natural_result_is_exact_in_every_type(name: str, float_type: FloatType, workers: int) -> None:
    """From the lowest unit that the type can get: no level is rounded away as a subnormal."""
    fmt = FORMATS[name]
    lowest = max(smallest(float_type), Fraction(2) ** -200)
    unit = unit_for(fmt, workers, lowest, float_type)
    codes = np.arange(fmt.result_levels(workers) + 1, dtype=np.uint32)
    integers, _ = reencode.integers(fmt.down(workers), codes, fmt.result_levels(workers))
    exact = [int(i) * unit_value(unit) * (1 << fmt.result_shift(workers)) for i in integers]
    assert fractions(codec.decode(codes, float_type, fmt, workers, unit), float_type) == exact


# --- the largest ----------------------------------------------------------------------------------------


@by_workers
@by_type
@by_format
def test_largest_values_encode_and_sum_to_within_their_error_or_to_infinity(
    fmt: JobFormat, float_type: FloatType, workers: int
) -> None:
    """float64's largest is beyond every scale, and so the block is NaN, as for infinity."""
    largest = float(SHAPES[float_type].largest)
    outcome = all_reduce(fmt, [block(float_type, largest, -largest)] * workers, float_type)
    got = as_float64(outcome.decoded, float_type)
    if float_type is FloatType.FLOAT64:
        assert outcome.unit is None
        assert np.isnan(got).all()
        return
    assert outcome.unit is not None
    for lane, sign in ((0, 1), (1, -1)):
        integer = int(outcome.result[lane]) * sign
        assert integer > 0
        want = nearest(integer * unit_value(outcome.unit), float_type)
        assert got[lane] * sign == float(want)
        if workers > 2:
            assert math.isinf(want)
    assert not got[2:].any()


@by_format
def test_largest_float64_that_a_scale_reaches_is_summed(fmt: JobFormat) -> None:
    top = float(Fraction(2) ** 129 * (Fraction(127, 128) if fmt.up is Encoding.DITH8 else 1))
    outcome = all_reduce(fmt, [block(FloatType.FLOAT64, top, -top)] * 3, FloatType.FLOAT64)
    assert outcome.unit is not None
    assert np.isfinite(outcome.decoded).all()
    assert abs(outcome.decoded[0] - 3 * top) <= 3 * top
    assert (np.abs(outcome.sent[0][:2]) == fmt.top(3)).all()


@by_format
def test_value_beyond_the_top_level_is_an_error_and_not_cut_off(fmt: JobFormat) -> None:
    unit = unit_for(fmt, 2, Fraction(1), FloatType.FLOAT64)
    top = float(unit_value(unit) * fmt.top(2))
    noise = spelled(np.zeros(1, np.uint32))
    codec.encode(np.array([top]), FloatType.FLOAT64, fmt, 2, unit, noise)
    for beyond in (math.nextafter(top, math.inf), -math.nextafter(top, math.inf), math.inf, -math.inf, math.nan):
        with pytest.raises(ValueError, match="beyond the top level"):
            codec.encode(np.array([beyond]), FloatType.FLOAT64, fmt, 2, unit, noise)


# --- infinity and NaN -----------------------------------------------------------------------------------


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan], ids=str)
@by_type
@by_format
def test_block_with_a_non_finite_value_is_nan_for_all_workers(
    fmt: JobFormat, float_type: FloatType, special: float
) -> None:
    blocks = [block(float_type, 1.0, 2.0), block(float_type, 1.0, special), block(float_type)]
    assert scale.scale_byte(fmt, 3, blocks[1], float_type) == scale.SCALE_NONFINITE
    assert agreed_unit(fmt, 3, blocks, float_type) is None
    assert np.isnan(as_float64(all_reduce(fmt, blocks, float_type).decoded, float_type)).all()


SIGNALLING = {
    FloatType.FLOAT16: (0x7C01, 0xFC01),
    FloatType.BFLOAT16: (0x7F81, 0xFF81),
    FloatType.FLOAT32: (0x7F800001, 0xFF800001),
    FloatType.FLOAT64: (0x7FF0000000000001, 0xFFF0000000000001),
}


@by_type
def test_signalling_nan_is_a_nan_like_any_other_and_warns_of_nothing(float_type: FloatType) -> None:
    for bits in SIGNALLING[float_type]:
        values = raw(float_type, bits)
        assert np.isnan(scale.widen(values, float_type)).all()
        assert scale.scale_byte(FORMATS["nat8"], 2, values, float_type) == scale.SCALE_NONFINITE


@by_type
def test_block_without_a_scale_decodes_to_quiet_nan(float_type: FloatType) -> None:
    decoded = codec.decode(np.arange(8, dtype=np.uint32), float_type, FORMATS["nat8"], 2, None)
    assert decoded.dtype == float_type.dtype
    quiet = {FloatType.FLOAT16: 0x7E00, FloatType.BFLOAT16: 0x7FC0, FloatType.FLOAT32: 0x7FC00000}
    assert np.isnan(as_float64(decoded, float_type)).all()
    if float_type in quiet:
        assert decoded.tobytes() == raw(float_type, *[quiet[float_type]] * 8).tobytes()


# --- the last rounding ----------------------------------------------------------------------------------


@by_type
@given(st.integers(-(1 << 30), 1 << 30), st.integers(1, 249))
@settings(max_examples=150)
def test_fix32_results_are_rounded_once_to_nearest_even(float_type: FloatType, total: int, scale_byte: int) -> None:
    """Any sum at any scale, against rounding in fractions: no double rounding, subnormals and overflow included."""
    fmt = FORMATS["fix32"]
    unit = scale.unit(fmt, 1, scale_byte)
    assert unit is not None
    decoded = codec.decode(np.array([total & ONES], np.uint32), float_type, fmt, 1, unit)
    assert as_float64(decoded, float_type).tolist() == [float(nearest(total * unit_value(unit), float_type))]


def test_bfloat16_results_that_a_second_rounding_would_spoil_are_right() -> None:
    """A tie of bfloat16 plus or minus one in the 31st bit: rounding to float32 first would make it an exact tie."""
    fmt = FORMATS["fix32"]
    unit = scale.unit(fmt, 1, scale.SCALE_BIAS)
    assert unit is not None
    totals = [
        sign * ((mantissa << 22) + (1 << 21) + off)
        for mantissa in (128, 129, 254, 255)
        for off in (-1, 0, 1)
        for sign in (1, -1)
    ]
    totals = [t for t in totals if abs(t) <= 1 << 30]
    codes = (np.array(totals) & ONES).astype(np.uint32)
    decoded = codec.decode(codes, FloatType.BFLOAT16, fmt, 1, unit)
    want = [nearest(t * unit_value(unit), FloatType.BFLOAT16) for t in totals]
    assert fractions(decoded, FloatType.BFLOAT16) == want


@given(st.integers(0, (1 << 64) - 1))
@settings(max_examples=300)
def test_rounding_of_any_finite_float64_to_bfloat16_is_to_nearest_even(bits: int) -> None:
    value = np.array([bits], np.uint64).view(np.float64)
    if np.isfinite(value).all():
        check_bfloat16(value)


@pytest.mark.parametrize("toward", [-math.inf, 0.0, math.inf], ids=str)
def test_rounding_to_bfloat16_is_right_at_and_next_to_every_tie(toward: float) -> None:
    """All values halfway between two neighbours, and the float64 on either side of each: subnormals, and the point from
    which the largest value becomes infinity, included."""
    values = scale.widen(np.arange(0x7F80, dtype=np.uint16), FloatType.BFLOAT16)
    ties = (values + np.append(values[1:], 2.0**128)) / 2
    at = ties if toward == 0 else np.nextafter(ties, toward)
    odd = np.arange(0x7F80) % 2  # of an odd value the neighbour above is the even one
    want = np.arange(0x7F80) + {-math.inf: 0 * odd, 0.0: odd, math.inf: 0 * odd + 1}[toward]
    assert (codec._bfloat16_bits(at) == want).all()
    assert (codec._bfloat16_bits(-at) == want + 0x8000).all()


def check_bfloat16(value: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    got = scale.widen(codec._bfloat16_bits(value), FloatType.BFLOAT16)
    assert got.tolist() == [float(nearest(Fraction(float(value[0])), FloatType.BFLOAT16))]


@pytest.mark.parametrize("float_type", [FloatType.FLOAT32, FloatType.FLOAT64], ids=named)
@pytest.mark.parametrize("name", ["tern", "dith8", "dith8-exact"])
def test_results_of_refined_formats_are_exact_in_the_wide_types(name: str, float_type: FloatType) -> None:
    """At the lowest scale, where the units are smallest, and the highest without overflow, for every refinement."""
    fmt = FORMATS[name]
    for workers, byte, refinement in ((w, b, q) for w in (1, 32) for b in (1, 120, 240) for q in (0, 1, 254, 255)):
        unit = scale.unit(fmt, workers, byte, refinement)
        assert unit is not None
        most = fmt.result_levels(workers)
        codes = (np.arange(-most, most + 1) & ((1 << LANE_BITS[fmt.down(workers)]) - 1)).astype(np.uint32)
        exact = [v * unit_value(unit) * (1 << fmt.result_shift(workers)) for v in range(-most, most + 1)]
        assert fractions(codec.decode(codes, float_type, fmt, workers, unit), float_type) == exact
