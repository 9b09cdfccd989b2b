"""Parts that the kernels share: 32-bit operations that vectorize, the noise, and widening to float32.

Everything here works on the bits of floats as integers. So the results do not depend on the processor's flush-to-zero
mode, which a training script may have set (`torch.set_flush_denormal`), and two ranks agree even if one has.

Numba widens each integer operation to 64 bits, which would halve the lanes of a vector; hence the explicit types.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from inagg_link.jit import by_types, jit
from inagg_link.native import mixed
from inagg_link.simd import LANES, counting, rearranged, store
from inagg_wire.noise import MULTIPLIER_1, MULTIPLIER_2, SHARING, VECTOR, WORD_SHIFT
from inagg_wire.noise_keys import GAMMA

U8, U16, U32, I32, U64, I64 = np.uint8, np.uint16, np.uint32, np.int32, np.uint64, np.int64
Array = Any  # a numpy array, inside a kernel


@jit
def swapped(w: Any) -> Any:
    """The bytes of a uint32 in the other order: the wire is big-endian, all machines that Numba knows are not."""
    return U32((w >> U32(24)) | ((w >> U32(8)) & U32(0xFF00)) | ((w << U32(8)) & U32(0xFF0000)) | (w << U32(24)))


# --- noise: inagg_wire.noise ---


@jit
def block_key(seed: int, worker: int, block: int) -> tuple[Any, Any]:
    """`inagg_wire.noise_keys.block_key`: two uint32."""
    z = mixed(U64(((U64(seed) << U64(32)) | U64(worker)) + U64(GAMMA)))
    z = mixed(U64(z ^ U64(block)))
    return U32(z & U64(0xFFFFFFFF)), U32(z >> U64(32))


STEP = 4 * LANES
"""Lanes that share the `LANES` hashes of a vector: once or twice `SHARING`."""


@jit
def hashed(counters: Any, k1: Any) -> Any:
    """The hashes of a vector of ``counters``, which have k0 in them."""
    x = (counters ^ (counters >> U32(16))) * U32(MULTIPLIER_1)
    x = (x ^ (x >> U32(15))) + k1
    x = x * U32(MULTIPLIER_2)
    return x ^ (x >> U32(16))


def _words_of(vector: int) -> Any:
    """Word 0 of those lanes that are in one vector, the first, second, third or fourth of `STEP`: a function of their
    `hashed`. A shuffle is one instruction: LLVM makes two or three of a rotation."""
    order: list[int] = []
    for lane in range(vector * LANES, (vector + 1) * LANES):
        first, rotated = 4 * (lane // SHARING * VECTOR + lane % VECTOR), lane // VECTOR % 4
        order += (first + (byte - rotated) % 4 for byte in range(4))
    return rearranged(order)


words_0, words_1, words_2, words_3 = map(_words_of, range(4))


@jit
def word_at(index: int, lane: int, k0: Any, k1: Any) -> Any:
    """Noise word ``index`` of ``lane``."""
    x = U32(U32((index << WORD_SHIFT) + lane // SHARING * VECTOR + lane % VECTOR) + k0)
    x = U32(U32(x ^ (x >> U32(16))) * U32(MULTIPLIER_1))
    x = U32(U32(x ^ (x >> U32(15))) + k1)
    x = U32(x * U32(MULTIPLIER_2))
    x = U32(x ^ (x >> U32(16)))
    by = lane // VECTOR % 4 * 8
    return U32((U64(x) << U64(by)) | (U64(x) >> U64(32 - by)))


@register_jitable
def padded(lanes: int) -> int:
    """``lanes`` and those that share vectors of hashes with them."""
    return -(-lanes // STEP) * STEP


@jit
def noise_words(out: Array, lanes: int, k0: Any, k1: Any) -> None:
    """Word 0 of all lanes, and of the others up to `padded`."""
    counters = counting() + k0
    for lane in range(0, lanes, STEP):
        x = hashed(counters, k1)
        counters = counters + LANES
        store(out, lane, words_0(x))
        store(out, lane + LANES, words_1(x))
        store(out, lane + 2 * LANES, words_2(x))
        store(out, lane + 3 * LANES, words_3(x))


# --- floats as bits ---


@by_types
def as_float(bits: Any) -> Any:
    """The float32 or float64 of ``bits``, uint32 or uint64."""
    if bits.bitwidth == 32:
        return lambda bits: U32(bits).view(np.float32)
    return lambda bits: U64(bits).view(np.float64)


@jit
def bits_of(x: Any) -> Any:
    """The bits of a float32, uint32."""
    return np.float32(x).view(np.uint32)


@by_types
def magnitude_of(bits: Any) -> Any:
    """``bits``, uint16, uint32 or uint64, without the sign, in the same type."""
    return {
        16: lambda bits: U16(bits & U16(0x7FFF)),
        32: lambda bits: U32(bits & U32(0x7FFFFFFF)),
        64: lambda bits: U64(bits & U64(0x7FFFFFFFFFFFFFFF)),
    }[bits.bitwidth]


@jit
def power_of_two(exponent: int) -> float:
    """2.0**``exponent`` for -1022..1023."""
    return U64(U64(exponent + 1023) << U64(52)).view(np.float64)


@jit
def largest_magnitude(block: Array) -> Any:
    """The bits of the largest magnitude, in the type of ``block``."""
    largest = magnitude_of(block[0])
    for i in range(len(block)):
        largest = max(largest, magnitude_of(block[i]))
    return largest


LIFT = 149
"""Subnormal float32 become normal when they are scaled by 2**LIFT."""


@jit
def widen_half(out: Array, block: Array) -> None:
    """float16 bits to float32 bits."""
    for i in range(len(block)):
        b = U32(block[i])
        magnitude = U32(b & U32(0x7FFF))
        normal = U32(U32(magnitude << U32(13)) + U32((127 - 15) << 23))
        if magnitude >= U32(0x7C00):
            normal = U32(normal | U32(0x7F800000))  # infinity and NaN
        # magnitude * 2^-24, of which no factor is subnormal.
        subnormal = np.float32(np.float32(magnitude) * np.float32(2.0**-24)).view(np.uint32)
        wide = normal if magnitude >= U32(0x0400) else subnormal
        out[i] = U32(wide | U32(U32(b & U32(0x8000)) << U32(16)))


@jit
def widen_bfloat(out: Array, block: Array) -> None:
    """bfloat16 bits to float32 bits."""
    for i in range(len(block)):
        out[i] = U32(U32(block[i]) << U32(16))


@jit
def lift(out: Array, bits: Array) -> None:
    """float32 bits, scaled by 2**LIFT; what that makes too large becomes infinite. ``out`` may be ``bits``."""
    for i in range(len(bits)):
        b = bits[i]
        magnitude = U32(b & U32(0x7FFFFFFF))
        normal = min(U32(magnitude + U32(LIFT << 23)), U32(0x7F800000))
        subnormal = np.float32(magnitude).view(np.uint32)
        wide = normal if magnitude >= U32(0x00800000) else subnormal
        out[i] = U32(wide | U32(b & U32(0x80000000)))
