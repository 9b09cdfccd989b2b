"""A job as the kernels need to know it, worked out once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_wire.formats import Family, JobFormat, admit
from inagg_wire.layout import HEADER_BYTES, LANE_BITS, LANE_COUNT_MAX, Encoding, datagram_bytes, payload_bytes
from inagg_wire.scale import SCALE_BIAS, FloatType, unit

from ..errors import array_text
from .coding import Coding, Fixed, Linear, Natural

Bits = npt.NDArray[Any]  # uint16, uint32 or uint64

_UNSIGNED = {size: np.dtype(f"u{size}") for size in (2, 4, 8)}
_LARGEST_DATAGRAM_BYTES = HEADER_BYTES + LANE_COUNT_MAX * max(LANE_BITS.values()) // 8


@dataclass(frozen=True, slots=True)
class Job:
    """One worker's part in a job, with values of one float type.

    ``lanes`` are those of a value block, which is a scale block too. ``seed`` (32 bits) is the job's, ``rank`` is the
    worker of `inagg_wire.noise_keys.block_key`. Raises `AdmissionError` if no job can be so, ValueError for another
    rank.
    """

    format: JobFormat
    workers: int
    rank: int
    lanes: int
    seed: int
    float_type: FloatType
    for_encode: Coding = field(init=False, repr=False, compare=False)
    """Coding of contributions, which this worker's kernels write, and read to know what they stand for."""
    for_decode: Coding = field(init=False, repr=False, compare=False)
    """Coding of results, of the same class."""
    lowest_scale: int = field(init=False, repr=False, compare=False)
    """The least exponent of S."""
    datagram_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes of a contribution with values."""
    result_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes of a result with values."""
    dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    """Type of the arrays of values."""
    unsigned: np.dtype[Any] = field(init=False, repr=False, compare=False)
    """Type of the values' bits."""

    def __post_init__(self) -> None:
        fmt, workers, lanes = self.format, self.workers, self.lanes
        admit(fmt, workers, lanes, _LARGEST_DATAGRAM_BYTES)  # whether a datagram may be so large is for others to say
        if not 0 <= self.rank < workers:
            raise ValueError(f"rank {self.rank} of {workers} workers")
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed {self.seed}, not of 32 bits")
        of_one = unit(fmt, workers, SCALE_BIAS)
        assert of_one is not None
        fraction_bits = -of_one.exponent
        down = fmt.down(workers)
        fixed = fmt.up is Encoding.FIX32
        kind = Natural if fmt.family is Family.NATURAL else Fixed if fixed else Linear

        def coding(encoding: Encoding, top: int, fraction_bits: int) -> Coding:
            half, size = self.float_type is FloatType.FLOAT16, payload_bytes(encoding, lanes)
            return kind(lanes, size, int(encoding), half, top, fmt.refined, fraction_bits, self.seed, self.rank)

        values: dict[str, object] = {
            "for_encode": coding(fmt.up, fmt.levels(workers), fraction_bits),
            "for_decode": coding(down, fmt.result_levels(workers), fraction_bits - fmt.result_shift(workers)),
            # As `inagg_wire.scale.scale_byte` has it: no level below the type's subnormals, unless it is refined.
            "lowest_scale": max(1 - SCALE_BIAS, -2000 if fmt.refined else self.float_type.value + fraction_bits),
            "datagram_bytes": datagram_bytes(fmt.up, lanes),
            "result_bytes": datagram_bytes(down, lanes),
            "dtype": self.float_type.dtype,
            "unsigned": _UNSIGNED[self.float_type.dtype.itemsize],
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def refined(self) -> bool:
        """Whether there is a second MAX round."""
        return self.format.refined

    @property
    def dith8(self) -> bool:
        """Whether contributions are dith8, whose scale must be 128/127 of the largest magnitude."""
        return self.format.up is Encoding.DITH8

    @property
    def drafts(self) -> bool:
        """Whether `drafts.draft_blocks` can begin its blocks."""
        return self.format.up is Encoding.NAT8 and self.float_type is FloatType.FLOAT32

    def blocks(self, elements: int) -> int:
        """Blocks of a tensor of ``elements`` elements; the last may be partial."""
        return -(-elements // self.lanes)

    def bits(self, values: npt.NDArray[Any]) -> Bits:
        """``values`` as unsigned integers, a view. Raises ValueError if they are not what the job and the kernels
        take: one-dimensional, contiguous, aligned, of the float type in the machine's byte order."""
        if values.dtype != self.dtype:
            raise ValueError(f"{values.dtype} values, not {self.dtype} ({self.float_type.name.lower()})")
        if values.ndim != 1 or not values.flags.c_contiguous:
            raise ValueError(f"values must be one-dimensional and contiguous, not {array_text(values)}")
        if not values.flags.aligned:  # which np.ascontiguousarray leaves as it is
            raise ValueError(
                f"values are {array_text(values)}, not aligned to {values.dtype.alignment} bytes in memory: give a "
                "copy, which is (.copy(), or .clone() of a tensor)"
            )
        return values.view(self.unsigned)
