"""What all makers share: values as bit patterns, and a source of numbers that never changes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_wire.formats import JobFormat
from inagg_wire.scale import Floats, FloatType, Unit, refine_byte, scale_byte, unit

Vector = dict[str, Any]

MANTISSA_BITS = {FloatType.FLOAT16: 10, FloatType.BFLOAT16: 7, FloatType.FLOAT32: 23, FloatType.FLOAT64: 52}
BITS = {FloatType.FLOAT16: 16, FloatType.BFLOAT16: 16, FloatType.FLOAT32: 32, FloatType.FLOAT64: 64}
BIAS = {FloatType.FLOAT16: 15, FloatType.BFLOAT16: 127, FloatType.FLOAT32: 127, FloatType.FLOAT64: 1023}


def integer_dtype(float_type: FloatType) -> np.dtype[Any]:
    """Unsigned integers as wide as the floats."""
    return np.dtype(f"u{BITS[float_type] // 8}")


def from_bits(bits: Iterable[int], float_type: FloatType) -> Floats:
    """Floats (bfloat16: uint16) of the given bit patterns."""
    return np.array(list(bits), integer_dtype(float_type)).view(float_type.dtype)


def to_hex(values: Floats) -> list[str]:
    """The bit pattern of each value, as hex digits."""
    digits = values.dtype.itemsize * 2
    return [f"{int(b):0{digits}x}" for b in values.view(f"u{values.dtype.itemsize}")]


def words_hex(words: Iterable[int]) -> list[str]:
    """32-bit words as hex digits."""
    return [f"{int(w):08x}" for w in words]


def truncated(value: float, float_type: FloatType) -> int:
    """The bits of ``value`` in ``float_type``, rounded towards zero, so that it stays within a scale."""
    if float_type is FloatType.BFLOAT16:
        return truncated(value, FloatType.FLOAT32) >> 16
    narrow = np.array([value]).astype(float_type.dtype)
    bits = int(narrow.view(integer_dtype(float_type))[0])
    return bits - (abs(float(narrow[0])) > abs(value))


def cast(values: Sequence[float], float_type: FloatType) -> Floats:
    """``values`` in ``float_type``, rounded towards zero."""
    return from_bits([truncated(v, float_type) for v in values], float_type)


def random_floats(rng: random.Random, count: int, float_type: FloatType, low: int, high: int) -> Floats:
    """Values of random sign and mantissa with exponents ``low`` to ``high``: magnitudes below 2**(high + 1)."""
    mantissa_bits, bias = MANTISSA_BITS[float_type], BIAS[float_type]
    return from_bits(
        (
            rng.getrandbits(1) << (BITS[float_type] - 1)
            | max(0, bias + rng.randrange(low, high + 1)) << mantissa_bits  # 0: a subnormal
            | rng.getrandbits(mantissa_bits)
            for _ in range(count)
        ),
        float_type,
    )


def random_values(rng: random.Random, count: int, float_type: FloatType, largest: int = 0) -> Floats:
    """Values as a gradient has them: a few near 2**largest, most some octaves below, a zero."""
    exponents = [largest - min(12, int(rng.random() ** 2 * 13)) for _ in range(count)]
    parts = [random_floats(rng, 1, float_type, e, e) for e in exponents]
    values: npt.NDArray[Any] = np.concatenate(parts)
    values[rng.randrange(count)] = 0
    return values


def agree(
    fmt: JobFormat, float_type: FloatType, blocks: Sequence[Floats]
) -> tuple[list[int], int, list[int] | None, int, Unit | None]:
    """A whole scale round over one block of each worker: own bytes, agreed byte, refinements, agreed, unit."""
    own = [scale_byte(fmt, len(blocks), block, float_type) for block in blocks]
    agreed = max(own)
    refinements = None
    if fmt.refined:
        refinements = [refine_byte(fmt, b, float_type, o, agreed) for b, o in zip(blocks, own, strict=True)]
    refinement = max(refinements or [0])
    return own, agreed, refinements, refinement, unit(fmt, len(blocks), agreed, refinement)


def unit_json(u: Unit | None) -> Vector | None:
    """A unit as it stands in the files; null is the unit of a non-finite block."""
    return None if u is None else {"mantissa": u.mantissa, "exponent": u.exponent}
