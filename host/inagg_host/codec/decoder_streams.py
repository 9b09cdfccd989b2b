"""The loops of the decoders once more, for sums that go past the caches (`past_caches`): of float32, where nothing is
unusual, and with the division in the same pass, since what is written so is not to be read again soon.

To be followed by `inagg_link.simd.fence`. The bits are those of `decoder_loops` and `decoder.divide`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import by_types, jit
from inagg_link.simd import (
    LANES,
    float_of,
    float_product,
    float_quotient,
    float_sum,
    larger,
    largest,
    load,
    load_signed,
    splat,
    stream,
)

from .bits import U32, Array, as_float, bits_of, power_of_two
from .decoder_loops import are_normal, are_normal_integers, highest_level, integers_floats, natural_floats


@by_types
def stream_natural(out: Any, codes: Any, exponent: Any, top: Any, divisor: Any) -> Any:
    """Codes of nat8 with a unit of 2**``exponent``, divided, as bits. False where `decoder_loops.from_natural` must do
    it: it writes over what was written."""

    def to32(out: Array, codes: Array, exponent: int, top: int, divisor: int) -> bool:
        if not are_normal(exponent, top):
            return False
        unit = np.float32(power_of_two(exponent + 126))
        whole, highest = stream_vectors(out, codes, unit, divisor)
        rest = len(out) - whole
        natural_floats(out[whole:], codes[whole:], unit)
        divide_rest(out, whole, divisor)
        return highest >> 23 <= top and highest_level(codes[whole:], rest) <= top

    return to32 if out.dtype.bitwidth == 32 else lambda out, codes, exponent, top, divisor: False


@by_types
def stream_integers(out: Any, integers: Any, mantissa: Any, exponent: Any, divisor: Any) -> Any:
    """``integers`` (int32) times ``mantissa`` * 2**``exponent``, divided, as bits. False, and nothing is written, where
    `decoder_loops.from_integers` must do it."""

    def to32(out: Array, integers: Array, mantissa: int, exponent: int, divisor: int) -> bool:
        if not are_normal_integers(exponent):
            return False
        unit = np.float32(mantissa * power_of_two(exponent))
        whole, _ = stream_vectors(out, integers.view(np.uint32), unit, divisor)
        integers_floats(out[whole:], integers[whole:], unit)
        divide_rest(out, whole, divisor)
        return True

    return to32 if out.dtype.bitwidth == 32 else lambda out, integers, mantissa, exponent, divisor: False


@jit
def stream_vectors(out: Array, numbers: Array, unit: Any, divisor: int) -> tuple[int, int]:
    """Decode whole vectors; return how many elements those are, and the largest second result of `vector_of`."""
    whole, most = len(out) // LANES * LANES, splat(U32(0))
    units, by = splat(bits_of(unit)), np.float32(divisor)
    if divisor & (divisor - 1) == 0:  # to multiply by its inverse is as exact, and takes a third of the time
        factors = splat(bits_of(np.float32(np.float32(1) / by)))
        for i in range(0, whole, LANES):
            values, levels = vector_of(numbers, i, units)
            stream(out, i, float_product(values, factors))
            most = larger(most, levels)
    else:
        divisors = splat(bits_of(by))
        for i in range(0, whole, LANES):
            values, levels = vector_of(numbers, i, units)
            stream(out, i, float_quotient(values, divisors))
            most = larger(most, levels)
    return whole, int(largest(most))


@by_types
def vector_of(numbers: Any, at: Any, units: Any) -> Any:
    """Eight of ``numbers`` from ``at`` on, codes of nat8 or integers as uint32, as `natural_floats` and
    `integers_floats` make them. And the levels of codes, times 2^23; of integers, which have none, zero."""

    def of_codes(numbers: Array, at: int, units: Any) -> tuple[Any, Any]:
        shifted = load_signed(numbers, at) << U32(23)
        values = float_product(shifted & U32(0xBFFFFFFF), units)
        return float_sum(values, splat(U32(0))), shifted & U32(0x3F800000)

    def of_integers(numbers: Array, at: int, units: Any) -> tuple[Any, Any]:
        return float_product(float_of(load(numbers, at)), units), splat(U32(0))

    return {8: of_codes, 32: of_integers}[numbers.dtype.bitwidth]


@jit
def divide_rest(out: Array, whole: int, divisor: int) -> None:
    """The elements after the first ``whole`` ones."""
    by = np.float32(divisor)
    for i in range(whole, len(out)):
        out[i] = bits_of(np.float32(as_float(out[i]) / by))
