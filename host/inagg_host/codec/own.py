"""This worker's contribution to a sum: the values that its codes stand for, written where they are made.

To decode them afterwards would take as long again as to encode. Natural rounding of a float32 adds noise to its bits
and keeps its sign and exponent: that *is* what the code stands for, as long as it is in the window. So the pass that
makes drafts, which has it in registers, writes it, and only what is encoded anew later is decoded.
"""

from __future__ import annotations

from typing import Any

from inagg_link.jit import by_types, inline, jit
from inagg_link.simd import LANES, float_sum, splat, store, store_first, stream

from .bits import U32, Array
from .decoder_loops import natural_normal

SIGN_AND_EXPONENT = U32(0xFF800000)


@by_types
def of_float32(own: Any, words: Any) -> Any:
    """``own``, if it has bits of float32; else none of ``words``, which are uint32: other types are written by decoding
    alone, though drafts are made of the narrower ones, too. And whether that is all of ``own``."""
    return (
        (lambda own, words: (own, True)) if own.dtype.bitwidth == 32
        else (lambda own, words: (words[:0], len(own) == 0))
    )  # fmt: skip


@inline
def rounded(sums: Any) -> Any:
    """Without the mantissa. A zero has no sign in codes: the sum with zero makes a negative one positive. Of what else
    there is none changes, in no mode of the processor: without a mantissa there is no NaN and nothing subnormal."""
    return float_sum(sums & SIGN_AND_EXPONENT, splat(U32(0)))


@jit
def write_rounded(own: Array, lane: int, sums: tuple[Any, Any, Any, Any], past: bool) -> None:
    """Write the values to which the `STEP` lanes from ``lane`` on are rounded; ``sums``: their bits with the noise
    added. ``past`` the caches: see `past_caches`. Lanes that are not zero and below the unit are to be written again.
    """
    s0, s1, s2, s3 = rounded(sums[0]), rounded(sums[1]), rounded(sums[2]), rounded(sums[3])
    if past:
        stream(own, lane, s0)
        stream(own, lane + LANES, s1)
        stream(own, lane + 2 * LANES, s2)
        stream(own, lane + 3 * LANES, s3)
    else:
        store(own, lane, s0)
        store(own, lane + LANES, s1)
        store(own, lane + 2 * LANES, s2)
        store(own, lane + 3 * LANES, s3)


@jit
def write_rest(own: Array, lane: int, sums: tuple[Any, Any, Any, Any], count: int, past: bool) -> None:
    """The same for the last ``count`` lanes of a block. If they go ``past`` the caches, then whole vectors do: to write
    in both ways into one line takes as long as many lines. (Measured: up to a fifth of all, with 13,064 lanes.)"""
    write_first(own, lane, rounded(sums[0]), count, past)
    write_first(own, lane + LANES, rounded(sums[1]), count - LANES, past)
    write_first(own, lane + 2 * LANES, rounded(sums[2]), count - 2 * LANES, past)
    write_first(own, lane + 3 * LANES, rounded(sums[3]), count - 3 * LANES, past)


@inline
def write_first(own: Array, lane: int, values: Any, count: int, past: bool) -> None:
    """``values``, or the first ``count`` of them if there are more; none if that is less than 1."""
    if past and count >= LANES:
        stream(own, lane, values)
    else:
        store_first(own, lane, values, count)


@jit
def write_codes(own: Array, codes: Array, unit_field: int) -> None:
    """Write the values of those ``codes`` of nat8 that name levels of the window; ``unit_field``: the unit's exponent
    field, 1 or more. The top level may be infinite."""
    natural_normal(own, codes, U32((unit_field - 1) << 23), U32(23), U32(0x80000000))
