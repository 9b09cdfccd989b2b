"""Kernels by address: the blocks of one shard of several, as those of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.host.codec.reference import agree, decode_all, decode_own, encode_all, make_job, random_values

from inagg_host.codec import ALL_GOOD, Job
from inagg_testbed.kernel_calls import Call
from inagg_wire.formats import FORMATS
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.scale import SCALE_NONFINITE, FloatType

BLOCKS, STEP, FIRST, NUMBER, ROW = 9, 2, 1, 1001, 3
COUNT = (BLOCKS - FIRST) // STEP
MINE = slice(FIRST, FIRST + STEP * COUNT, STEP)
every_type = pytest.mark.parametrize("float_type", list(FloatType), ids=lambda t: t.name.lower())


def made(name: str, float_type: FloatType = FloatType.FLOAT32) -> tuple[Job, npt.NDArray[Any]]:
    job = make_job(name, float_type)
    return job, random_values(np.random.default_rng(3), BLOCKS * job.lanes - 5, float_type, 0.0)


@every_type
@pytest.mark.parametrize("name", FORMATS)
def test_blocks_of_a_shard_are_encoded(name: str, float_type: FloatType) -> None:
    job, values = made(name, float_type)
    agreed, ring = agree(job, values), np.zeros((ROW + COUNT, job.datagram_bytes), np.uint8)
    assert Call(job, values, *agreed, ring=ring, shards=STEP).encode(FIRST, NUMBER, COUNT, ROW) == ALL_GOOD
    _, want = encode_all(job, values, *agreed, first_number=NUMBER - FIRST)
    assert ring[ROW:, HEADER_BYTES:].tobytes() == want[MINE, HEADER_BYTES:].tobytes()
    assert not ring[:ROW].any()
    assert not ring[:, :HEADER_BYTES].any()


@every_type
@pytest.mark.parametrize("name", FORMATS)
def test_results_of_a_shard_are_decoded(name: str, float_type: FloatType) -> None:
    job, values = made(name, float_type)
    agreed, every, out = agree(job, values), np.arange(COUNT), values.copy()
    rng = np.random.default_rng(4)
    data = rng.integers(0, 256, (COUNT, job.result_bytes)).astype(np.uint8)
    payloads = np.zeros((BLOCKS, job.result_bytes - HEADER_BYTES), np.uint8)
    payloads[MINE] = data[::-1, HEADER_BYTES:]
    invalid, want = decode_all(job, payloads, values.size, *agreed, divisor=3)
    call = Call(
        job, out, *agreed, data=data, places=every[::-1].copy(), numbers=7 + every, shards=STEP, divisor=3
    )  # fmt: skip
    assert call.decode(0, COUNT, FIRST - STEP * 7) == invalid  # so that the run's own numbers begin at 7
    for block in range(BLOCKS):
        at, mine = slice(block * job.lanes, (block + 1) * job.lanes), block in range(BLOCKS)[MINE]
        assert out[at].tobytes() == (want if mine else values)[at].tobytes()


@every_type
@pytest.mark.parametrize("name", FORMATS)
def test_scales_of_some_blocks_are_found(name: str, float_type: FloatType) -> None:
    job, values = made(name, float_type)
    ring = np.zeros((STEP * 16, job.datagram_bytes), np.uint8)
    some, own = Call(job, values, ring=ring, shards=STEP).scale(2, 5, NUMBER + 2)
    every, _ = Call(job, values).scale(0, BLOCKS)
    assert some.tolist() == [0, 0, *every[2:7].tolist(), 0, 0]
    assert own.tolist() == [0, 0, *agree(job, values)[0][2:7].tolist(), 0, 0]


@every_type
@pytest.mark.parametrize("name", FORMATS)
def test_what_contributions_stand_for_is_written_down(name: str, float_type: FloatType) -> None:
    job, values = made(name, float_type)
    values[3 * job.lanes : 4 * job.lanes] = 0
    scales, refinements = agree(job, values)
    scales[5] = SCALE_NONFINITE
    ring, contributed = np.zeros((BLOCKS, job.datagram_bytes), np.uint8), np.zeros_like(values)
    call = Call(job, values, scales, refinements, ring=ring, contributed=contributed)
    assert call.encode(0, NUMBER, BLOCKS, 0) == ALL_GOOD
    want = decode_own(job, ring[:, HEADER_BYTES:], values.size, scales, refinements)
    assert want.any()
    assert contributed.tobytes() == want.tobytes()
