"""Natural compression: a sign and an exponent (Horvath et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from .base import Aggregation, Bound, Compressor, Floats, Unbiased, check
from .codes import Codes, pack, unpack
from .key import Key

NATURAL_W = 1 / 8
"""E C(x)^2 / x^2 = (1 + 3m) / (1 + m)^2 for the mantissa 1 + m, and that is at most 9/8, at m = 1/3."""

LAYOUT = {np.dtype(np.float32): (np.uint32, 23, 9), np.dtype(np.float64): (np.uint64, 52, 12)}
"""Bits as what, fraction bits, and bits of a code: sign and exponent."""


@dataclass(frozen=True, slots=True)
class Natural(Compressor):
    """C_nat: each value to one of the two powers of two around it, unbiased. 9 bits a float32, 12 a float64.

    Magnitudes below the smallest normal number become it or zero; those above the largest power of two it or infinity.
    Through the switch it is the job's format: levels, rounding and noise are those of `inagg_wire.codec`.
    """

    name: ClassVar[str] = "natural"
    aggregation = Aggregation.SUM  # the switch sums integers, and rounds the sum to a power of two
    formats = ("nat8",)  # which has the exponents of 31 octaves; nat4 has 7: natural dithering, and another bound

    def bound(self, d: int) -> Bound:
        """B(1/8)."""
        return Unbiased(NATURAL_W)

    def compress(self, x: Floats, key: Key) -> bytes:
        """Add noise below the exponent and drop what is there: ``(bits + noise) >> fraction bits``."""
        unsigned, fraction_bits, width = LAYOUT[check(x).dtype]
        bits = np.ascontiguousarray(x).view(unsigned)
        if fraction_bits == 23:
            noise = key.words(x.size) >> np.uint32(9)
        else:
            noise = key.words(x.size).astype(np.uint64) << np.uint64(20)
            noise |= key.words(x.size, 1).astype(np.uint64) >> np.uint64(12)
        return pack(((bits + noise) >> unsigned(fraction_bits)).astype(np.uint32), width)

    def decompress(self, data: bytes, d: int, dtype: npt.DTypeLike) -> Floats:
        """Exact. A negative zero becomes zero."""
        unsigned, fraction_bits, width = LAYOUT[np.dtype(dtype)]
        codes: Codes = unpack(data, d, width)
        powers: Floats = (codes.astype(unsigned) << unsigned(fraction_bits)).view(dtype)
        powers += powers.dtype.type(0)
        return powers
