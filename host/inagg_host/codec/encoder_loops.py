"""The loops of the encoders: one block's floats to codes, one byte (or for fix32 one word) a lane.

Each returns ``largest``, the bits of the largest magnitude, and ``tie``: nonzero if word 0 of the noise might not have
decided some lane (it is enough that p's top 32 bits are the complement of word 0), which a run in 2**32 / lanes shows.
The caller then has the block done again by `exact`. Terms are those of `inagg_wire.codec`.

``noise`` is word 0 of each lane. ``bits`` may be of float32 or float64. A block of float32 has no subnormals that
matter: see `stage` in `encoder`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import by_types, jit, shift_right

from .bits import I32, I64, U8, U32, U64, Array, as_float, magnitude_of, swapped


@jit
def natural32(out: Array, bits: Array, noise: Array, unit_field: int, sign: int) -> tuple[Any, Any]:
    sign_bit, below_first = U32(sign), I32(1 - unit_field)
    largest, tie = U32(0), U32(0)
    for i in range(len(bits)):
        b = bits[i]
        magnitude = U32(b & U32(0x7FFFFFFF))
        complement = U32(~noise[i])
        level = I32(I32(magnitude >> U32(23)) + below_first)  # 1 at the unit, 0 and less below
        # With t the significand at the top of 32 bits: p is what follows its leading one or, below the unit, itself,
        # further down.
        t = U32(U32(magnitude << U32(8)) | U32(0x80000000))
        by = U32(I32(-level))
        p = U32(t << U32(1))
        if level <= I32(0):
            p = shift_right(t, by) if by < U32(32) else U32(0)
        floor = U32(max(level, I32(0)))
        code = U32(floor + U32(1)) if p > complement else floor
        tie = U32(1) if p == complement else tie
        largest = max(largest, magnitude)
        signed = U32(code | U32(U32(I32(b) >> I32(31)) & sign_bit))
        out[i] = U8(signed if code != U32(0) else U32(0))
    return largest, tie


@jit
def natural64(out: Array, bits: Array, noise: Array, unit_field: int, sign: int) -> tuple[Any, Any]:
    sign_bit, below_first = U64(sign), I64(1 - unit_field)
    largest, tie = U64(0), U32(0)
    for i in range(len(bits)):
        b = bits[i]
        magnitude = U64(b & U64(0x7FFFFFFFFFFFFFFF))
        complement = U64(U32(~noise[i]))
        level = I64(I64(magnitude >> U64(52)) + below_first)
        t = U64((magnitude << U64(11)) | U64(1 << 63))
        by = U64(32 - level)
        p = U64((magnitude >> U64(20)) & U64(0xFFFFFFFF))
        if level <= 0:
            p = U64(t >> by) if by < U64(64) else U64(0)
        floor = U64(max(level, I64(0)))
        code = U64(floor + U64(1)) if p > complement else floor
        tie = U32(1) if p == complement else tie
        largest = max(largest, magnitude)
        signed = U64(code | (U64(I64(b) >> I64(63)) & sign_bit))
        out[i] = U8(signed if code != U64(0) else U64(0))
    return largest, tie


@by_types
def natural(out: Any, bits: Any, noise: Any, unit_field: Any, sign: Any) -> Any:
    """Levels that are powers of two, with ``sign`` the code's sign bit.

    ``unit_field``: the exponent field that the unit has in the type of ``bits``, at least 1.
    """
    loops: dict[int, Any] = {32: natural32, 64: natural64}
    return loops[bits.dtype.bitwidth].py_func


@jit
def inverse_of(mantissa: int) -> float:
    """1 / ``mantissa`` made larger by 2**-51 to 2**-49 of itself: by 2**-50, and two roundings of 2**-53 at most."""
    return (1.0 / mantissa) * (1.0 + 2.0**-50)


@jit
def steps(x: float, per_unit: float, inverse: float) -> tuple[Any, Any]:
    """floor(y) and the top 32 bits of y - floor(y), for y = ``x`` / (M * 2**e) below 2**7.

    ``per_unit`` is 2**(32 - e). a = floor(x * per_unit) is exact, an integer below 2**39 * M <= 2**48. Wanted is a / M,
    rounded down. ``inverse`` is `inverse_of` M, so a * inverse, after its own rounding, is larger than a / M by more
    than nothing and less than 2**-48 of itself. But a / M is either an integer, or less than the next one by 1 / M or
    more, which is 1 / a > 2**-48 of itself. So the product rounds down to the same.
    """
    scaled = np.floor(np.floor(x * per_unit) * inverse)
    whole = np.floor(scaled * 2.0**-32)
    return I32(whole), U32(scaled - whole * 2.0**32)


@jit
def linear8(out: Array, bits: Array, noise: Array, per_unit: float, inverse: float) -> tuple[Any, Any]:
    """Levels that are multiples of a unit of up to ten bits, in two's complement. Arguments: see `steps`."""
    largest, tie = magnitude_of(bits[0]), U32(0)
    for i in range(len(bits)):
        x = np.float64(as_float(bits[i]))
        complement = U32(~noise[i])
        floor, p = steps(abs(x), per_unit, inverse)
        level = I32(floor + I32(1)) if p > complement else floor
        tie = U32(1) if p == complement else tie
        largest = max(largest, magnitude_of(bits[i]))
        out[i] = U8(I32(-level) if x < 0 else level)
    return largest, tie


@jit
def linear32(words: Array, bits: Array, noise: Array, per_unit: float) -> tuple[Any, Any]:
    """Levels that are multiples of 1 / ``per_unit``, a power of two, below 2**31, as big-endian words."""
    largest, tie = magnitude_of(bits[0]), U32(0)
    for i in range(len(bits)):
        x = np.float64(as_float(bits[i]))
        complement = U32(~noise[i])
        y = abs(x) * per_unit
        whole = np.floor(y)
        p = U32((y - whole) * 2.0**32)
        floor = I32(whole)
        level = I32(floor + I32(1)) if p > complement else floor
        tie = U32(1) if p == complement else tie
        largest = max(largest, magnitude_of(bits[i]))
        words[i] = swapped(U32(I32(-level) if x < 0 else level))
    return largest, tie


@jit
def pack(payload: Array, codes: Array, natural: bool) -> None:
    """Codes of a byte each to two (``natural``: nat4) or four (tern) a byte, the first in the most significant bits."""
    if natural:
        for i in range(len(payload)):
            payload[i] = U8((U32(codes[2 * i]) << U32(4)) | U32(codes[2 * i + 1]))
    else:
        for i in range(len(payload)):
            high = (U32(codes[4 * i]) & U32(3)) << U32(6) | (U32(codes[4 * i + 1]) & U32(3)) << U32(4)
            payload[i] = U8(high | (U32(codes[4 * i + 2]) & U32(3)) << U32(2) | (U32(codes[4 * i + 3]) & U32(3)))
