"""Lanes that noise word 0 does not decide: provoked, since they come once in 2**32."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.host.codec.reference import (
    SEED,
    assert_encodes_as_reference,
    k0_with_word,
    make_job,
    number_with_key,
)
from tests.vectors.load import Vector, label, vectors

from inagg_host.codec import encoder_loops, exact
from inagg_wire import codec, noise, noise_keys, scale
from inagg_wire.scale import Floats, FloatType, Unit

ONES = 0xFFFFFFFF


def test_a_key_made_to_order() -> None:
    """The tests' own inverse of the hashes."""
    for k0, k1 in ((0, 0), (0x12345678, 0x9ABCDEF0), (ONES, ONES)):
        assert noise_keys.block_key(SEED, 3, number_with_key(SEED, 3, k0, k1)) == (k0, k1)
        for lane, word in ((0, 0), (5, 0xDEADBEEF), (1447, ONES)):
            made = k0_with_word(word, lane, k1)
            assert noise.host_words(noise_keys.BlockKey(made, k1), lane + 1)[lane] == word


def tie_values(float_type: FloatType, unit: Unit, p32: int, rest: bool, level: int) -> Floats | None:
    """One value with the level ``level`` (of a natural format: 0 or 1) below it and these top 32 bits of p, and bits
    below those or none; None if the type has no such value."""
    step = Fraction(unit.mantissa) * Fraction(2) ** unit.exponent
    low, high = (step * (level + Fraction(p32 + i, 1 << 32)) for i in (0, 1))
    middle = float(low + (high - low) * Fraction(5, 8)) if rest else float(low)
    if float_type is FloatType.BFLOAT16:
        array = (np.array([middle], np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    else:
        array = np.array([middle]).astype(float_type.dtype)
    got = Fraction(float(scale.widen(array, float_type)[0]))
    fits = low < got < high if rest else got == low
    return array if fits else None


def tie_cases() -> list[tuple[str, FloatType, int, bool, int]]:
    """(format, type, p32, rest, level). Below the unit float32 has 24 bits of p, so p must be small to have a rest."""
    cases = []
    for name in ("nat8", "nat4", "tern", "dith8", "fix32"):
        below_the_first = (0x000000A7, 0x0000F731, 0x87654321, 0, 1, ONES)
        between = (0xA5A5A5A5,) if name != "tern" else ()
        for p32, level in [(p, 0) for p in below_the_first] + [(p, 1) for p in between]:
            for float_type in FloatType:
                cases += [(name, float_type, p32, rest, level) for rest in (True, False)]
    return cases


@pytest.mark.parametrize("name", ["nat8", "nat4", "tern", "dith8", "fix32"])
def test_ties_in_some_lanes(name: str) -> None:
    """Up and not up, with bits below the tie and without, in all float types that can have one."""
    found = 0
    for case, float_type, p32, rest, level in tie_cases():
        job = make_job(case, float_type, lanes=32)
        scale_byte, refinement = 125, 100 if job.refined else 0
        unit = scale.unit(job.format, job.workers, scale_byte, refinement)
        if case != name or unit is None:
            continue
        value = tie_values(float_type, unit, p32, rest, level)
        if value is None:
            continue
        found += 1
        for k1 in range(6):
            lane = 3 + 2 * k1
            number = number_with_key(SEED, job.rank, k0_with_word(p32 ^ ONES, lane, k1), k1)
            values = np.repeat(value, job.lanes)
            bits = values.view(f"u{values.itemsize}")
            bits[1::2] ^= 1 << (8 * values.itemsize - 1)  # its negative
            agreed = np.array([scale_byte], np.uint8), np.array([refinement], np.uint8)
            assert_encodes_as_reference(job, values, *agreed, first_number=number)
    assert found >= 8


@pytest.mark.parametrize("lane", [0, 707, 1440])
def test_a_tie_among_the_few_values_below_the_unit(lane: int) -> None:
    """Of float32 and nat8 those are encoded for themselves."""
    job, scale_byte, p32 = make_job("nat8", FloatType.FLOAT32, lanes=1448), 125, 0x0000F731
    unit = scale.unit(job.format, job.workers, scale_byte, 0)
    assert unit is not None
    for rest in (True, False):
        value = tie_values(FloatType.FLOAT32, unit, p32, rest, 0)
        assert value is not None
        values = np.full(job.lanes, float(2.0**unit.exponent) * 77, np.float32)
        values[lane] = value[0]
        for k1 in range(6):
            number = number_with_key(SEED, job.rank, k0_with_word(p32 ^ ONES, lane, k1), k1)
            agreed = np.array([scale_byte], np.uint8), np.zeros(1, np.uint8)
            assert_encodes_as_reference(job, values, *agreed, first_number=number)


def test_a_tie_in_one_block_leaves_the_others_as_they_are() -> None:
    job = make_job("nat8", FloatType.FLOAT64, lanes=64)
    values = np.full(3 * job.lanes, 1.0 + 2.0**-52)
    values[0::7] = 0.3
    agreed = np.full(3, 121, np.uint8), np.zeros(3, np.uint8)
    number = number_with_key(SEED, job.rank, k0_with_word(ONES, 9, 77), 77)  # p32 = 0, and a bit below
    assert_encodes_as_reference(job, values, *agreed, first_number=number - 1)


TIES = [v for v in vectors("codes") if "tie_lanes" in v]


@pytest.mark.parametrize("vector", TIES, ids=label)
def test_golden_ties(vector: Vector) -> None:
    float_type = FloatType[vector["float_type"].upper()]
    job = make_job(vector["format"], float_type, vector["workers"], lanes=64)
    unit = Unit(**vector["unit"])
    first = scale.unit(job.format, job.workers, scale.SCALE_BIAS)
    assert first is not None
    scale_byte = unit.exponent - first.exponent + scale.SCALE_BIAS
    refinement = unit.mantissa - first.mantissa
    assert scale.unit(job.format, job.workers, scale_byte, refinement) == unit
    size = float_type.dtype.itemsize
    values = np.array([int(v, 16) for v in vector["values"]], f"u{size}").view(float_type.dtype)
    number = number_with_key(SEED, job.rank, *(int(vector["key"][k], 16) for k in ("k0", "k1")))
    agreed = np.array([scale_byte], np.uint8), np.array([refinement], np.uint8)
    assert_encodes_as_reference(job, values, *agreed, first_number=number)


def test_dividing_by_a_unit_of_ten_bits_is_exact() -> None:
    """`steps` for multiples of the unit and of 2**-32 of it, the next floats on both sides, and any others."""
    rng = np.random.default_rng(0)
    # 1 / 491 and 1 / 509 are among those that a plain division rounds so that some multiple comes out too small.
    for mantissa in (257, 384, 400, 491, 509, 511, 512):
        exponent = -9
        unit = Fraction(mantissa) * Fraction(2) ** exponent
        whole = rng.integers(0, 128, 60)
        parts = [Fraction(int(w)) for w in whole] + [w + Fraction(int(rng.integers(1 << 32)), 1 << 32) for w in whole]
        exact_values = [float(unit * p) for p in parts if p <= 127] + list(rng.uniform(0, float(unit) * 127, 100))
        for x in exact_values:
            for near in (x, np.nextafter(x, 0), np.nextafter(x, np.inf), float(np.float32(x))):
                y = Fraction(float(near)) / unit
                inverse = encoder_loops.inverse_of(mantissa)
                level, p32 = encoder_loops.steps(float(near), 2.0 ** (32 - exponent), inverse)
                assert (level, p32) == (int(y), int((y - int(y)) * 2**32))


words = st.integers(0, ONES)


@given(st.integers(0, (1 << 53) - 1), st.integers(-9, 1100), st.integers(1, 512), words, words)
@example(1, 40, 1, 0, 0)
def test_the_scalar_path_is_the_specification(m: int, q: int, divisor: int, k0: int, k1: int) -> None:
    """`carries` for any p = m * 2**-q / divisor, and any noise."""
    p = Fraction(m) / divisor / (Fraction(2) ** q)
    assert_carries(m, q, divisor, p - int(p), 0, k0, k1)


@given(st.integers(0, 1447), words, st.integers(0, 2**21 - 1), st.integers(0, 9))
def test_the_scalar_path_through_two_words(lane: int, k1: int, rest: int, leading: int) -> None:
    """p made so that word 0 ties and word 1 as well: p has 53 bits, so word 0 must be ones but for the last few."""
    k0 = k0_with_word(ONES ^ leading, lane, k1)
    word1 = int(noise.host_words(noise_keys.BlockKey(k0, k1), lane + 1, 1)[lane])
    m = (leading << 32 | ONES ^ word1) << 17 | rest & 0x1FFFF
    assume(m < 1 << 53)
    p = Fraction(m, 1 << 81)
    assert_carries(m, 81, 1, p, lane, k0, k1)


def assert_carries(m: int, q: int, divisor: int, p: Fraction, lane: int, k0: int, k1: int) -> None:
    key = noise_keys.BlockKey(k0, k1)
    want = codec.carries(p, lambda i: int(noise.host_words(key, lane + 1, i)[lane]))
    assert exact.carries(np.uint64(m), q, divisor, lane, np.uint32(k0), np.uint32(k1)) == want
