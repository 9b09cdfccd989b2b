"""What the device's kernels must know of each block: a row of integers, made on the host and copied down."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from inagg_host.codec import Job
from inagg_wire.noise import GAMMA, MIX_1, MIX_2
from inagg_wire.scale import SCALE_BIAS, SCALE_BYTE_MAX, SCALE_ZERO

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class Column(IntEnum):
    """Of a table, which is int32."""

    STATE = 0
    EXPONENT = 1
    """Of the unit, which is MANTISSA * 2**EXPONENT."""
    MANTISSA = 2
    K0 = 3
    """The noise key; the bits of uint32."""
    K1 = 4


class State(IntEnum):
    """What becomes of a block."""

    CODED = 0
    ZERO = 1  # all values are zero, on all ranks
    NAN = 2  # on all ranks


def make_table(
    job: Job, scales: Bytes, refinements: Bytes | None, fraction_bits: int, numbers: Integers | None = None
) -> npt.NDArray[np.int32]:
    """A row for each of the agreed ``scales`` (and ``refinements``, of the same blocks, in a refined format).

    ``fraction_bits``: of ``job.for_encode`` or ``job.for_decode``. ``numbers``: of the blocks in the job, for the noise
    of contributions.
    """
    table = np.zeros((scales.size, len(Column)), np.int32)
    table[:, Column.STATE] = np.where(
        scales == SCALE_ZERO, State.ZERO, np.where(scales > SCALE_BYTE_MAX, State.NAN, State.CODED)
    )
    table[:, Column.EXPONENT] = scales.astype(np.int32) - (SCALE_BIAS + fraction_bits)
    table[:, Column.MANTISSA] = 1
    if job.refined:
        assert refinements is not None
        table[:, Column.MANTISSA] = 257 + refinements.astype(np.int32)
    if numbers is not None:
        table[:, Column.K0 : Column.K1 + 1] = block_keys(job.seed, job.rank, numbers)
    return table


def block_keys(seed: int, rank: int, numbers: Integers) -> npt.NDArray[np.int32]:
    """`inagg_wire.noise.block_key` of many blocks: (blocks, 2), the bits of uint32."""
    start = np.array([((seed << 32) + rank + GAMMA) & ((1 << 64) - 1)], np.uint64)
    z = _mix64(_mix64(start) ^ numbers.astype(np.uint64))
    low, high = (z & np.uint64(0xFFFFFFFF)).astype(np.uint32), (z >> np.uint64(32)).astype(np.uint32)
    return np.stack([low, high], axis=1).view(np.int32)


def _mix64(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    return z ^ (z >> np.uint64(31))


FLOATS: dict[int, Any] = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer type of as many bytes as a float."""
