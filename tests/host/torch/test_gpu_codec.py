"""A tensor on a device, asked for in batches: datagrams and sums are those of the CPU's kernels. Here on the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.host.codec.reference import (
    UNTOUCHED,
    agree,
    decode_all,
    encode_all,
    make_job,
    random_result,
    random_values,
)

from inagg_host import codec as cpu
from inagg_host.codec import Job
from inagg_host.torch.gpu import codec as module
from inagg_host.torch.gpu import kernels_for, ops
from inagg_host.torch.gpu.codec import DeviceCodec, Lane
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.scale import Floats, FloatType

CHUNK, BLOCKS = 10, 37
"""Chunks are no multiple of a piece, and the last block is a partial one."""

every_type = pytest.mark.parametrize("float_type", list(FloatType), ids=lambda t: t.name.lower())
every_format = pytest.mark.parametrize("name", ["nat8", "nat4", "tern", "dith8", "fix32"])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BLOCKS", 4)


def tensor(values: Floats, float_type: FloatType) -> torch.Tensor:
    raw = torch.from_numpy(values.view({2: np.int16, 4: np.int32, 8: np.int64}[values.itemsize]).copy())
    return raw.view(getattr(torch, float_type.name.lower()))


def make(job: Job, values: Floats, out: torch.Tensor | None = None, **options: Any) -> DeviceCodec:
    given, lane = tensor(values, job.float_type), Lane(torch.device("cpu"))
    codec = DeviceCodec(given, given if out is None else out, job.lanes, lane, lane, **options)
    codec.start(lane)()
    return codec.bind(job, CHUNK)


def made(name: str, float_type: FloatType, lanes: int = 32) -> tuple[Job, Floats, Any, Any]:
    job = make_job(name, float_type, lanes=lanes)
    values = random_values(np.random.default_rng(1), BLOCKS * lanes - 5, float_type, 0.0)
    return job, values, *agree(job, values)


def encode_in_batches(
    codec: DeviceCodec, scales: Any, refinements: Any, step: int, number: int, batch: int = 7
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """All blocks, chunk after chunk, those of each shard in order; ``number``: of the first in the job."""
    datagrams = np.full((BLOCKS, codec.job.datagram_bytes), UNTOUCHED, np.uint8)
    for chunk in range(0, BLOCKS, CHUNK):
        end = min(chunk + CHUNK, BLOCKS)
        for shard in range(step):
            mine = range(chunk + shard, end, step)
            for some in (mine[i : i + batch] for i in range(0, len(mine), batch)):
                ring = np.full((len(some) + 3, codec.job.datagram_bytes), UNTOUCHED, np.uint8)
                first = some[0]
                bad = codec.encode(scales, refinements, first, number + first, step, len(some), ring, 2)
                assert bad == cpu.ALL_GOOD
                assert (ring[[0, 1, -1]] == UNTOUCHED).all()
                datagrams[list(some)] = ring[2:-1]
    return datagrams


@every_type
def test_largest_magnitudes_are_those_of_the_cpu(float_type: FloatType) -> None:
    job, values, _, _ = made("nat8", float_type)
    codec = make(job, values)
    assert codec.largest(0, BLOCKS).tolist() == cpu.largest(job, values).tolist()
    assert codec.largest(5, 3).tolist() == cpu.largest(job, values).tolist()[5:8]


@every_type
@every_format
@pytest.mark.parametrize("step", [1, 2, 3])
def test_datagrams_are_those_of_the_cpu(name: str, float_type: FloatType, step: int) -> None:
    job, values, scales, refinements = made(name, float_type)
    _, expected = encode_all(job, values, scales, refinements, first_number=1000)
    got = encode_in_batches(make(job, values), scales, refinements, step, 1000)
    assert got.tobytes() == expected.tobytes()


def test_a_chunk_is_encoded_with_the_scales_that_are_agreed_on() -> None:
    """Those of later chunks are not there yet."""
    job, values, scales, refinements = made("nat8", FloatType.FLOAT32)
    unknown = scales.copy()
    unknown[CHUNK:] = 0
    _, expected = encode_all(job, values, scales, refinements)
    codec, row = make(job, values), np.zeros((1, job.datagram_bytes), np.uint8)
    for block, known in ((3, unknown), (CHUNK + 3, scales)):
        assert codec.encode(known, refinements, block, block, 1, 1, row, 0) == cpu.ALL_GOOD
        assert row[0, HEADER_BYTES:].tobytes() == expected[block, HEADER_BYTES:].tobytes()


def test_codes_that_were_taken_are_not_kept() -> None:
    job, values, scales, refinements = made("nat8", FloatType.FLOAT32)
    codec = make(job, values)
    encode_in_batches(codec, scales, refinements, 1, 0)
    assert codec._sent == {}


@every_format
def test_values_beyond_their_scale_are_found(name: str) -> None:
    job, values, scales, refinements = made(name, FloatType.FLOAT32)
    values[6 * job.lanes + 3] *= 1e6
    codec, ring = make(job, values), np.zeros((9, job.datagram_bytes), np.uint8)
    assert codec.encode(scales, refinements, 0, 0, 2, 5, ring, 0) == 3


@every_type
@every_format
def test_a_tie_is_decided_by_the_cpu(name: str, float_type: FloatType) -> None:
    """Here every block is said to have one, and its codes are spoilt."""

    def spoil(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        payloads, flags = ops.encode(*arguments)
        return torch.full_like(payloads, UNTOUCHED), torch.full_like(flags, ops.TIE)

    job, values, scales, refinements = made(name, float_type)
    _, expected = encode_all(job, values, scales, refinements)
    using: Any = SimpleNamespace(largest=ops.largest, encode=spoil)
    got = encode_in_batches(make(job, values, using=using), scales, refinements, 1, 0)
    assert got.tobytes() == expected.tobytes()


@every_type
@every_format
@pytest.mark.parametrize("divisor", [1, 3])
def test_sums_are_those_of_the_cpu(name: str, float_type: FloatType, divisor: int) -> None:
    """Results come in any order, of two shards, in batches; in place."""
    job, values, scales, refinements = made(name, float_type)
    rng = np.random.default_rng(2)
    payloads = np.stack([random_result(rng, job) for _ in range(BLOCKS)])
    invalid, expected = decode_all(job, payloads, values.size, scales, refinements, divisor)
    codec = make(job, values)
    for batch in np.array_split(rng.permutation(BLOCKS), 9):
        for shard in range(2):
            blocks = batch[batch % 2 == shard]
            if not blocks.size:
                continue
            datagrams = np.zeros((blocks.size + 1, job.result_bytes), np.uint8)
            datagrams[1:, HEADER_BYTES:] = payloads[blocks]
            places = np.arange(1, blocks.size + 1)
            codec.decode(
                datagrams.reshape(-1), job.result_bytes, places, blocks // 2, 2, shard, scales, refinements, divisor
            )
    assert codec._out.view(torch.uint8).numpy().tobytes() == expected.tobytes()
    assert codec.invalid_codes() == invalid


def test_sums_are_decoded_as_soon_as_a_piece_is_complete() -> None:
    job, values, scales, refinements = made("nat8", FloatType.FLOAT32)
    out = torch.full((values.size,), -7.0)
    codec = make(job, values, out)
    datagrams = np.zeros(8 * job.result_bytes, np.uint8)
    blocks = np.array([4, 5, 6, 7, 0, 1, 2])
    codec.decode(datagrams, job.result_bytes, np.arange(7), blocks, 1, 0, scales, refinements, 1)
    done = (out == 0).view(-1).numpy()
    assert done[4 * job.lanes : 8 * job.lanes].all()
    assert not done[: 4 * job.lanes].any()
    assert not done[8 * job.lanes :].any()


def test_cpu_tensors_need_no_triton() -> None:
    assert kernels_for(torch.device("cpu")) is ops
