"""Scale bytes: those of the reference, from one pass over the values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.host.codec.reference import (
    CONTRIBUTIONS,
    Bytes,
    blocks_of,
    make_job,
    narrowed,
    random_bits,
    random_values,
)
from tests.vectors.load import Vector, label, vectors

from inagg_host.codec import ALL_GOOD, Job
from inagg_host.codec.scales import refine_bytes
from inagg_testbed.kernel_calls import Call
from inagg_wire import scale
from inagg_wire.scale import SCALE_NONFINITE, SCALE_ZERO, Floats, FloatType

every_format = pytest.mark.parametrize("name", CONTRIBUTIONS)
every_type = pytest.mark.parametrize("float_type", list(FloatType), ids=lambda t: t.name.lower())


def both_rounds(job: Job, values: Floats, others: Bytes | int = 0) -> tuple[Bytes, Bytes]:
    """One's own bytes, with ``others`` the largest byte of all other workers."""
    magnitudes, own = Call(job, values).scale(0, job.blocks(values.size))
    refinements = np.zeros_like(own)
    agreed = np.maximum(own, np.asarray(others, np.uint8))
    if job.refined:
        assert refine_bytes(magnitudes, agreed, job.dith8, job.lowest_scale, refinements) == ALL_GOOD
    return own, refinements


def assert_as_reference(job: Job, values: Floats, others: int = 0) -> None:
    own, refinements = both_rounds(job, values, others)
    for i, block in enumerate(blocks_of(job, values)):
        want = scale.scale_byte(job.format, job.workers, block, job.float_type)
        assert own[i] == want
        if job.refined:
            agreed = max(want, others)
            assert refinements[i] == scale.refine_byte(job.format, block, job.float_type, want, agreed)


@every_format
@every_type
def test_any_bits(name: str, float_type: FloatType) -> None:
    rng = np.random.default_rng(7)
    for workers in (1, 3, 32):
        assert_as_reference(make_job(name, float_type, workers, 32), random_bits(rng, 32 * 50 + 1, float_type))
        # One value a block, of any exponent: the largest of many is always a large one.
        values = random_bits(rng, 32 * 300, float_type)
        values.reshape(-1, 32)[:, 1:] = 0
        for others in (0, 100, 200, 255):
            assert_as_reference(make_job(name, float_type, workers, 32), values, others)


@every_format
@every_type
def test_neighbours_of_every_step(name: str, float_type: FloatType) -> None:
    """Powers of two, 127/128 of them, and what a refinement byte stands for; and the next floats on both sides."""
    job = make_job(name, float_type, lanes=32)
    steps = np.concatenate([[1.0, 127 / 128], np.arange(257, 513) / 512, np.arange(257, 513) / 512 * 127 / 128])
    for log2 in (0, 9, -13, -20, -100, -118, -119, -125, 127, 128):
        with np.errstate(under="ignore"):
            one_each = narrowed(np.ldexp(steps, log2), float_type)
        values = np.zeros((3 * one_each.size, job.lanes), float_type.dtype)
        raw = values.view(f"u{values.itemsize}")
        raw[:, 5] = np.repeat(one_each.view(raw.dtype), 3)
        raw[::3, 5] += 1
        raw[1::3, 5] -= raw[1::3, 5] > 0
        assert_as_reference(job, values.reshape(-1))


@given(data=st.data())
@settings(max_examples=60)
def test_any_blocks(data: st.DataObject) -> None:
    float_type = data.draw(st.sampled_from(FloatType))
    job = make_job(data.draw(st.sampled_from(CONTRIBUTIONS)), float_type, data.draw(st.integers(1, 32)), 32)
    size = float_type.dtype.itemsize
    raw = data.draw(st.binary(max_size=100 * size).filter(lambda b: len(b) % size == 0))
    assert_as_reference(job, np.frombuffer(bytearray(raw), float_type.dtype), data.draw(st.integers(0, 255)))


@every_type
def test_one_nan_or_infinity_makes_the_block_non_finite(float_type: FloatType) -> None:
    job = make_job("nat8", float_type, lanes=200)
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        for lane in (0, 77, 199):
            values = random_values(np.random.default_rng(8), 3 * job.lanes, float_type, 0.0)
            values[job.lanes + lane] = narrowed(np.array([value]), float_type)[0]
            own, _ = both_rounds(job, values)
            assert own[1] == SCALE_NONFINITE
            assert SCALE_ZERO < own[0] < SCALE_NONFINITE
            assert SCALE_ZERO < own[2] < SCALE_NONFINITE


@pytest.mark.parametrize("name", ["tern", "dith8"])
def test_an_agreed_byte_below_ones_own_is_found(name: str) -> None:
    job = make_job(name, FloatType.FLOAT32)
    values = narrowed(np.full(5 * job.lanes, 0.75), FloatType.FLOAT32)
    magnitudes, own = Call(job, values).scale(0, 5)
    agreed = own.copy()
    agreed[3] -= 1
    assert refine_bytes(magnitudes, agreed, job.dith8, job.lowest_scale, np.zeros(5, np.uint8)) == 3


@pytest.mark.parametrize("vector", vectors("scales", "rounds"), ids=label)
def test_golden_rounds(vector: Vector) -> None:
    float_type = FloatType[vector["float_type"].upper()]
    job = make_job(vector["format"], float_type, vector["workers"], lanes=64)
    for rank, listed in enumerate(vector["values"]):
        values = np.array([int(v, 16) for v in listed], f"u{float_type.dtype.itemsize}").view(float_type.dtype)
        own, refinements = both_rounds(job, values, vector["agreed"])
        assert own.tolist() == [vector["own"][rank]]
        if vector["refinements"] is not None:
            assert refinements.tolist() == [vector["refinements"][rank]]
