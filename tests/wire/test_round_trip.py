"""A whole all-reduce through every format, for every float type and number of workers, within its stated error.

The bounds per lane, in units u of the job, with x_i the input of worker i and V the sum that comes back:

- up, natural: a code is one of the two levels around |x|, which are as far apart as the lower one, or u below it. So
  |error| < max(|x_i|, u).
- up, linear: |error| < u.
- down, natural: |error| < max(|sum|, lowest level of the window), and the sum is within the same distance of V:
  |error| <= max(|V|, 2^c u). 2^c is 1 for nat8 results.
- down, dith8: |error| < 2^c u. Exact results: 0.
- then one rounding to the float type: half a unit in the last place, which nat8 and nat4 results do not need.

What u is worth, with A the largest magnitude over all workers and S <= 2 A (or where the subnormals of the type hold it
up): nat8 u = S / 2^(L - 1); nat4 u = S / 64; tern u <= A (1 + 1/256); dith8 u <= A (1 + 1/256) / 127;
fix32 u = S / 2^(30 - c).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from tests.wire.exact import (
    ALL_FORMATS,
    SHAPES,
    Outcome,
    all_reduce,
    bfloat16,
    fractions,
    named,
    smallest,
    unit_value,
)

from inagg_wire.formats import Family, JobFormat, ceil_log2
from inagg_wire.scale import Floats, FloatType

WORKERS = (1, 2, 3, 7, 8, 32)
LANES = 64

by_format = pytest.mark.parametrize("fmt", ALL_FORMATS, ids=named)
by_type = pytest.mark.parametrize("float_type", FloatType, ids=named)
by_workers = pytest.mark.parametrize("workers", WORKERS)


def gradients(workers: int, float_type: FloatType, scale: float = 0.01) -> list[Floats]:
    """Normal values over several octaves, with zeros, lanes that cancel, and one worker with all the magnitude."""
    rng = np.random.default_rng(workers)
    listed = []
    for worker in range(workers):
        x = (rng.normal(size=LANES) * scale * 2.0 ** rng.integers(-6, 1, LANES)).astype(np.float32)
        x[0] = 0.0
        x[1] = scale if worker == 0 else 0.0
        x[2] = scale * (-1) ** worker
        listed.append(bfloat16(x) if float_type is FloatType.BFLOAT16 else x.astype(float_type.dtype))
    return listed


def error_bound(
    fmt: JobFormat, outcome: Outcome, inputs: list[Fraction], result: int, float_type: FloatType
) -> Fraction:
    """The stated bound for one lane; ``result`` in units."""
    assert outcome.unit is not None
    unit, shift = unit_value(outcome.unit), fmt.result_shift(len(inputs))
    if fmt.family is Family.NATURAL:
        bound = sum((max(abs(x), unit) if x else Fraction(0) for x in inputs), Fraction(0))
        return bound + max(abs(result), 1 << shift) * unit
    bound = unit * len(inputs) + (unit * (1 << shift) if fmt.reduced else 0)
    grain = abs(result * unit) / (1 << SHAPES[float_type].mantissa_bits)
    return bound + max(grain, smallest(float_type)) / 2


@by_workers
@by_type
@by_format
def test_result_is_the_sum_within_the_stated_error(fmt: JobFormat, float_type: FloatType, workers: int) -> None:
    blocks = gradients(workers, float_type)
    outcome = all_reduce(fmt, blocks, float_type)
    exact = list(zip(*(fractions(b, float_type) for b in blocks), strict=True))
    decoded = fractions(outcome.decoded, float_type)
    for inputs, got, result in zip(exact, decoded, outcome.result.tolist(), strict=True):
        assert abs(got - sum(inputs)) <= error_bound(fmt, outcome, list(inputs), result, float_type)


@by_workers
@by_format
def test_unit_is_as_fine_as_stated(fmt: JobFormat, workers: int) -> None:
    for float_type in (FloatType.FLOAT32, FloatType.FLOAT64, FloatType.BFLOAT16):
        blocks = gradients(workers, float_type)
        largest = max(abs(x) for b in blocks for x in fractions(b, float_type))
        outcome = all_reduce(fmt, blocks, float_type)
        assert outcome.unit is not None
        scale = unit_value(outcome.unit) * fmt.top(workers)
        assert largest <= scale
        assert scale <= (largest * Fraction(257, 256) if fmt.refined else 2 * largest)


@by_workers
@by_format
def test_result_is_the_re_encoded_sum_of_what_was_sent(fmt: JobFormat, workers: int) -> None:
    """Up to the window of the result, nothing is lost between encoder and decoder."""
    outcome = all_reduce(fmt, gradients(workers, FloatType.FLOAT32), FloatType.FLOAT32)
    total = sum(outcome.sent)
    if not fmt.reduced:
        assert (outcome.result == total).all()
    elif fmt.family is Family.NATURAL:
        floor = 1 << fmt.result_shift(workers)
        assert (np.abs(outcome.result - total) < np.maximum(np.abs(total), floor)).all()
    else:
        assert (np.abs(outcome.result - total) < 1 << ceil_log2(workers)).all()


@by_type
@by_format
def test_every_worker_that_repeats_a_block_gets_the_same_bytes(fmt: JobFormat, float_type: FloatType) -> None:
    blocks = gradients(3, float_type)
    first, second = (all_reduce(fmt, blocks, float_type, seed=9, block=77) for _ in range(2))
    assert first.decoded.tobytes() == second.decoded.tobytes()


@pytest.mark.parametrize("name", ["nat8", "nat4", "nat4-nat8", "tern", "dith8"])
def test_another_block_is_rounded_otherwise(name: str) -> None:
    fmt = next(f for f in ALL_FORMATS if f.name == name)
    blocks = gradients(3, FloatType.FLOAT32)
    assert len({all_reduce(fmt, blocks, FloatType.FLOAT32, block=b).decoded.tobytes() for b in range(4)}) == 4


@by_workers
@pytest.mark.parametrize(
    ("name", "up", "down"),
    [
        ("nat8", 1.0, 1.0),
        ("nat4", 0.5, 0.5),
        ("nat4-nat8", 0.5, 1.0),
        ("tern", 0.25, None),
        ("dith8", 1.0, 1.0),
        ("dith8-exact", 1.0, 2.0),
        ("fix32", 4.0, 4.0),
    ],
)
def test_measured_bytes_per_element(name: str, up: float, down: float | None, workers: int) -> None:
    fmt = next(f for f in ALL_FORMATS if f.name == name)
    outcome = all_reduce(fmt, gradients(workers, FloatType.FLOAT32), FloatType.FLOAT32)
    if down is None:
        down = 0.5 if workers <= 7 else 1.0
    assert (outcome.up_bytes / LANES, outcome.down_bytes / LANES) == (up, down)
