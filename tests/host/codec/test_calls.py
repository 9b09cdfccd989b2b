"""Kernels by address: the same bytes as `codec.encode` and `codec.decode`, for the blocks of one shard of several."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.host.codec.reference import agree, make_job, random_values

from inagg_host import codec as kernels
from inagg_host.codec import Job
from inagg_host.codec.calls import CODEC, SIGNATURE, Room, addresses
from inagg_host.codec.encoder import OUT_OF_RANGE
from inagg_wire.formats import FORMATS
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.scale import SCALE_NONFINITE, FloatType

BLOCKS, STEP, FIRST, NUMBER, ROW = 9, 2, 1, 1001, 3
COUNT = (BLOCKS - FIRST) // STEP
every_type = pytest.mark.parametrize("float_type", list(FloatType), ids=lambda t: t.name.lower())


class Call:
    """The record of an operation, and its kernels."""

    def __init__(self, job: Job, values: npt.NDArray[Any], rows: int = ROW + COUNT, blocks: int = COUNT) -> None:
        self.room, self.arrays = Room(job, blocks, rows), {"values": values.copy(), "out": values.copy()}
        scales, refinements = agree(job, values)
        self.arrays |= {
            "agreed": scales, "refinement": refinements, "own": np.zeros_like(scales),
            "magnitudes": np.zeros(scales.size, np.uint64), "contributed": np.zeros_like(values),
            "ring": np.zeros((rows, job.datagram_bytes), np.uint8),
            "data": np.zeros(COUNT * job.result_bytes, np.uint8),
            "places": np.zeros(COUNT, np.int64), "numbers": np.zeros(COUNT, np.int64),
        }  # fmt: skip
        self.record = np.zeros(1, CODEC)
        record: Any = self.record[0]
        self.room.describe(record)
        for name, array in self.arrays.items():
            record[name] = array.ctypes.data
        record["elements"], record["blocks"], record["shards"] = values.size, scales.size, STEP
        record["piece"], record["piece_blocks"], record["own_piece"] = values.size, scales.size, 0
        record["rows"], record["stride"], record["serial"] = rows, job.datagram_bytes, -2
        record["data_bytes"], record["results"], record["divisor"] = self.arrays["data"].size, COUNT, 3

    def __call__(self, address: int, *arguments: int) -> int:
        function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(SIGNATURE.args))(address)
        result: int = function(self.record.ctypes.data, *arguments)
        return result


def made(name: str, float_type: FloatType = FloatType.FLOAT32) -> tuple[Job, npt.NDArray[Any]]:
    job = make_job(name, float_type)
    return job, random_values(np.random.default_rng(3), BLOCKS * job.lanes - 5, float_type, 0.0)


@every_type
@pytest.mark.parametrize("name", FORMATS)
def test_blocks_are_encoded_and_decoded_as_by_the_kernels(name: str, float_type: FloatType) -> None:
    job, values = made(name, float_type)
    call, kernel, every = Call(job, values), addresses(job), np.arange(COUNT)
    scales, refinements = agree(job, values)
    blocks, numbers = FIRST + STEP * every, NUMBER + STEP * every
    want, second = np.zeros((ROW + COUNT, job.datagram_bytes), np.uint8), refinements if job.refined else None
    assert kernels.encode(job, values, blocks, numbers, scales, second, want, ROW + every) == kernels.ALL_GOOD
    assert call(kernel.encode, FIRST, NUMBER, COUNT, ROW) == kernels.ALL_GOOD
    assert call.arrays["ring"].tobytes() == want.tobytes()

    results = call.arrays["data"].reshape(COUNT, job.result_bytes)
    results[:, HEADER_BYTES:] = np.random.default_rng(4).integers(0, 256, (COUNT, job.result_bytes - HEADER_BYTES))
    expected = values.copy()
    call.arrays["places"][:], call.arrays["numbers"][:] = every[::-1], 7 + every
    invalid = kernels.decode(job, results, every[::-1].copy(), expected, blocks, scales, second, 3)
    offset = FIRST - STEP * 7  # so that the run's own numbers begin at 7
    assert call(kernel.decode, job.result_bytes, 0, COUNT, offset) == invalid
    assert call.arrays["out"].tobytes() == expected.tobytes()


@every_type
@pytest.mark.parametrize("name", FORMATS)
def test_scales_are_found_as_by_the_kernels(name: str, float_type: FloatType) -> None:
    job, values = made(name, float_type)
    call = Call(job, values, rows=STEP * 16)
    assert call(addresses(job).scale, 2, 5, NUMBER + 2, 0) == 0
    magnitudes = kernels.largest(job, values)
    assert call.arrays["magnitudes"][2:7].tolist() == magnitudes[2:7].tolist()
    assert call.arrays["own"].tolist() == [0, 0, *kernels.scale_bytes(job, magnitudes)[2:7].tolist(), 0, 0]


@every_type
@pytest.mark.parametrize("name", FORMATS)
def test_what_contributions_stand_for_is_written_down(name: str, float_type: FloatType) -> None:
    job, values = made(name, float_type)
    values[3 * job.lanes : 4 * job.lanes] = 0
    call, kernel, every = Call(job, values), addresses(job), np.arange(COUNT)
    scales, refinements = agree(job, values)
    call.arrays["agreed"][5] = SCALE_NONFINITE
    scales[5] = SCALE_NONFINITE
    assert call(kernel.encode, FIRST, NUMBER, COUNT, ROW) == kernels.ALL_GOOD
    want, second = np.zeros_like(values), refinements if job.refined else None
    kernels.decode_own(job, call.arrays["ring"], ROW + every, want, FIRST + STEP * every, scales, second)
    assert want.any()
    assert call.arrays["contributed"].tobytes() == want.tobytes()


def test_nothing_is_written_down_that_nobody_wants() -> None:
    job, values = made("nat8")
    call, kernel = Call(job, values, rows=STEP * 16, blocks=BLOCKS), addresses(job)
    call.record["contributed"] = 0
    assert call(kernel.scale, 0, BLOCKS, NUMBER, 0) == 0
    assert call(kernel.encode, FIRST, NUMBER, COUNT, ROW) == kernels.ALL_GOOD
    assert not call.arrays["contributed"].any()


def test_a_run_beyond_the_values_is_refused() -> None:
    job, values = made("nat8")
    call = Call(job, values, blocks=BLOCKS)
    assert call(addresses(job).encode, 0, 0, BLOCKS, 0) == OUT_OF_RANGE
