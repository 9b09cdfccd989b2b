"""Scale bytes: the shared unit of a scale block, agreed on by a maximum over all workers.

A worker sends a byte that grows with the largest magnitude in the block; the switch takes the maximum (op
MAX); what comes back fixes the *unit*, the value of level 1, for all workers. Linear formats whose noise
grows with the scale (tern, dith8) send a second byte that refines it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .formats import DITH8_TOP, JobFormat
from .layout import Encoding

Floats = npt.NDArray[Any]

SCALE_BIAS: Final = 120
"""Scale byte b, 1..249, stands for S = 2**(b - 120), from 2^-119 to 2^129.

Below: 31 levels of nat8 reach from 2^-119 down to 2^-149, the smallest float32. Above: dith8's S may be up to
128/127 of the largest float32, so 2^128 is not always enough.
"""
SCALE_ZERO: Final = 0
"""All values of the block are zero, on all workers."""
SCALE_BYTE_MAX: Final = 249
SCALE_NONFINITE: Final = 255
"""Some worker has NaN, infinity, or (float64 only) a magnitude that needs an S beyond 2^129: the block is NaN on all
workers. The bytes 250 to 254 are never sent; who reads one takes it for this."""


class FloatType(Enum):
    """The float types that hosts take; ``value`` is the exponent of the smallest subnormal.

    bfloat16 arrays are uint16 arrays of its bits, since numpy has no such type.
    """

    FLOAT16 = -24
    BFLOAT16 = -133
    FLOAT32 = -149
    FLOAT64 = -1074

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of arrays of this type."""
        return _DTYPES[self]

    @property
    def fraction_bits(self) -> int:
        """Bits of the significand that are stored."""
        return {16: 10 if self is FloatType.FLOAT16 else 7, 32: 23, 64: 52}[8 * self.dtype.itemsize]

    @property
    def nan_bits(self) -> int:
        """Bits of the NaN that stands for a sum that there is not: quiet, positive, without a payload."""
        bits = 8 * self.dtype.itemsize
        return (1 << bits - 1) - (1 << self.fraction_bits - 1)


_DTYPES: Final[dict[FloatType, np.dtype[Any]]] = {
    FloatType.FLOAT16: np.dtype(np.float16),
    FloatType.BFLOAT16: np.dtype(np.uint16),
    FloatType.FLOAT32: np.dtype(np.float32),
    FloatType.FLOAT64: np.dtype(np.float64),
}


def from_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The values with these bits, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of ``values``, rounded to nearest even."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def widen(values: Floats, float_type: FloatType) -> npt.NDArray[np.float64]:
    """``values`` as float64, exactly."""
    if values.dtype != float_type.dtype:
        raise ValueError(f"{float_type.name.lower()} values come as {float_type.dtype}, not {values.dtype}")
    if float_type is FloatType.BFLOAT16:
        values = from_bfloat16(values)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return values.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Unit:
    """The value of level 1: ``mantissa * 2**exponent``, exactly; the mantissa is at most 512."""

    mantissa: int
    exponent: int

    def __float__(self) -> float:
        return self.mantissa * 2.0**self.exponent


ZERO: Final = Unit(0, 0)
"""The unit of a block that is zero everywhere."""


def _fraction_bits(fmt: JobFormat, workers: int) -> int:
    """f where the unit is a whole number of 2**(s - f): the exponents below S that a block can need."""
    if fmt.up is Encoding.DITH8:
        return 16  # V = (257 + q) * 2^(s - 9) is level 128
    return 9 if fmt.refined else fmt.top(workers).bit_length() - 1


def _reach(fmt: JobFormat, largest: float) -> tuple[int, int]:
    """The least that V may be, for a block with that ``largest`` magnitude: numerator and denominator."""
    numerator, denominator = largest.as_integer_ratio()
    if fmt.up is Encoding.DITH8:  # level 127 must reach it, level 128 is V
        return numerator * (DITH8_TOP + 1), denominator * DITH8_TOP
    return numerator, denominator


def scale_byte(fmt: JobFormat, workers: int, values: Floats, float_type: FloatType) -> int:
    """The scale byte of one block of ``values`` (1-D): the smallest S whose levels reach all of them.

    Unless the format is refined, S is never so small that a level falls below the type's subnormals: finer levels
    would gain nothing, and so all results of nat8 and nat4 are exact in the type. (A refined unit has nine bits,
    and the noise of such a format grows with S.)
    """
    largest = float(np.max(np.abs(widen(values, float_type)), initial=0.0))
    if largest == 0.0:
        return SCALE_ZERO
    if not np.isfinite(largest):
        return SCALE_NONFINITE
    numerator, denominator = _reach(fmt, largest)
    s = numerator.bit_length() - denominator.bit_length()  # 2^(s-1) < the ratio < 2^(s+1)
    s += (numerator > denominator << s) if s >= 0 else (numerator << -s > denominator)
    if not fmt.refined:
        s = max(s, float_type.value + _fraction_bits(fmt, workers))
    s = max(s, 1 - SCALE_BIAS)
    return s + SCALE_BIAS if s <= SCALE_BYTE_MAX - SCALE_BIAS else SCALE_NONFINITE


def refine_byte(fmt: JobFormat, values: Floats, float_type: FloatType, own: int, agreed: int) -> int:
    """The byte of the second MAX round of a refined format, given one's ``own`` scale byte and the ``agreed`` one.

    V = 2**(s - 1) * (257 + q) / 256 for the largest q of all workers. q fits a byte: V = 2**s, at 255, always suffices.
    Workers whose own byte is below the agreed one need no more than 2**(s - 1), and send 0. (A maximum of numbers is
    a maximum of exponents, then of mantissas.)
    """
    if own < agreed or not SCALE_ZERO < agreed <= SCALE_BYTE_MAX:
        return 0
    largest = float(np.max(np.abs(widen(values, float_type)), initial=0.0))
    numerator, denominator = _reach(fmt, largest)
    shift = 9 - (agreed - SCALE_BIAS)  # in units of 2^(s - 9), V is 257 + q
    numerator, denominator = numerator << max(shift, 0), denominator << max(-shift, 0)
    return max(0, -(-numerator // denominator) - 257)


def unit(fmt: JobFormat, workers: int, scale: int, refinement: int = 0) -> Unit | None:
    """The unit that the agreed bytes stand for: `ZERO` for a zero block, None for a non-finite one."""
    if scale == SCALE_ZERO:
        return ZERO
    if scale > SCALE_BYTE_MAX:
        return None
    return Unit(
        257 + refinement if fmt.refined else 1,
        scale - SCALE_BIAS - _fraction_bits(fmt, workers),
    )
