"""The compressors' loops over elements: noise, and small integers to bytes and back. Compiled, without the GIL."""

from __future__ import annotations

import numpy as np

from inagg_link.jit import jit
from inagg_link.simd import LANES, counting, store, store_first

from ..codec.bits import U8, U32, U64, Array, hashed

UNIT_53 = 2.0**-53


@jit
def hash_words(out: Array, k0: int, k1: int, first: int) -> None:
    """`inagg_wire.noise.hashes` of the counters from ``first`` on, of the key (k0, k1): uint32."""
    counters = counting() + U32(U32(first) + U32(k0))
    whole = out.size // LANES * LANES
    for i in range(0, whole, LANES):
        store(out, i, hashed(counters, U32(k1)))
        counters = counters + LANES
    store_first(out, whole, hashed(counters, U32(k1)), out.size - whole)


@jit
def uniforms_of(out: Array, high: Array, low: Array) -> None:
    """Numbers in [0, 1) of 53 bits, float64, of two words each."""
    for i in range(out.size):
        out[i] = np.float64((U64(high[i]) << U64(21)) | (U64(low[i]) >> U64(11))) * UNIT_53


@jit
def below_of(out: Array, high: Array, low: Array, p: Array) -> None:
    """Whether what `uniforms_of` would give is below ``p``, float64."""
    for i in range(out.size):
        out[i] = np.float64((U64(high[i]) << U64(21)) | (U64(low[i]) >> U64(11))) * UNIT_53 < p[i]


@jit
def pack_bits(out: Array, codes: Array, width: int) -> None:
    """``width`` (1 to 32) bits of each of ``codes``, uint32, the most significant first; zeros fill the last byte."""
    buffer, held, at = U64(0), 0, 0
    for i in range(codes.size):
        buffer = U64((buffer << U64(width)) | U64(codes[i]))
        held += width
        while held >= 8:
            held -= 8
            out[at] = U8((buffer >> U64(held)) & U64(0xFF))
            at += 1
    if held:
        out[at] = U8((buffer << U64(8 - held)) & U64(0xFF))


@jit
def unpack_bits(out: Array, data: Array, width: int) -> None:
    """Undo `pack_bits`: fill ``out`` from ``data``, uint8."""
    buffer, held, at = U64(0), 0, 0
    mask = U64((U64(1) << U64(width)) - U64(1))
    for i in range(out.size):
        while held < width:
            buffer = U64((buffer << U64(8)) | U64(data[at]))
            at += 1
            held += 8
        held -= width
        out[i] = U32((buffer >> U64(held)) & mask)
