"""Contributions: bit for bit those of the reference codec."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.host.codec.reference import (
    CONTRIBUTIONS,
    SEED,
    UNTOUCHED,
    WORKERS,
    agree,
    assert_encodes_as_reference,
    encode_all,
    make_job,
    narrowed,
    random_bits,
    random_values,
)

from inagg_host.codec import ALL_GOOD
from inagg_testbed.kernel_calls import Call
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.scale import SCALE_BYTE_MAX, FloatType, widen

every_format = pytest.mark.parametrize("name", CONTRIBUTIONS)
every_type = pytest.mark.parametrize("float_type", list(FloatType), ids=lambda t: t.name.lower())

LARGEST_LOG2 = {FloatType.FLOAT16: 15.9, FloatType.BFLOAT16: 127.9, FloatType.FLOAT32: 127.9, FloatType.FLOAT64: 128.9}


@every_format
@every_type
@pytest.mark.parametrize("workers", WORKERS)
def test_random_blocks(name: str, float_type: FloatType, workers: int) -> None:
    """Of all magnitudes, several blocks and a partial one, of a lane count that no vector length divides."""
    job = make_job(name, float_type, workers, lanes=104)
    rng = np.random.default_rng(workers)
    for largest in (0.0, -20.5, -90.0, -148.0, LARGEST_LOG2[float_type]):
        values = random_values(rng, 3 * job.lanes + 37, float_type, largest)
        assert_encodes_as_reference(job, values, *agree(job, values), first_number=int(rng.integers(1 << 62)))


@every_format
@every_type
def test_a_scale_that_others_set(name: str, float_type: FloatType) -> None:
    """Agreed bytes are a maximum over workers: one's own values may lie far below, at any refinement."""
    job = make_job(name, float_type, lanes=40)
    rng = np.random.default_rng(1)
    values = random_values(rng, 60 * job.lanes, float_type, 0.0)
    own, _ = agree(job, values)
    scales = np.maximum(own, rng.integers(own.max() + 1, SCALE_BYTE_MAX + 1, own.size)).astype(np.uint8)
    assert_encodes_as_reference(job, values, scales, rng.integers(0, 256, own.size).astype(np.uint8))


@every_format
@every_type
def test_window_edges(name: str, float_type: FloatType) -> None:
    """The top level and its neighbours, each level's, and everything about the lowest."""
    job = make_job(name, float_type, workers=2, lanes=1024)
    levels = np.exp2(np.arange(-60.0, 1.0))
    exact = np.concatenate([levels, levels * (1 - 2.0**-24), levels * (1 + 2.0**-23), levels * 1.5, [0.0, -0.0]])
    if name == "dith8":
        exact = np.concatenate([exact, np.arange(1, 128) / 127])
    exact = np.concatenate([exact, -exact])
    exact = exact[np.abs(exact) <= 1]
    for log2 in (0, -10, -100, -130):
        with np.errstate(under="ignore"):
            values = narrowed(np.ldexp(exact, log2), float_type)
        if widen(values, float_type).any():
            assert_encodes_as_reference(job, values, *agree(job, values))


@pytest.mark.parametrize("float_type", [FloatType.BFLOAT16, FloatType.FLOAT32], ids=lambda t: t.name.lower())
@every_format
def test_all_scale_bytes(name: str, float_type: FloatType) -> None:
    """A block of its own for each scale byte, subnormals in all of those where they count."""
    job = make_job(name, float_type, lanes=64)
    rng = np.random.default_rng(2)
    shifts = np.arange(-149.0, 128.0)
    values = np.concatenate([random_values(rng, job.lanes, float_type, log2) for log2 in shifts])
    assert_encodes_as_reference(job, values, *agree(job, values))


@given(data=st.data())
@settings(max_examples=150)
def test_any_bits(data: st.DataObject) -> None:
    """Non-finite blocks become zero codes, since their agreed byte is 255; so does any block with that byte."""
    name = data.draw(st.sampled_from(CONTRIBUTIONS))
    float_type = data.draw(st.sampled_from(FloatType))
    workers = data.draw(st.integers(1, 32))
    size = float_type.dtype.itemsize
    raw = data.draw(st.binary(min_size=size, max_size=48 * size).filter(lambda b: len(b) % size == 0))
    job = make_job(name, float_type, workers, lanes=32, seed=data.draw(st.integers(0, 2**32 - 1)))
    values = np.frombuffer(bytearray(raw), float_type.dtype)
    scales, refinements = agree(job, values)
    up = data.draw(st.integers(0, 2))  # others' scales are larger
    scales = np.minimum(scales.astype(np.int64) + up, 255).astype(np.uint8)
    refinements[:] = 255 if up else refinements
    assert_encodes_as_reference(job, values, scales, refinements, data.draw(st.integers(0, 2**63 - 100)))


@every_format
@every_type
def test_no_unit_no_codes(name: str, float_type: FloatType) -> None:
    job = make_job(name, float_type)
    values = random_bits(np.random.default_rng(3), 5 * job.lanes, float_type)
    bad, datagrams = encode_all(job, values, np.array([250, 251, 252, 254, 255], np.uint8), np.zeros(5, np.uint8))
    assert bad == ALL_GOOD
    assert not datagrams[:, HEADER_BYTES:].any()


