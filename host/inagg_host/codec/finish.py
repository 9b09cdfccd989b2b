"""Drafts (`drafts`) are finished: shifted to the scale that was agreed on, and encoded anew where that matters."""

from __future__ import annotations

from typing import Any

from inagg_link.jit import jit
from inagg_link.simd import any_set, bytes_less, load_first, splat
from inagg_wire.noise import SHARING, VECTOR

from .bits import U8, U32, Array, noise_words
from .drafts import BYTES_OF_127, IN_BYTES, zeros_as_128
from .encoder_loops import natural32
from .own import write_codes

RENEWED = 4
"""The whole block is encoded anew if more than one lane in so many is in a group of `SHARING` that has a value that may
be below the unit. (Measured: as fast at 27 %.)"""


@jit
def finish(
    out: Array, bits: Array, by: int, lowest: int, renew: int, below: Array, unit_field: int, k0: Any, k1: Any,
    noise: Array, own: Array,
) -> tuple[Any, bool]:  # fmt: skip
    """Shift the draft ``out``, of which ``lowest`` and ``renew`` are known, by so many octaves to the unit whose
    exponent field is ``unit_field``, and encode anew from ``bits`` what may be below it. Returns `natural`'s ``tie``,
    and whether the draft was of use; if not, ``out`` may be anything.

    Level 1 is right even for a value x below the unit: it was at half the unit or above, so its p was 2x - 1 and made a
    carry, and x, the p that it should have been, is no less. ``noise``: uint32, for use inside.
    ``own``: as `draft` wrote it, or empty; it is mended likewise.
    """
    tie = U32(0)
    if abs(by) >= 127 or lowest == 0:
        return tie, False
    if lowest <= by:
        renew = mark_below(out, by, below)
    if renew * SHARING > len(out) // RENEWED:
        return tie, False
    if by != 0:
        shift(out, by)
    if renew > 0:
        for lane in range(0, len(out), SHARING):
            if below[lane // SHARING] != 0:
                end = min(lane + SHARING, len(out))
                noise_words(noise, SHARING, U32(k0 + U32(lane // SHARING * VECTOR)), k1)
                tie |= natural32(out[lane:end], bits[lane:end], noise, unit_field, 128)[1]
                if len(own) > 0:
                    write_codes(own[lane:end], out[lane:end], unit_field)
    return tie, True


@jit
def shift(codes: Array, by: int) -> None:
    """Levels other than 0 become less by ``by``, or 0, or more by minus that."""
    less, more = U8(max(by, 0)), U8(max(-by, 0))
    for i in range(len(codes)):
        level = U8(codes[i] & U8(127))
        codes[i] = U8(U8(U8(level - less) + more if level > less else 0) | U8(codes[i] & U8(128)))


@jit
def mark_below(codes: Array, by: int, below: Array) -> int:
    """Mark the groups, too, that have a level of 1 to ``by``; how many are marked then."""
    least, marked, whole = splat(U32(U32(by + 1) * IN_BYTES)), 0, len(codes) // SHARING * SHARING
    for lane in range(0, whole, SHARING):
        levels = zeros_as_128(load_first(codes, lane, VECTOR) & BYTES_OF_127)
        below[lane // SHARING] |= U8(any_set(bytes_less(least, levels)))
        marked += int(below[lane // SHARING])
    for lane in range(whole, len(codes)):
        below[whole // SHARING] |= U8(1 <= codes[lane] & U8(127) <= by)
    if whole < len(codes):
        marked += int(below[whole // SHARING])
    return marked
