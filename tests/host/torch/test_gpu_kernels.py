"""The kernels of the device, as torch operations and in Triton: bit for bit those of the CPU.

Torch operations run on CPU tensors here. The last tests run this file once more, each in a process of its own: for
Triton in its interpreter, if it is installed, and on a GPU, if there is one, for both.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tests.host.codec.reference import (
    CONTRIBUTIONS,
    UNTOUCHED,
    agree,
    decode_all,
    encode_all,
    k0_with_word,
    largest_magnitudes,
    make_job,
    narrowed,
    random_bits,
    random_result,
    random_values,
)
from tests.host.torch import ops
from tests.vectors.load import Vector, label, vectors

from inagg_host.codec import ALL_GOOD, Job
from inagg_host.codec.staged import BAD, PLACE_BITS, TIE, TIES
from inagg_host.codec.table import Column
from inagg_host.torch.gpu.floats import FLOATS
from inagg_testbed.kernel_calls import make_table
from inagg_wire import payload, scale
from inagg_wire.formats import FORMATS, job_format
from inagg_wire.layout import HEADER_BYTES, LANE_BITS, SIGN_AND_LEVEL
from inagg_wire.scale import Floats, FloatType, Unit

ROOT = Path(__file__).parents[3]
WHICH = os.environ.get("INAGG_TEST_KERNELS", "ops")
"""ops or triton_kernels."""
DEVICE = torch.device(os.environ.get("INAGG_TEST_DEVICE", "cpu"))
AGAIN = "INAGG_TEST_KERNELS" in os.environ
SLOW = os.environ.get("TRITON_INTERPRET") == "1"
"""The interpreter takes milliseconds for a block: fewer of them, but of all kinds."""
TORCH_TYPES = {
    FloatType.FLOAT16: torch.float16,
    FloatType.BFLOAT16: torch.bfloat16,
    FloatType.FLOAT32: torch.float32,
    FloatType.FLOAT64: torch.float64,
}
Bytes = Any

every_format = pytest.mark.parametrize("name", CONTRIBUTIONS)
every_type = pytest.mark.parametrize("float_type", list(FloatType), ids=lambda t: t.name.lower())


@pytest.fixture(scope="module")
def device_kernels() -> ModuleType:
    """The module with the kernels."""
    return ops if WHICH == "ops" else importlib.import_module(f"inagg_host.torch.gpu.{WHICH}")


def tensor(values: Floats, float_type: FloatType) -> torch.Tensor:
    raw = values.view({2: np.int16, 4: np.int32, 8: np.int64}[values.itemsize])
    return torch.from_numpy(raw.copy()).view(TORCH_TYPES[float_type]).to(DEVICE)


def bits(values: torch.Tensor) -> bytes:
    return values.cpu().view(torch.uint8).numpy().tobytes()


AT, FIRST = 2, 1 << 20
"""How many rows there are before and after those that kernels are to use."""


def around(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros_like(rows[:1]).repeat(AT, 1), rows, torch.zeros_like(rows[:1]).repeat(AT, 1)]).to(
        DEVICE
    )


def launch_encoder(
    kernels: ModuleType, job: Job, values: torch.Tensor, table: torch.Tensor, ties: torch.Tensor | None = None
) -> tuple[list[int], Bytes]:
    """Flags and payloads of all blocks of a table, which is that from block `FIRST` on. Nothing is written beside
    them."""
    count, size, each = len(table), job.for_encode.payload_bytes, kernels.flag_bytes(job)
    payloads, flags = (
        torch.full(((count + 2 * AT) * row,), UNTOUCHED, dtype=torch.uint8, device=DEVICE) for row in (size, each)
    )
    ties = torch.zeros(2 * TIES, dtype=torch.int64, device=DEVICE) if ties is None else ties
    counted = torch.full((1,), TIES - 1, dtype=torch.int32, device=DEVICE)
    kernels.encode(job, values, around(table), payloads, flags, ties, counted, AT, count, FIRST)
    rows = [whole.cpu().numpy().reshape(count + 2 * AT, -1) for whole in (payloads, flags)]
    assert all((row[[0, 1, -1, -2]] == UNTOUCHED).all() for row in rows)
    return np.bitwise_or.reduce(rows[1][AT:-AT], axis=1).tolist(), rows[0][AT:-AT]


def encode_on_device(
    kernels: ModuleType, job: Job, values: Floats, scales: Bytes, refinements: Bytes, first_number: int = 0
) -> tuple[list[int], Bytes]:
    """Flags and payloads."""
    numbers = np.arange(scales.size) + first_number
    table = make_table(job, scales, refinements, job.for_encode.fraction_bits, numbers)
    return launch_encoder(kernels, job, tensor(values, job.float_type), torch.from_numpy(table))


def decode_on_device(
    kernels: ModuleType, job: Job, payloads: Bytes, elements: int, scales: Bytes, refinements: Bytes, divisor: int = 1
) -> tuple[int, bytes]:
    """How many codes are invalid, and the bits of the values."""
    table = make_table(job, scales, refinements, job.for_decode.fraction_bits)
    values = torch.empty(elements, dtype=TORCH_TYPES[job.float_type], device=DEVICE)
    rows, tables = (around(torch.from_numpy(array.copy())) for array in (payloads, table))
    words = kernels.count_words(job)
    counts = torch.full(((len(table) + 2 * AT) * words,), UNTOUCHED, dtype=torch.int32, device=DEVICE)
    kernels.decode(job, rows.view(-1), tables, values, counts, AT, len(table), divisor)
    found = counts.cpu().view(-1, words)
    assert (found[[0, 1, -1, -2]] == UNTOUCHED).all()
    return int(found[AT:-AT].sum()), bits(values)


# --- scales ---


@every_type
def test_largest_magnitudes(device_kernels: ModuleType, float_type: FloatType) -> None:
    """Of any bits, NaN and infinity too; the host makes scale bytes of them."""
    job = make_job("nat8", float_type, lanes=40)
    values = random_bits(np.random.default_rng(1), 9 * job.lanes + 7, float_type)
    values[: 3 * job.lanes] = random_values(np.random.default_rng(2), 3 * job.lanes, float_type, 3.0)
    found = torch.empty(job.blocks(values.size), dtype=FLOATS[values.itemsize], device=DEVICE)
    device_kernels.largest(tensor(values, float_type), job.lanes, found)
    raw = found.cpu().view(torch.uint8).numpy().view(float_type.dtype)
    of_one = make_job("nat8", float_type, lanes=8)
    padded = np.zeros((raw.size, 8), float_type.dtype)
    padded[:, 0] = raw
    assert largest_magnitudes(of_one, padded.reshape(-1)) == largest_magnitudes(job, values)


# --- contributions ---


def assert_encodes_as_cpu(
    kernels: ModuleType, job: Job, values: Floats, scales: Bytes, refinements: Bytes, first_number: int = 0
) -> None:
    flags, payloads = encode_on_device(kernels, job, values, scales, refinements, first_number)
    good, datagrams = encode_all(job, values, scales, refinements, first_number)
    assert good == ALL_GOOD
    assert not any(flag & BAD for flag in flags)
    for i, flag in enumerate(flags):
        if not flag & TIE:
            assert payloads[i].tobytes() == datagrams[i, HEADER_BYTES:].tobytes(), f"block {i}"
    assert sum(flag & TIE > 0 for flag in flags) <= 1, "one in four thousand million lanes"


@every_format
@every_type
@pytest.mark.parametrize("workers", [3] if SLOW else [1, 3, 32])
def test_random_blocks(device_kernels: ModuleType, name: str, float_type: FloatType, workers: int) -> None:
    job = make_job(name, float_type, workers, lanes=104)
    rng = np.random.default_rng(workers)
    tops = {FloatType.FLOAT16: 15.9, FloatType.FLOAT64: 128.9}
    for largest in (0.0, -20.5, -90.0, -148.0, tops.get(float_type, 127.9)):
        values = random_values(rng, 3 * job.lanes + 37, float_type, largest)
        number = int(rng.integers(1 << 62))
        assert_encodes_as_cpu(device_kernels, job, values, *agree(job, values), first_number=number)


@every_format
@every_type
def test_a_scale_that_others_set(device_kernels: ModuleType, name: str, float_type: FloatType) -> None:
    """Values far below the lowest level, at any refinement."""
    job = make_job(name, float_type, lanes=40)
    rng = np.random.default_rng(1)
    values = random_values(rng, (4 if SLOW else 40) * job.lanes, float_type, 0.0)
    own, _ = agree(job, values)
    scales = np.maximum(own, rng.integers(own.max() + 1, 250, own.size)).astype(np.uint8)
    refinements = rng.integers(0, 256, own.size).astype(np.uint8)
    assert_encodes_as_cpu(device_kernels, job, values, scales, refinements)


@every_format
@every_type
def test_every_level_and_its_neighbours(device_kernels: ModuleType, name: str, float_type: FloatType) -> None:
    job = make_job(name, float_type, workers=2, lanes=1024)
    levels = np.exp2(np.arange(-60.0, 1.0))
    exact = np.concatenate([levels, levels * (1 - 2.0**-24), levels * (1 + 2.0**-23), levels * 1.5, [0.0, -0.0]])
    exact = np.concatenate([exact, np.arange(1, 128) / 127, -exact])
    exact = exact[np.abs(exact) <= 1]
    for log2 in (0, -10, -100, -130):
        with np.errstate(under="ignore"):
            values = narrowed(np.ldexp(exact, log2), float_type)
        if (values.view(f"u{values.itemsize}") << 1).any():
            assert_encodes_as_cpu(device_kernels, job, values, *agree(job, values))


@pytest.mark.parametrize("float_type", [FloatType.BFLOAT16, FloatType.FLOAT32], ids=lambda t: t.name.lower())
@every_format
def test_all_scale_bytes(device_kernels: ModuleType, name: str, float_type: FloatType) -> None:
    """Subnormal numbers, in all blocks where they count."""
    job = make_job(name, float_type, lanes=32)
    rng = np.random.default_rng(2)
    values = np.concatenate(
        [random_values(rng, job.lanes, float_type, log2) for log2 in np.arange(-149.0, 128.0, 23 if SLOW else 1)]
    )
    assert_encodes_as_cpu(device_kernels, job, values, *agree(job, values))


@every_format
@every_type
def test_no_unit_no_codes(device_kernels: ModuleType, name: str, float_type: FloatType) -> None:
    job = make_job(name, float_type)
    values = random_bits(np.random.default_rng(3), 6 * job.lanes, float_type)
    values[5 * job.lanes :] = 0
    scales = np.array([250, 251, 252, 254, 255, 0], np.uint8)
    flags, payloads = encode_on_device(device_kernels, job, values, scales, np.zeros(6, np.uint8))
    assert flags == [0] * 6
    assert not payloads.any()


@every_format
@every_type
@pytest.mark.parametrize("value", [2.0**15, np.nan] if SLOW else [2.0**15, np.inf, -np.inf, np.nan])
def test_values_beyond_the_agreed_scale_are_flagged(
    device_kernels: ModuleType, name: str, float_type: FloatType, value: float
) -> None:
    job = make_job(name, float_type, lanes=72)
    values = narrowed(np.full(6 * job.lanes - 3, 2.0**14), float_type)
    scales, refinements = agree(job, values)
    values[4 * job.lanes - 1] = narrowed(np.array([value]), float_type)[0]
    flags, _ = encode_on_device(device_kernels, job, values, scales, refinements)
    assert [flag & BAD for flag in flags] == [0, 0, 0, BAD, 0, 0]


@every_format
@every_type
def test_values_where_all_are_said_to_be_zero_are_flagged(
    device_kernels: ModuleType, name: str, float_type: FloatType
) -> None:
    job = make_job(name, float_type)
    values = np.zeros(2 * job.lanes, float_type.dtype)
    values.view(f"u{values.itemsize}")[job.lanes + 7] = 1  # the least of all floats
    flags, _ = encode_on_device(device_kernels, job, values, np.zeros(2, np.uint8), np.zeros(2, np.uint8))
    assert flags == [0, BAD]


@every_format
@every_type
def test_a_tie_is_flagged(device_kernels: ModuleType, name: str, float_type: FloatType) -> None:
    """Where word 0 is all ones but what the value has above its level: the next words decide, on the host, which is
    told of the lane and its value."""
    job = make_job(name, float_type, lanes=32)
    values = np.zeros(32, float_type.dtype)
    one = narrowed(np.array([1.5]), float_type)[0]
    values[3] = one
    scales, refinements = agree(job, values)
    table = torch.from_numpy(make_table(job, scales, refinements, job.for_encode.fraction_bits, np.zeros(1, np.int64)))
    # A key with which word 0 of lane 3 is the complement of what the value has above its level.
    parts = (ops._natural if job.format.up in SIGN_AND_LEVEL else ops._linear)(
        job, ops.blocks_of(tensor(values, float_type).cpu(), 32, 1), table
    )[1]
    part = int(parts[0, 3]) & 0xFFFFFFFF
    k1 = 0x12345678
    k0 = k0_with_word(part ^ 0xFFFFFFFF, 3, k1)
    table[0, Column.K0], table[0, Column.K1] = ops.signed(k0), ops.signed(k1)
    ties = torch.zeros(2 * TIES, dtype=torch.int64, device=DEVICE)
    flags, _ = launch_encoder(device_kernels, job, tensor(values, float_type), table, ties)
    assert flags == [TIE]
    found = {place: bits for place, bits in ties.view(TIES, 2).tolist() if place}
    unsigned = f"u{one.itemsize}"
    assert np.array([found.pop((FIRST + 1) << PLACE_BITS | 3)]).astype(unsigned) == one.view(unsigned)
    # Where it is nothing above its level, the noise is all ones, and so is that of zeros that share it.
    assert found in ({}, {(FIRST + 1) << PLACE_BITS | lane: 0 for lane in (11, 19, 27)})


def agreed_of(job: Job, vector: Vector) -> tuple[Bytes, Bytes]:
    """The agreed bytes that give a vector's unit."""
    scale_byte, refinement = scale.SCALE_NONFINITE, 0
    if vector["unit"] is not None:
        unit, first = Unit(**vector["unit"]), scale.unit(job.format, job.workers, scale.SCALE_BIAS)
        assert first is not None
        scale_byte, refinement = 0, 0
        if unit != scale.ZERO:
            scale_byte = unit.exponent - first.exponent + scale.SCALE_BIAS
            refinement = unit.mantissa - first.mantissa
    return np.array([scale_byte], np.uint8), np.array([refinement], np.uint8)