@every_format
@every_type
@pytest.mark.parametrize("value", [2.0**15, np.inf, -np.inf, np.nan])
def test_values_beyond_the_agreed_scale_are_found(name: str, float_type: FloatType, value: float) -> None:
    """In the first such block; by whatever amount, in any lane, and for values that are not finite too."""
    job = make_job(name, float_type, lanes=72)
    values = narrowed(np.full(6 * job.lanes - 3, 2.0**14), float_type)
    scales, refinements = agree(job, values)
    for lane in (3 * job.lanes, 4 * job.lanes - 1, 5 * job.lanes + 5):
        beyond = values.copy()
        beyond[lane] = narrowed(np.array([value]), float_type)[0]
        bad, datagrams = encode_all(job, beyond, scales, refinements)
        assert bad == lane // job.lanes
        assert (datagrams[bad + 1 :] == UNTOUCHED).all()


@every_format
@every_type
@pytest.mark.parametrize("largest", [12.0, 9.7, 14.99])
def test_one_step_of_the_agreed_bytes_less_is_found(name: str, float_type: FloatType, largest: float) -> None:
    job = make_job(name, float_type, workers=1)
    values = random_values(np.random.default_rng(4), job.lanes, float_type, 0.0)
    values[7] = narrowed(np.array([2.0**largest]), float_type)[0]
    scales, refinements = agree(job, values)
    assert encode_all(job, values, scales, refinements)[0] == ALL_GOOD
    if job.refined and refinements[0]:
        refinements -= 1
    else:
        scales, refinements = scales - 1, np.full(1, 255, np.uint8)
    assert encode_all(job, values, scales, refinements)[0] == 0


@every_format
@every_type
def test_a_zero_scale_wants_zeros(name: str, float_type: FloatType) -> None:
    job = make_job(name, float_type)
    values = np.zeros(3 * job.lanes, float_type.dtype)
    values.view(np.uint8)[float_type.dtype.itemsize - 1] = 0x80  # -0.0
    zero = np.zeros(3, np.uint8)
    bad, datagrams = encode_all(job, values, zero, zero)
    assert bad == ALL_GOOD
    assert not datagrams[:, HEADER_BYTES:].any()
    values.view(f"u{values.itemsize}")[2 * job.lanes + 7] = 1  # the least of all floats
    assert encode_all(job, values, zero, zero)[0] == 2


@every_format
def test_any_blocks_go_to_any_rows_of_an_unaligned_buffer(name: str) -> None:
    job = make_job(name, FloatType.FLOAT32, lanes=48)
    rng = np.random.default_rng(5)
    values = random_values(rng, 10 * job.lanes - 5, FloatType.FLOAT32, 0.0)
    scales, refinements = agree(job, values)
    _, want = encode_all(job, values, scales, refinements, first_number=100)
    memory = np.full(6 * job.datagram_bytes + 1, UNTOUCHED, np.uint8)
    datagrams = memory[1:].reshape(6, -1)
    blocks, rows = np.array([9, 0, 4, 5]), np.array([5, 0, 3, 1])
    call = Call(job, values, scales, refinements, ring=datagrams)
    for block, row in zip(blocks.tolist(), rows.tolist(), strict=True):
        assert call.encode(block, block + 100, 1, row) == ALL_GOOD
    assert (datagrams[rows] == want[blocks]).all()
    assert (datagrams[[2, 4]] == UNTOUCHED).all()
    assert memory[0] == UNTOUCHED


@pytest.mark.parametrize("float_type", [FloatType.FLOAT32, FloatType.BFLOAT16])
@pytest.mark.parametrize("lanes", [8, 32, 40, 64, 72])
def test_blocks_and_rests_that_end_within_a_vector(lanes: int, float_type: FloatType) -> None:
    """32 lanes are rounded at a time; what is left of a block or a tensor is none of its neighbours' business."""
    job = make_job("nat8", float_type, workers=2, lanes=lanes)
    for elements in range(1, 2 * lanes + 2):
        values = narrowed(np.random.default_rng(elements).normal(size=elements), float_type)
        assert_encodes_as_reference(job, values, *agree(job, values), elements)


def test_noise_depends_on_seed_worker_and_number() -> None:
    values = narrowed(np.full(1000, 0.7), FloatType.FLOAT32)
    seen = set()
    for seed, rank, number in ((SEED, 0, 0), (SEED, 1, 0), (SEED, 0, 1), (SEED + 1, 0, 0), (SEED, 0, 1 << 40)):
        job = make_job("nat8", FloatType.FLOAT32, workers=2, lanes=1000, seed=seed, rank=rank)
        scales, refinements = agree(job, values)
        assert_encodes_as_reference(job, values, scales, refinements, number)
        seen.add(encode_all(job, values, scales, refinements, number)[1].tobytes())
    assert len(seen) == 5
