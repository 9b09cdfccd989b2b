"""Runs of blocks: the same bytes as `kernels.encode` and `kernels.decode`, for the blocks of one shard of several."""

from __future__ import annotations

import numpy as np
import pytest
from tests.host.kernels.reference import agree, make_job, random_values

from inagg_host import kernels
from inagg_wire.formats import FORMATS
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.scale import FloatType

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
