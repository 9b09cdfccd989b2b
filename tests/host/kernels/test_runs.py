"""Runs of blocks: the same bytes as `kernels.encode` and `kernels.decode`, for the blocks of one shard of several."""

from __future__ import annotations

import numpy as np
import pytest
from tests.host.kernels.reference import agree, make_job, random_values

from inagg_host import kernels
from inagg_host.kernels.encoder import LIFT_BELOW, encode_run
from inagg_wire.formats import FORMATS
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.scale import SCALE_NONFINITE, FloatType

BLOCKS, STEP, FIRST, NUMBER, ROW = 9, 2, 1, 1001, 3
COUNT = (BLOCKS - FIRST) // STEP


@pytest.mark.parametrize("name", FORMATS)
def test_runs_are_encoded_and_decoded_as_their_blocks(name: str) -> None:
    job = make_job(name, FloatType.FLOAT32)
    values = random_values(np.random.default_rng(3), BLOCKS * job.lanes - 5, FloatType.FLOAT32, 0.0)
    scales, refinements = agree(job, values)
    every = np.arange(COUNT)
    blocks, numbers = FIRST + STEP * every, NUMBER + STEP * every
    want, have = (np.zeros((ROW + COUNT, job.datagram_bytes), np.uint8) for _ in range(2))
    second = refinements if job.refined else None
    assert kernels.encode(job, values, blocks, numbers, scales, second, want, ROW + every) == kernels.ALL_GOOD
    runs = kernels.Runs(job)
    bad = runs.encode(values, scales, refinements, FIRST, NUMBER, STEP, COUNT, have, ROW)
    assert bad == kernels.ALL_GOOD
    assert have.tobytes() == want.tobytes()

    results = np.zeros((COUNT, job.result_bytes), np.uint8)
    results[:, HEADER_BYTES:] = np.random.default_rng(4).integers(0, 256, (COUNT, job.result_bytes - HEADER_BYTES))
    places = every[::-1].copy()
    expected, got = values.copy(), values.copy()
    invalid = kernels.decode(job, results, places, expected, blocks, scales, second, 3)
    offset = FIRST - STEP * 7  # so that the run's own numbers begin at 7
    flat = results.reshape(-1)
    assert runs.decode(flat, job.result_bytes, places, 7 + every, STEP, offset, got, scales, refinements, 3) == invalid
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("largest", [0.0, -20.5, -100.0, -140.0])
def test_largest_magnitudes_are_found_ahead(largest: float, step: int) -> None:
    """The same codes as without; and of all whole blocks that lie so far ahead what `kernels.largest` says."""
    job, ahead, blocks = make_job("nat8", FloatType.FLOAT32), 4, 20
    assert job.looks_ahead
    values = random_values(np.random.default_rng(3), blocks * job.lanes - 5, FloatType.FLOAT32, largest)
    for block, odd in ((9, np.inf), (10, np.nan), (11, 0.0), (12, -np.inf)):
        values[block * job.lanes + 1] = odd
    values[13 * job.lanes : 14 * job.lanes] = 0.0
    values[0] = 2.0**-149
    magnitudes = kernels.largest(job, values)
    scales = kernels.scale_bytes(job, magnitudes)
    count, runs = -(-blocks // step), kernels.Runs(job)
    want, have = np.zeros((2, count, job.datagram_bytes), np.uint8)
    runs.encode(values, scales, scales, 0, 7, step, count, want, 0)
    room, found = runs.room(count), np.full(blocks, kernels.UNKNOWN, np.uint64)
    bad = encode_run(
        job.for_encode, values.view(np.uint32), 0, 7, step, count, scales, scales, have, 0, room.indices, room.words,
        room.codes, ahead, found,
    )  # fmt: skip
    assert bad == kernels.ALL_GOOD
    assert have.tobytes() == want.tobytes()
    encoded = [i for i in range(0, blocks, step) if 0 < scales[i] < SCALE_NONFINITE and scales[i] >= LIFT_BELOW]
    seen = [i + ahead for i in encoded if i + ahead < blocks - 1]
    assert len(seen) > 1 or largest < -60
    assert found[seen].tolist() == magnitudes[seen].tolist()
    assert np.flatnonzero(found != kernels.UNKNOWN).tolist() == seen


def test_a_run_beyond_the_values_is_refused() -> None:
    job = make_job("nat8", FloatType.FLOAT32)
    values, room = np.ones(2 * job.lanes, np.float32), np.zeros((4, job.datagram_bytes), np.uint8)
    scales, refinements = agree(job, values)
    with pytest.raises(IndexError, match="not there"):
        kernels.Runs(job).encode(values, scales, refinements, 0, 0, 1, 3, room, 0)


def test_a_long_run_finds_room() -> None:
    job = make_job("nat8", FloatType.FLOAT32, lanes=8)
    values, room = np.ones(3000 * 8, np.float32), np.zeros((3000, job.datagram_bytes), np.uint8)
    scales, refinements = agree(job, values)
    assert kernels.Runs(job).encode(values, scales, refinements, 0, 0, 1, 3000, room, 0) == kernels.ALL_GOOD
    assert (room[:, HEADER_BYTES:] == room[0, HEADER_BYTES:]).all()
