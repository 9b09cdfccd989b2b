"""The table from which a device's kernels know each block: a row of integers, of its agreed bytes and its noise key."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from inagg_link.jit import jit
from inagg_wire.scale import SCALE_BIAS, SCALE_BYTE_MAX, SCALE_ZERO

from .bits import Array, block_key


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