def values_of(vector: Vector, lanes: int) -> Floats:
    float_type = FloatType[vector["float_type"].upper()]
    values = np.zeros(lanes, float_type.dtype)
    given = np.array([int(v, 16) for v in vector["values"]], f"u{values.itemsize}")
    values.view(given.dtype)[: given.size] = given
    return values


@pytest.mark.parametrize("vector", [v for v in vectors("contributions") if v["op"] == 1], ids=label)
def test_golden_contributions(device_kernels: ModuleType, vector: Vector) -> None:
    fmt, float_type = job_format(vector["format"]), FloatType[vector["float_type"].upper()]
    expected = bytes.fromhex(vector["datagram"])[HEADER_BYTES:]
    lanes = len(expected) * 8 // LANE_BITS[fmt.up]
    job = Job(fmt, vector["workers"], vector["worker"], lanes, vector["seed"], float_type)
    agreed = agreed_of(job, vector)
    flags, payloads = encode_on_device(device_kernels, job, values_of(vector, lanes), *agreed, int(vector["block"], 16))
    assert flags == [0]
    assert payloads.tobytes() == expected


@pytest.mark.parametrize("vector", vectors("codes"), ids=label)
def test_golden_codes(device_kernels: ModuleType, vector: Vector) -> None:
    """With a noise key that is given. Where that makes a tie, it must be flagged."""
    float_type = FloatType[vector["float_type"].upper()]
    lanes = -(-len(vector["values"]) // 32) * 32
    job = make_job(vector["format"], float_type, vector["workers"], lanes=lanes)
    table = make_table(job, *agreed_of(job, vector), job.for_encode.fraction_bits)
    table[0, Column.K0 :] = [ops.signed(int(vector["key"][k], 16)) for k in ("k0", "k1")]
    flags, payloads = launch_encoder(
        device_kernels, job, tensor(values_of(vector, lanes), float_type), torch.from_numpy(table)
    )
    padded = np.zeros(lanes, np.uint32)
    padded[: len(vector["codes"])] = vector["codes"]
    same = payloads.tobytes() == payload.pack(job.format.up, padded)
    assert flags in ([0], [TIE])
    assert same or flags == [TIE]


# --- results ---


EDGES = [0, 1, 2, 20, 30, 60, 100, 119, 120, 121, 140, 200, 247, 248, 249, 250, 255]
"""Scale bytes."""


@pytest.mark.parametrize("name", list(FORMATS))
@every_type
@pytest.mark.parametrize("workers", [7] if SLOW else [1, 2, 7, 8, 32])
def test_results(device_kernels: ModuleType, name: str, float_type: FloatType, workers: int) -> None:
    """All codes, valid and not, at scales from the lowest to the highest, as sums and as means; and a partial block."""
    job = make_job(name, float_type, workers, lanes=64)
    rng = np.random.default_rng(workers)
    scales = np.array([0, 1, 20, 249, 255] if SLOW else EDGES, np.uint8)
    refinements = rng.integers(0, 256, scales.size).astype(np.uint8)
    payloads = np.stack([random_result(rng, job) for _ in scales])
    elements = scales.size * job.lanes - 5
    for divisor in (3,) if SLOW else (1, workers, 3):
        invalid, values = decode_all(job, payloads, elements, scales, refinements, divisor)
        found, got = decode_on_device(device_kernels, job, payloads, elements, scales, refinements, divisor)
        assert got == values.tobytes()
        assert found == invalid


@pytest.mark.parametrize("vector", vectors("decode"), ids=label)
def test_golden_values(device_kernels: ModuleType, vector: Vector) -> None:
    float_type, codes = FloatType[vector["float_type"].upper()], vector["codes"]
    job = make_job(vector["format"], float_type, vector["workers"], lanes=-(-len(codes) // 32) * 32)
    padded = np.zeros(job.lanes, np.uint32)
    padded[: len(codes)] = codes
    row = np.frombuffer(payload.pack(job.format.down(job.workers), padded), np.uint8)
    _, values = decode_on_device(device_kernels, job, row[None], len(codes), *agreed_of(job, vector))
    assert values == values_of(vector, len(codes)).tobytes()


# --- all of this for other kernels and devices ---


NUMPY_IS_SILENT = ("-W", "ignore::RuntimeWarning")
"""The interpreter computes with numpy, which warns of casts that overflow; hardware does not."""


def run_again(kernels: str, device: str, **environment: str) -> None:
    if AGAIN:
        pytest.skip("this is such a run")
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # not this run's
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *NUMPY_IS_SILENT, __file__],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
        env={**ours, "INAGG_TEST_KERNELS": kernels, "INAGG_TEST_DEVICE": device, **environment},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]


@pytest.mark.slow  # two minutes
def test_triton_in_its_interpreter() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: it comes with the CUDA builds of torch; or run: pip install triton")
    run_again("triton_kernels", "cpu", TRITON_INTERPRET="1")


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", ["ops", "triton_kernels"])
def test_on_the_gpu(kernels: str) -> None:
    run_again(kernels, "cuda")
