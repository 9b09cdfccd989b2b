"""Results: bit for bit what the reference codec makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.host.codec.reference import (
    UNTOUCHED,
    WORKERS,
    bits,
    blocks_of,
    decode_all,
    expected_values,
    make_job,
    narrowed,
    random_result,
)
from tests.vectors.load import Vector, label, vectors

from inagg_host.codec.past_caches import STREAM_FROM
from inagg_testbed.kernel_calls import Call
from inagg_wire import payload, scale
from inagg_wire.formats import FORMATS
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.reencode import integers
from inagg_wire.scale import FloatType, Unit

every_format = pytest.mark.parametrize("name", FORMATS)
every_type = pytest.mark.parametrize("float_type", list(FloatType), ids=lambda t: t.name.lower())

ALL_SCALES = np.arange(256).astype(np.uint8)


@every_format
@every_type
@pytest.mark.parametrize("workers", WORKERS)
def test_every_scale_byte(name: str, float_type: FloatType, workers: int) -> None:
    """Zero, subnormal, infinite, NaN and all between, with any refinement; the last block is a partial one."""
    job = make_job(name, float_type, workers, lanes=72)
    rng = np.random.default_rng(workers)
    payloads = np.stack([random_result(rng, job) for _ in ALL_SCALES])
    refinements = rng.integers(0, 256, 256).astype(np.uint8)
    invalid, values = decode_all(job, payloads, 256 * job.lanes - 13, ALL_SCALES, refinements)
    count, down, top = 0, job.format.down(workers), job.format.result_levels(workers)
    for i, block in enumerate(blocks_of(job, values)):
        want = expected_values(job, payloads[i], block.size, int(ALL_SCALES[i]), int(refinements[i]))
        assert (bits(block) == bits(want)).all(), f"scale byte {i}"
        if 0 < ALL_SCALES[i] <= scale.SCALE_BYTE_MAX:
            count += integers(down, payload.unpack(down, payloads[i].tobytes())[: block.size], top)[1]
    assert invalid == count


@every_format
@every_type
def test_all_codes_of_a_byte_or_less(name: str, float_type: FloatType) -> None:
    job = make_job(name, float_type, workers=3, lanes=256)
    row = np.resize(np.arange(256).astype(np.uint8), job.result_bytes - HEADER_BYTES)
    scales = np.array([60, 110, 130], np.uint8)
    refinements = np.array([0, 101, 255], np.uint8)
    invalid, values = decode_all(job, np.stack([row] * 3), 3 * job.lanes, scales, refinements)
    down, top = job.format.down(job.workers), job.format.result_levels(job.workers)
    assert invalid == 3 * integers(down, payload.unpack(down, row.tobytes()), top)[1]
    for i, block in enumerate(blocks_of(job, values)):
        want = expected_values(job, row, job.lanes, int(scales[i]), int(refinements[i]))
        assert (bits(block) == bits(want)).all()


@pytest.mark.parametrize("float_type", [FloatType.FLOAT16, FloatType.BFLOAT16], ids=lambda t: t.name.lower())
def test_long_sums_are_rounded_once(float_type: FloatType) -> None:
    """fix32: sums beside the middle of two neighbours, by one part in 2**30, where rounding twice goes wrong."""
    job = make_job("fix32", float_type, workers=1, lanes=4096)
    mantissa_bits = 10 if float_type is FloatType.FLOAT16 else 7
    middle = (2 << mantissa_bits | 2 * np.arange(1024) + 1) << (28 - mantissa_bits)
    near = np.concatenate([middle - 1, middle, middle + 1, middle + 64])
    row = np.frombuffer(near.astype(">i4").tobytes(), np.uint8)
    for scale_byte in (118, 110, 100, 96, 135):  # float16: normal, subnormal, near infinity
        agreed = np.array([scale_byte], np.uint8)
        _, values = decode_all(job, row[None], job.lanes, agreed, agreed)
        assert (bits(values) == bits(expected_values(job, row, job.lanes, scale_byte, 0))).all()


@every_type
def test_any_rows_go_to_any_blocks(float_type: FloatType) -> None:
    job = make_job("nat8", float_type, lanes=48)
    rng = np.random.default_rng(6)
    payloads = np.stack([random_result(rng, job) for _ in range(5)])
    scales = np.array([120, 121, 122, 255, 0, 123], np.uint8)
    memory = np.full(5 * job.result_bytes + 1, UNTOUCHED, np.uint8)
    datagrams = memory[1:].reshape(5, -1)
    datagrams[:, HEADER_BYTES:] = payloads
    values = narrowed(np.full(6 * job.lanes - 7, 42.0), float_type)
    before = values.copy()
    rows, blocks = np.array([4, 0, 2]), np.array([5, 3, 1])
    Call(job, values, scales, data=datagrams, places=rows, numbers=blocks).decode(0, rows.size)
    parts, old = blocks_of(job, values), blocks_of(job, before)
    for row, block in zip(rows, blocks, strict=True):
        want = expected_values(job, payloads[row], parts[block].size, int(scales[block]), 0)
        assert (bits(parts[block]) == bits(want)).all()
    for untouched in (0, 2, 4):
        assert (bits(parts[untouched]) == bits(old[untouched])).all()


@every_format
@every_type
@pytest.mark.parametrize("divisor", [1, 3, 4])
def test_sums_past_the_caches_are_those_in_them(name: str, float_type: FloatType, divisor: int) -> None:
    """Of zero, subnormal, infinite and NaN blocks, wherever they begin in memory; the last one is short."""
    job = make_job(name, float_type, workers=3, lanes=4104)
    rng = np.random.default_rng(divisor)
    scales = np.resize(ALL_SCALES, STREAM_FROM // job.lanes + 1)
    scales[-1] = 120
    at, datagrams = np.arange(len(scales)), np.zeros((len(scales), job.result_bytes), np.uint8)
    codes = np.resize(np.arange(256), (len(scales), job.result_bytes - HEADER_BYTES)).astype(np.uint8)
    if name.startswith("nat8"):
        usual = rng.random(len(scales)) < 0.8  # the others have codes that name no level
        usual[-1] = True
        codes[usual] = (codes[usual] & 0x80) | (codes[usual] & 0x7F) % (job.format.result_levels(3) + 1)
    datagrams[:, HEADER_BYTES:] = codes

    def decoded(begin: int, past: bool) -> tuple[int, bytes]:
        memory = np.zeros(begin + len(scales) * job.lanes - 3, job.dtype)
        call = Call(
            job, memory[begin:], scales, scales, data=datagrams, places=at, numbers=at, divisor=divisor, past=past
        )
        return call.decode(0, at.size), memory.tobytes()

    assert decoded(0, True) == decoded(0, False)
    assert decoded(1, True) == decoded(1, False)


@pytest.mark.parametrize("name", ["nat8", "tern", "dith8-exact", "fix32"])
@every_type
@pytest.mark.parametrize("divisor", [2, 3, 32])
def test_the_mean_is_the_sum_divided(name: str, float_type: FloatType, divisor: int) -> None:
    """The sum as float32 if the type is narrower."""
    job = make_job(name, float_type, workers=divisor, lanes=96)
    wide = float_type if float_type is FloatType.FLOAT64 else FloatType.FLOAT32
    rng = np.random.default_rng(divisor)
    scales = np.array([0, 100, 105, 120, 136, 140, 250, 30 if float_type.value < -100 else 99], np.uint8)
    payloads = np.stack([random_result(rng, job) for _ in scales])
    elements = job.lanes * len(scales) - 3
    _, sums = decode_all(make_job(name, wide, workers=divisor, lanes=96), payloads, elements, scales, scales)
    _, means = decode_all(job, payloads, elements, scales, scales, divisor)
    with np.errstate(under="ignore", over="ignore"):
        quotient = sums / sums.dtype.type(divisor)
        if float_type is not FloatType.BFLOAT16:
            want = bits(quotient.astype(float_type.dtype))
        else:
            b = quotient.view(np.uint32)
            want = ((b + np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
            want[np.isnan(quotient)] = 0x7FC0
    assert (bits(means) == want).all()


@pytest.mark.parametrize("vector", vectors("decode"), ids=label)
def test_golden_vectors(vector: Vector) -> None:
    float_type = FloatType[vector["float_type"].upper()]
    codes = np.array(vector["codes"], np.uint32)
    job = make_job(vector["format"], float_type, vector["workers"], lanes=-(-codes.size // 32) * 32)
    scale_byte, refinement = scale.SCALE_NONFINITE, 0
    if vector["unit"] is not None:
        unit = Unit(**vector["unit"])
        first = scale.unit(job.format, job.workers, scale.SCALE_BIAS)
        assert first is not None
        scale_byte, refinement = 0, 0
        if unit != scale.ZERO:
            scale_byte = unit.exponent - first.exponent + scale.SCALE_BIAS
            refinement = unit.mantissa - first.mantissa
    padded = np.zeros(job.lanes, np.uint32)
    padded[: codes.size] = codes
    row = np.frombuffer(payload.pack(job.format.down(job.workers), padded), np.uint8)
    agreed = np.array([scale_byte], np.uint8), np.array([refinement], np.uint8)
    _, values = decode_all(job, row[None], codes.size, *agreed)
    assert [int(b) for b in bits(values)] == [int(v, 16) for v in vector["values"]]
