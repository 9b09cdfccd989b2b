"""A device that encodes tensors: codes and sums are those of the CPU's kernels. Here it is the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.host.codec.reference import agree, decode_all, encode_all, make_job, random_result, random_values

from inagg_host import codec as cpu
from inagg_host.codec import Job, staging
from inagg_host.codec.bell import Bell
from inagg_host.io.device import BAD, TIE, Slot
from inagg_host.torch.gpu import device as module
from inagg_host.torch.gpu import kernels_for, ops
from inagg_host.torch.gpu.device import DTYPES, Operand, TensorDevice, is_aligned
from inagg_host.torch.gpu.lane import Mark
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.scale import Floats, FloatType

BLOCKS, AT = 7, 3
HERE = torch.device("cpu")
every_type = pytest.mark.parametrize("float_type", list(FloatType), ids=lambda t: t.name.lower())
every_format = pytest.mark.parametrize("name", ["nat8", "nat4", "tern", "dith8", "fix32"])


@pytest.fixture
def bell() -> Iterator[Bell]:
    with closing(Bell()) as bell:
        yield bell


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for where in (module, staging):
        monkeypatch.setattr(where, "RUN_BLOCKS_MOST", 16)
        monkeypatch.setattr(where, "SLOT_BYTES", 1 << 12)
    monkeypatch.setattr(module, "SLOTS", 2)


def tensor(values: Floats, float_type: FloatType) -> torch.Tensor:
    raw = torch.from_numpy(values.view({2: np.int16, 4: np.int32, 8: np.int64}[values.itemsize]).copy())
    return raw.view(DTYPES[float_type])


def made(
    name: str, float_type: FloatType, bell: Bell, using: Any = None
) -> tuple[Job, Floats, TensorDevice, Operand, Slot]:
    job = make_job(name, float_type, lanes=32)
    values = random_values(np.random.default_rng(1), BLOCKS * job.lanes - 5, float_type, 0.0)
    device, given = TensorDevice(HERE, {float_type: job}, bell, using), tensor(values, float_type)
    return job, values, device, Operand(given, given, Mark(None)), device.slots[1]


@every_type
def test_largest_magnitudes_are_those_of_the_cpu(float_type: FloatType, bell: Bell) -> None:
    job, values, device, operand, _ = made("nat8", float_type, bell)
    looked = device.look(operand, job.lanes, 2, BLOCKS - 2, shelf=3)
    assert looked.done()
    of_one, padded = make_job("nat8", float_type, lanes=8), np.zeros((BLOCKS - 2, 8), job.dtype)
    padded[:, 0] = looked.found().view(job.dtype)
    assert cpu.largest(of_one, padded.reshape(-1)).tolist() == cpu.largest(job, values).tolist()[2:]


@every_type
@every_format
def test_codes_are_those_of_the_cpu(name: str, float_type: FloatType, bell: Bell) -> None:
    job, values, device, operand, slot = made(name, float_type, bell)
    scales, refinements = agree(job, values)
    _, expected = encode_all(job, values, scales, refinements, first_number=1000)
    slot.codes[:] = 0xEE
    encoded = device.encode(operand, job, slot, AT, 2, scales[2:], refinements[2:], np.arange(1002, 1000 + BLOCKS))
    assert encoded.done()
    assert encoded.flags().tolist() == [0] * (BLOCKS - 2)
    size = job.for_encode.payload_bytes
    assert slot.codes[AT * size : (AT + BLOCKS - 2) * size].tobytes() == expected[2:, HEADER_BYTES:].tobytes()
    assert (slot.codes[: AT * size] == 0xEE).all()
    assert (slot.codes[(AT + BLOCKS - 2) * size :] == 0xEE).all()


@every_type
def test_values_of_a_block_are_fetched(float_type: FloatType, bell: Bell) -> None:
    job, values, device, operand, _ = made("nat8", float_type, bell)
    assert device.fetch(operand, job, 2).tobytes() == values[2 * job.lanes : 3 * job.lanes].tobytes()
    assert device.fetch(operand, job, BLOCKS - 1).tobytes() == values[(BLOCKS - 1) * job.lanes :].tobytes()


def test_values_beyond_their_scale_are_flagged(bell: Bell) -> None:
    job, values, device, operand, slot = made("nat8", FloatType.FLOAT32, bell)
    scales, refinements = agree(job, values)
    operand.values[4 * job.lanes] = 1e6
    flags = device.encode(operand, job, slot, 0, 0, scales, refinements, np.arange(BLOCKS)).flags()
    assert flags.tolist() == [0, 0, 0, 0, BAD, 0, 0]


def test_flags_of_all_programs_of_a_block_count(bell: Bell) -> None:
    """Kernels have a byte for each."""

    def encode(job: Job, values: Any, table: Any, payloads: Any, flags: Any, at: int, count: int) -> None:
        flags[at * 3 : (at + count) * 3] = torch.tensor([0, 0, 0, 0, TIE, 0, BAD, 0, TIE], dtype=torch.uint8)[
            : count * 3
        ]

    using: Any = SimpleNamespace(
        largest=ops.largest, decode=ops.decode, count_words=ops.count_words, flag_bytes=lambda job: 3, encode=encode
    )
    job, _, device, operand, slot = made("nat8", FloatType.FLOAT32, bell, using)
    none = np.zeros(3, np.uint8)
    flags = device.encode(operand, job, slot, AT, 0, none, none, np.arange(3)).flags()
    assert flags.tolist() == [0, TIE, BAD | TIE]


@every_type
@every_format
@pytest.mark.parametrize("divisor", [1, 3])
def test_sums_are_those_of_the_cpu(name: str, float_type: FloatType, divisor: int, bell: Bell) -> None:
    job, values, device, operand, slot = made(name, float_type, bell)
    scales, refinements = agree(job, values)
    rng, size = np.random.default_rng(2), job.for_decode.payload_bytes
    payloads = np.stack([random_result(rng, job) for _ in range(BLOCKS)])
    invalid, expected = decode_all(job, payloads, values.size, scales, refinements, divisor)
    slot.results[AT * size : (AT + BLOCKS) * size] = payloads.reshape(-1)
    decoded = device.decode(operand, job, slot, AT, 0, scales, refinements, divisor)
    assert decoded.done()
    assert operand.out.view(torch.uint8).numpy().tobytes() == expected.tobytes()
    assert decoded.invalid() == invalid


def test_the_bell_is_rung_for_each_mark(bell: Bell) -> None:
    job, _, device, operand, _ = made("nat8", FloatType.FLOAT32, bell)
    bell.clear()
    device.look(operand, job.lanes, 0, 1, 0)
    assert os.eventfd_read(bell.descriptor) == 1


def test_a_view_may_not_be_aligned() -> None:
    whole = torch.zeros(64)
    assert is_aligned(whole)
    assert not is_aligned(whole[1:])


def test_cpu_tensors_need_no_triton() -> None:
    assert kernels_for(HERE) is ops
