"""Rows that tell a device of blocks: what `inagg_wire` says of scales and of noise, in integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from inagg_host.codec import Job
from inagg_host.codec.table import Column, State
from inagg_testbed.kernel_calls import make_table
from inagg_wire import noise_keys, scale
from inagg_wire.formats import FORMATS, job_format
from inagg_wire.scale import SCALE_BYTE_MAX, FloatType

SCALES = np.arange(256, dtype=np.uint8)
"""All that there can be."""
REFINEMENTS = (SCALES * 7 + 3).astype(np.uint8)
WORKERS = 3

every_format = pytest.mark.parametrize("name", sorted(FORMATS))


def make_job(name: str, seed: int = 0x5EED0001, rank: int = 1, workers: int = WORKERS) -> Job:
    return Job(job_format(name), workers, rank, 40, seed, FloatType.FLOAT32)


@every_format
def test_what_becomes_of_a_block_is_by_its_scale(name: str) -> None:
    job = make_job(name)
    table = make_table(job, SCALES, REFINEMENTS, job.for_encode.fraction_bits)
    for byte, refinement, state in zip(SCALES.tolist(), REFINEMENTS.tolist(), table[:, Column.STATE], strict=True):
        unit = scale.unit(job.format, WORKERS, byte, refinement)
        assert state == (State.NAN if unit is None else State.ZERO if unit == scale.ZERO else State.CODED)


@every_format
def test_the_unit_of_contributions_is_that_of_the_agreed_bytes(name: str) -> None:
    job = make_job(name)
    table = make_table(job, SCALES, REFINEMENTS, job.for_encode.fraction_bits)
    for byte in range(1, SCALE_BYTE_MAX + 1):
        unit = scale.unit(job.format, WORKERS, byte, int(REFINEMENTS[byte]))
        assert unit is not None
        assert table[byte, [Column.MANTISSA, Column.EXPONENT]].tolist() == [unit.mantissa, unit.exponent]


@every_format
def test_the_unit_of_results_is_as_many_of_those_as_they_are_shifted(name: str) -> None:
    job = make_job(name)
    table = make_table(job, SCALES, REFINEMENTS, job.for_decode.fraction_bits)
    for byte in range(1, SCALE_BYTE_MAX + 1):
        unit = scale.unit(job.format, WORKERS, byte, int(REFINEMENTS[byte]))
        assert unit is not None
        mantissa, exponent = (int(table[byte, column]) for column in (Column.MANTISSA, Column.EXPONENT))
        shifted = unit.mantissa * Fraction(2) ** (unit.exponent + job.format.result_shift(WORKERS))
        assert mantissa * Fraction(2) ** exponent == shifted


@pytest.mark.parametrize("seed", [0, 0x5EED0001, (1 << 32) - 1])
@pytest.mark.parametrize("rank", [0, 31])
def test_noise_keys_are_those_of_the_blocks_in_the_job(seed: int, rank: int) -> None:
    job, numbers = make_job("nat8", seed, rank, 32), [0, 1, 37, (1 << 32) - 1, (1 << 62) + 5]
    bytes_ = np.full(len(numbers), 120, np.uint8)
    table = make_table(job, bytes_, bytes_, job.for_encode.fraction_bits, np.array(numbers))
    keys = table[:, [Column.K0, Column.K1]].view(np.uint32)
    assert [tuple(key) for key in keys.tolist()] == [noise_keys.block_key(seed, rank, number) for number in numbers]


def test_results_need_no_noise() -> None:
    job = make_job("nat8")
    table = make_table(job, SCALES, REFINEMENTS, job.for_decode.fraction_bits)
    assert not table[:, [Column.K0, Column.K1]].any()
