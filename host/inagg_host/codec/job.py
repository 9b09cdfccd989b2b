"""What the kernels need to know of a job, worked out once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from inagg_wire.formats import Family, JobFormat, admit
from inagg_wire.layout import HEADER_BYTES, LANE_BITS, LANE_COUNT_MAX, Encoding, datagram_bytes, payload_bytes
from inagg_wire.scale import SCALE_BIAS, FloatType, unit

from . import decoder, encoder
from .bits import padded

Bits = npt.NDArray[Any]  # uint16, uint32 or uint64

FRACTION_BITS: Final = {
    FloatType.FLOAT16: 10,
    FloatType.BFLOAT16: 7,
    FloatType.FLOAT32: 23,
    FloatType.FLOAT64: 52,
}

_UNSIGNED = {size: np.dtype(f"u{size}") for size in (2, 4, 8)}
_LARGEST_DATAGRAM_BYTES = HEADER_BYTES + LANE_COUNT_MAX * max(LANE_BITS.values()) // 8


@dataclass(frozen=True, slots=True)
class Job:
    """One worker's part in a job, with values of one float type.

    ``lanes`` are those of a value block, which is a scale block too. ``seed`` (32 bits) is the job's, ``rank`` is the
    worker of `inagg_wire.noise.block_key`. Raises `AdmissionError` if no job can be so, ValueError for another rank.
    """

    format: JobFormat
    workers: int
    rank: int
    lanes: int
    seed: int
    float_type: FloatType
    for_encode: encoder.Natural = field(init=False, repr=False, compare=False)
    for_decode: decoder.Result = field(init=False, repr=False, compare=False)
    for_own: decoder.Result = field(init=False, repr=False, compare=False)
    """To read contributions as `for_decode` reads results."""
    lowest_scale: int = field(init=False, repr=False, compare=False)
    """The least exponent of S."""
    datagram_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes of a contribution with values."""
    result_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes of a result with values."""
    dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    """Of the arrays of values."""
    unsigned: np.dtype[Any] = field(init=False, repr=False, compare=False)
    """Of their bits."""

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
        half = self.float_type is FloatType.FLOAT16
        down = fmt.down(workers)
        natural = fmt.family is Family.NATURAL
        sending = encoder.Natural if natural else encoder.Fixed if fmt.up is Encoding.FIX32 else encoder.Linear
        receiving = decoder.NaturalResult if natural else decoder.LinearResult
        values: dict[str, object] = {
            "for_encode": sending(
                lanes=lanes,
                payload_bytes=payload_bytes(fmt.up, lanes),
                encoding=int(fmt.up),
                half=half,
                top=fmt.top(workers),
                fraction_bits=fraction_bits,
                seed=self.seed,
                worker=self.rank,
            ),
            "for_decode": receiving(
                lanes=lanes,
                payload_bytes=payload_bytes(down, lanes),
                encoding=int(down),
                half=half,
                top=fmt.result_levels(workers),
                refined=fmt.refined,
                fraction_bits=fraction_bits - fmt.result_shift(workers),
            ),
            "for_own": receiving(
                lanes=lanes,
                payload_bytes=payload_bytes(fmt.up, lanes),
                encoding=int(fmt.up),
                half=half,
                top=fmt.levels(workers),
                refined=fmt.refined,
                fraction_bits=fraction_bits,
            ),
            # As `inagg_wire.scale.scale_byte` has it: no level below the type's subnormals, unless it is refined.
            "lowest_scale": max(1 - SCALE_BIAS, -2000 if fmt.refined else self.float_type.value + fraction_bits),
        }
        values |= {
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

    def room(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
        """What the kernels need for use inside: ``room`` and ``codes``."""
        lanes = padded(self.lanes)
        return np.empty(2 * lanes, np.uint32), np.empty(lanes, np.uint8)

    def bits(self, values: npt.NDArray[Any]) -> Bits:
        """``values`` as unsigned integers, a view. Raises ValueError if they are not what the job and the kernels
        take: one-dimensional, contiguous, aligned, of the float type in the machine's byte order."""
        if values.dtype != self.dtype:
            raise ValueError(f"{values.dtype} values, not {self.dtype} ({self.float_type.name.lower()})")
        if values.ndim != 1 or not values.flags.c_contiguous or not values.flags.aligned:
            raise ValueError("values must be one-dimensional, contiguous and aligned")
        return values.view(self.unsigned)
