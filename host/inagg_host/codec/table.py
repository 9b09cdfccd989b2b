"""The table from which a device's kernels know each block: a row of integers, of its agreed bytes and its noise key."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_link.jit import jit
from inagg_wire.scale import SCALE_BIAS, SCALE_BYTE_MAX, SCALE_ZERO

from .bits import Array, block_key
from .job import Job

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class Column(IntEnum):
    """Columns of a table, which is int32."""

    STATE = 0
    EXPONENT = 1
    """Exponent of the unit, which is MANTISSA * 2**EXPONENT."""
    MANTISSA = 2
    K0 = 3
    """The noise key; the bits of uint32."""
    K1 = 4


class State(IntEnum):
    """Treatment of a block."""

    CODED = 0
    ZERO = 1  # all values are zero, on all ranks
    NAN = 2  # on all ranks


COLUMNS = len(Column)
STATE, EXPONENT, MANTISSA, K0, K1 = (int(column) for column in Column)
CODED, ZERO, NAN = (int(state) for state in State)


@jit
def write_unit(table: Array, row: int, scale: int, refinement: int, refined: bool, fraction_bits: int) -> None:
    """State and unit of a block. ``table``: int32, all rows one after the other."""
    at = row * COLUMNS
    state = CODED
    if scale == SCALE_ZERO:
        state = ZERO
    elif scale > SCALE_BYTE_MAX:
        state = NAN
    table[at + STATE] = state
    table[at + EXPONENT] = scale - (SCALE_BIAS + fraction_bits)
    table[at + MANTISSA] = 257 + refinement if refined else 1


@jit
def write_key(table: Array, row: int, seed: int, rank: int, number: int) -> None:
    """The noise key of block ``number`` of the job."""
    k0, k1 = block_key(seed, rank, number)
    table[row * COLUMNS + K0], table[row * COLUMNS + K1] = np.int32(k0), np.int32(k1)


def make_table(
    job: Job, scales: Bytes, refinements: Bytes, fraction_bits: int, numbers: Integers | None = None
) -> npt.NDArray[np.int32]:
    """A row for each of the agreed ``scales`` and ``refinements``, of the same blocks.

    ``fraction_bits``: of ``job.for_encode`` or ``job.for_decode``. ``numbers``: of the blocks in the job, for the noise
    of contributions.
    """
    table = np.zeros((scales.size, COLUMNS), np.int32)
    keys: Any = np.zeros(0, np.int64) if numbers is None else numbers
    _fill(table.reshape(-1), scales, refinements, job.refined, fraction_bits, keys, job.seed, job.rank)
    return table


@jit
def _fill(
    table: Array, scales: Array, refinements: Array, refined: bool, fraction_bits: int, numbers: Array, seed: int,
    rank: int,
) -> None:  # fmt: skip
    for row in range(len(scales)):
        write_unit(table, row, int(scales[row]), int(refinements[row]), refined, fraction_bits)
        if len(numbers) > 0:
            write_key(table, row, seed, rank, numbers[row])
