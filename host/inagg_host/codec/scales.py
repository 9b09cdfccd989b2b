"""Scale bytes of many blocks at a time: `inagg_wire.scale.scale_byte` and `refine_byte`.

One pass over the values finds the largest magnitude of each block, as float64 bits; both bytes come from those.
"""

from __future__ import annotations

from typing import Any

from inagg_link.jit import jit
from inagg_wire.formats import DITH8_TOP
from inagg_wire.scale import SCALE_BIAS, SCALE_BYTE_MAX, SCALE_NONFINITE, SCALE_ZERO

from .bits import U8, U64, Array, largest_magnitude
from .encoder import ALL_GOOD
from .exact import FRACTION, INFINITE, double_bits, split


@jit
def largest_magnitudes(values: Array, lanes: int, fraction_bits: int, out: Array) -> None:
    """The float64 bits of the largest magnitude of each block; `INFINITE` if one is not finite.

    ``values``: the bits of floats with ``fraction_bits`` fraction bits.
    """
    for block in range(len(out)):
        largest = U64(largest_magnitude(values[block * lanes : min((block + 1) * lanes, len(values))]))
        out[block] = double_bits(largest, 8 * values.itemsize, fraction_bits)


@jit
def scale_of(bits: Any, dith8: bool, lowest: int) -> int:
    """The scale byte for a largest magnitude; ``lowest``: the least exponent of S, by format and float type."""
    if bits == U64(0):
        return SCALE_ZERO
    fraction = bits & U64(FRACTION)
    s = int(bits >> U64(52)) - 1023
    if dith8:
        # S * 127 / 128 must reach f * 2^s, with f = 1 + fraction in [1, 2). As f * 128 / 127 > 1, S is twice 2^s,
        # or four times, if f > 127 / 64.
        s += 1 if fraction <= U64((DITH8_TOP - 64) << 46) else 2
    elif fraction != U64(0):
        s += 1
    s = max(s, lowest)
    return SCALE_NONFINITE if bits >= U64(INFINITE) or s > SCALE_BYTE_MAX - SCALE_BIAS else s + SCALE_BIAS


@jit
def scale_bytes(largest: Array, dith8: bool, lowest: int, out: Array) -> None:
    for block in range(len(largest)):
        out[block] = scale_of(largest[block], dith8, lowest)


@jit
def refine_bytes(largest: Array, agreed: Array, dith8: bool, lowest: int, out: Array) -> int:
    """Returns `ALL_GOOD`, or the first block whose agreed byte is less than one's own."""
    for block in range(len(largest)):
        own, scale = scale_of(largest[block], dith8, lowest), int(agreed[block])
        if scale < own:
            return block
        q = 0
        if own == scale and SCALE_ZERO < scale <= SCALE_BYTE_MAX:
            # The magnitude (for dith8, 128/127 of it) in units of 2^(s - 9), in which V is 257 + q, is n / divisor *
            # 2^-shift. It is at most 512, and n >= 2^52, so shift >= 43 - 7; and where it is more than 56 (S has its
            # least value, and the magnitude is far less), n < 2^60 makes it less than 257 with 56, too.
            n, e = split(largest[block], 64, 52)
            divisor = U64(1)
            if dith8:
                n, divisor = U64(n << U64(7)), U64(DITH8_TOP)
            divisor = U64(divisor << U64(min(scale - SCALE_BIAS - 9 - e, 56)))
            q = max(0, int((n + divisor - U64(1)) // divisor) - 257)
        out[block] = U8(q)
    return ALL_GOOD
