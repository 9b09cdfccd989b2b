"""What the package promises beside the bits: what it refuses, threads, flush-to-zero, the golden contributions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.host.codec.reference import (
    agree,
    assert_encodes_as_reference,
    bits,
    blocks_of,
    decode_all,
    encode_all,
    expected_values,
    make_job,
    random_result,
    random_values,
)
from tests.vectors.load import Vector, label, vectors

from inagg_host.codec import ALL_GOOD, Job
from inagg_testbed.kernel_calls import Call
from inagg_wire.errors import AdmissionError
from inagg_wire.formats import FORMATS, WORKERS_MAX, job_format
from inagg_wire.layout import HEADER_BYTES, Op
from inagg_wire.scale import SCALE_BIAS, FloatType, Unit, unit

JOB = make_job("nat8", FloatType.FLOAT32, lanes=8)


@pytest.mark.parametrize(
    "values",
    [
        np.ones(20, np.float64),
        np.ones((4, 5), np.float32),
        np.ones(40, np.float32)[::2],
        np.zeros(81, np.uint8)[1:].view(np.float32),
        np.ones(20, ">f4"),
    ],
    ids=["float64", "rows", "strided", "unaligned", "big-endian"],
)
def test_other_values_are_refused(values: npt.NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="values"):
        JOB.bits(values)


def test_a_copy_of_what_is_not_aligned_is_as_the_error_says() -> None:
    odd = np.zeros(81, np.uint8)[1:].view(np.float32)
    with pytest.raises(ValueError, match=r"not aligned to 4 bytes in memory: give a copy, which is \(\.copy\(\)"):
        JOB.bits(odd)
    assert JOB.bits(odd.copy()).size == 20


def test_a_job_that_cannot_be() -> None:
    nat8 = job_format("nat8")
    with pytest.raises(AdmissionError):
        Job(nat8, WORKERS_MAX + 1, 0, 8, 0, FloatType.FLOAT32)
    with pytest.raises(AdmissionError):
        Job(nat8, 2, 0, 12, 0, FloatType.FLOAT32)
    with pytest.raises(ValueError, match="rank"):
        Job(nat8, 2, 2, 8, 0, FloatType.FLOAT32)
    with pytest.raises(ValueError, match="seed"):
        Job(nat8, 2, 1, 8, 1 << 32, FloatType.FLOAT32)


def test_a_job_knows_the_units_of_the_reference() -> None:
    for name in FORMATS:
        for workers in (1, 3, 32):
            job = make_job(name, FloatType.FLOAT32, workers, lanes=32)
            of_one = unit(job.format, workers, SCALE_BIAS, 5)
            mantissa = 262 if job.refined else 1
            assert of_one == Unit(mantissa, -job.for_encode.fraction_bits)


def test_threads_do_not_disturb_each_other() -> None:
    job = make_job("nat4", FloatType.FLOAT32, lanes=1448)
    values = [random_values(np.random.default_rng(i), 50 * job.lanes, FloatType.FLOAT32, -float(i)) for i in range(4)]
    agreed = [agree(job, v) for v in values]
    want = [encode_all(job, v, *a)[1] for v, a in zip(values, agreed, strict=True)]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if (encode_all(job, values[i], *agreed[i])[1] != want[i]).any():
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@contextmanager
def flush_to_zero() -> Iterator[None]:
    torch = pytest.importorskip("torch", reason="nothing else here can set the processor's flush-to-zero mode")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush-to-zero mode")
    try:
        smallest = np.array([1], np.uint32).view(np.float32)
        assert smallest[0] * np.float32(1.0) == 0.0, "the mode is not on"
        yield
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("name", ["nat8", "tern", "dith8", "fix32"])
@pytest.mark.parametrize("float_type", list(FloatType), ids=lambda t: t.name.lower())
def test_flush_to_zero_changes_nothing(name: str, float_type: FloatType) -> None:
    """Subnormals go in and come out, in a thread where float arithmetic has none."""
    job = make_job(name, float_type, workers=2, lanes=64)
    values = np.zeros(512, float_type.dtype)
    bits(values)[:] = np.arange(1, 513)  # all subnormal, or (bfloat16) some
    values[400:] = random_values(np.random.default_rng(10), 112, float_type, -13.0)
    rows = np.stack([random_result(np.random.default_rng(i), job) for i in range(8)])
    with flush_to_zero():
        scales, refinements = Call(job, values).agree()
        bad, datagrams = encode_all(job, values, scales, refinements)
        _, results = decode_all(job, rows, values.size, scales, refinements)
    agreed = agree(job, values)
    assert (scales == agreed[0]).all()
    assert (refinements == agreed[1]).all()
    assert bad == ALL_GOOD
    assert_encodes_as_reference(job, values, scales, refinements)
    assert (datagrams == encode_all(job, values, scales, refinements)[1]).all()
    for i, block in enumerate(blocks_of(job, results)):
        want = expected_values(job, rows[i], block.size, int(scales[i]), int(refinements[i]))
        assert (bits(block) == bits(want)).all()


SUMS = [v for v in vectors("contributions") if v["op"] == Op.SUM]


@pytest.mark.parametrize("vector", SUMS, ids=label)
def test_golden_contributions(vector: Vector) -> None:
    float_type = FloatType[vector["float_type"].upper()]
    values = np.array([int(v, 16) for v in vector["values"]], f"u{float_type.dtype.itemsize}").view(float_type.dtype)
    job = make_job(vector["format"], float_type, vector["workers"], values.size, vector["seed"], rank=vector["worker"])
    first = unit(job.format, job.workers, SCALE_BIAS)
    assert first is not None
    scale_byte = vector["unit"]["exponent"] - first.exponent + SCALE_BIAS if vector["unit"] else 255
    refinement = vector["unit"]["mantissa"] - first.mantissa if vector["unit"] else 0
    number = int(vector["block"], 16)
    bad, datagrams = encode_all(
        job,
        values,
        np.array([scale_byte], np.uint8),
        np.array([refinement], np.uint8),
        number - (1 << 64) if number >> 63 else number,
    )
    assert bad == ALL_GOOD
    want = bytes.fromhex(vector["datagram"])
    assert datagrams[0, HEADER_BYTES:].tobytes() == want[HEADER_BYTES:]
