"""Codes of nat8 before anybody knows their scale: drafts, which are finished when all workers have agreed on it.

Natural rounding adds noise to the bits of a float and keeps its sign and exponent. For a value at the unit or above,
the scale has no part in that: it only says from which exponent on levels count. So a draft counts them from an exponent
that is the same for all blocks, and takes another pass over a quarter of the bytes once the scale is known. The values,
which come from memory, are read once for both their largest magnitude and their codes.

Values below the unit, other than zero, are needed again: a gradient has some in many blocks, but few, so they alone are
encoded anew. A draft is of no use if there are many, or exponent fields outside of `UNIT_FIELD` to `FIELD_MOST`.
"""

from __future__ import annotations

from typing import Any

from inagg_wire.noise import SHARING
from inagg_wire.simd import (
    LANES,
    any_set,
    bytes_less,
    counting,
    doubled,
    larger,
    largest,
    load,
    prefetch,
    rotated_8,
    rotated_16,
    rotated_24,
    smaller,
    smaller_bytes,
    smallest,
    smallest_byte,
    splat,
    store_bytes,
    upper_bytes,
    upper_halves,
)

from .bits import I64, U8, U32, U64, Array, block_key, hashed, jit, noise_words
from .encoder_loops import natural32
from .exact import double_bits

UNIT_FIELD = 64
"""A draft's level k is 2**(k - 1) times the float32 with this exponent field, 2**-63."""
FIELD_MOST = UNIT_FIELD + 125
"""The largest exponent field of its magnitudes: rounded up they have level 127, the largest in 7 bits."""

SERIAL, NUMBER, LARGEST, LOWEST = range(4)
"""Columns of ``notes``, int64, what is known of the draft in each row: the operation and the block's number in the job,
as each of them has its own noise; the bits of the largest magnitude, a float32; the lowest level but 0, or 0 if the
draft is of no use whatever the unit, or `ALL_ZERO`."""
NOTES = 4
ALL_ZERO = 128

RENEWED = 4
"""If more than one lane in so many is in a group of `SHARING` that has a value which may be below the unit, the whole
block is encoded anew. (Measured: as fast at 27 %.)"""

LINE = 16
"""Floats of a cache line."""
EARLY = 1024
"""So far ahead a loop asks for its values: the processor does it by itself, but not beyond a page."""

MAGNITUDE = U32(0x7FFFFFFF)
IN_BYTES = U32(0x01010101)
BYTES_OF_127, BYTES_OF_128 = U32(0x7F7F7F7F), U32(0x80808080)


@jit
def draft_blocks(
    job: Any,
    values: Array,
    first: int,
    number: int,
    count: int,
    serial: int,
    codes: Array,
    notes: Array,
    spare: Array,
    magnitudes: Array,
) -> None:
    """Drafts of ``count`` blocks of float32 ``values`` (their bits) from ``first`` on, numbered on from ``number``.

    Each goes into its row of ``codes`` (uint8, of `padded` lanes) and ``notes``: block b into b modulo the rows. Their
    largest ``magnitudes`` are as from `scales.largest_magnitudes`, that of block b at b.

    ``job``: an `encoder.Natural`. ``spare``: uint32, 32 or more, for use inside.
    """
    for i in range(count):
        at = first + i
        row = at % len(notes)
        k0, k1 = block_key(job.seed, job.worker, number + i)
        bits = values[at * job.lanes : min((at + 1) * job.lanes, len(values))]
        most, lowest = draft(codes[row], bits, k0, k1, spare)
        note = notes[row]
        note[SERIAL], note[NUMBER], note[LARGEST], note[LOWEST] = serial, number + i, I64(most), lowest
        magnitudes[at] = double_bits(U64(most), 32, 23)


@jit
def draft(out: Array, bits: Array, k0: Any, k1: Any, spare: Array) -> tuple[Any, int]:
    """The draft of a block; its `LARGEST` and `LOWEST`. ``out`` (uint8) has room for `padded` lanes.

    p is the mantissa, of 23 bits. So the top 23 bits of word 0 decide, by the carry out of their sum into the exponent,
    and nothing is left for a tie.
    """
    below, ones = splat(U32(U32(UNIT_FIELD - 1) * IN_BYTES)), splat(IN_BYTES)
    counters = counting() + k0
    most, least, lowest = splat(U32(0)), splat(U32(0xFFFFFFFF)), splat(BYTES_OF_128)
    whole = len(bits) // SHARING * SHARING
    for lane in range(0, whole, SHARING):
        prefetch(bits, lane + EARLY)
        prefetch(bits, lane + EARLY + LINE)
        codes, levels, doubles = codes_of(bits, lane, hashed(counters, k1), below)
        if any_set(bytes_less(ones, levels)):
            codes, levels = without_signs_of_zeros(codes), zeros_as_128(levels)
            least = smaller(least, magnitudes_less_one(bits, lane))
        store_bytes(out, lane, codes)
        counters, most, lowest = counters + LANES, larger(most, doubles), smaller_bytes(lowest, levels)
    rest = len(bits) - whole
    if rest > 0:
        for i in range(SHARING):
            spare[i] = bits[whole + i] if i < rest else U32(0)
        codes, levels, doubles = codes_of(spare, 0, hashed(counters, k1), below)
        store_bytes(out, whole, without_signs_of_zeros(codes))
        most, lowest = larger(most, doubles), smaller_bytes(lowest, zeros_as_128(levels))
        least = smaller(least, magnitudes_less_one(spare, 0))
    magnitude = U32(largest(most) >> U32(1))
    # Of magnitudes less one the smallest, as of levels, is that of a value other than zero.
    usable = smallest(least) >= U32((UNIT_FIELD << 23) - 1) and magnitude < U32((FIELD_MOST + 1) << 23)
    return magnitude, int(smallest_byte(lowest)) if usable else 0


@jit
def finish(
    out: Array, codes: Array, lowest: int, unit_field: int, bits: Array, k0: Any, k1: Any, noise: Array
) -> tuple[Any, bool]:
    """Shift a draft's ``codes`` into ``out``, for the unit whose exponent field is ``unit_field``, and encode anew from
    ``bits`` what may be below it. Returns `natural`'s ``tie``, and whether the draft was of use.

    Level 1 is right even for a value x below the unit: it was at half the unit or above, so its p was 2x - 1 and made a
    carry, and x, the p that it should have been, is no less. ``noise``: uint32, for use inside.
    """
    by, tie = unit_field - UNIT_FIELD, U32(0)
    if by < 0 or by >= 127 or lowest == 0:
        return tie, False
    for i in range(len(out)):
        level = U8(codes[i] & U8(127))
        out[i] = U8(U8(level - U8(by) if level > U8(by) else 0) | U8(codes[i] & U8(128)))
    if lowest <= by:
        least, groups = splat(U32(U32(by + 1) * IN_BYTES)), 0
        for lane in range(0, len(out), SHARING):
            groups += any_below(codes, lane, least)
        if groups * SHARING > len(out) // RENEWED:
            return tie, False
        for lane in range(0, len(out), SHARING):
            if any_below(codes, lane, least):
                end = min(lane + SHARING, len(out))
                noise_words(noise, SHARING, U32(k0 + U32(lane // SHARING * LANES)), k1)
                tie |= natural32(out[lane:end], bits[lane:end], noise, unit_field, 128)[1]
    return tie, True


@jit
def any_below(codes: Array, lane: int, least: Any) -> bool:
    """Whether one of the `SHARING` codes from ``lane`` on has a level less than ``least`` and other than 0."""
    return bool(any_set(bytes_less(least, zeros_as_128(load(codes, lane) & BYTES_OF_127))))


@jit
def codes_of(bits: Array, lane: int, noise: Any, below: Any) -> tuple[Any, Any, Any]:
    """Of the 32 lanes from ``lane`` on the codes, zero with its sign, and their levels, both for `store_bytes`; and the
    largest of the magnitudes, doubled: where it is too large, levels above 127 make codes of no meaning.

    ``noise``: the lanes' hashes; ``below``: in all bytes, the exponent field of half the unit.
    """
    b0, b1 = load(bits, lane), load(bits, lane + LANES)
    b2, b3 = load(bits, lane + 2 * LANES), load(bits, lane + 3 * LANES)
    s0, s1 = b0 + (noise >> U32(9)), b1 + (rotated_8(noise) >> U32(9))
    s2, s3 = b2 + (rotated_16(noise) >> U32(9)), b3 + (rotated_24(noise) >> U32(9))
    even, odd = upper_halves(s0, s2), upper_halves(s1, s3)
    levels = bytes_less(upper_bytes(doubled(even), doubled(odd)), below)
    # The largest magnitude, doubled: the sum loses the sign.
    doubles = larger(larger(b0 + b0, b1 + b1), larger(b2 + b2, b3 + b3))
    return levels | (upper_bytes(even, odd) & BYTES_OF_128), levels, doubles


@jit
def without_signs_of_zeros(codes: Any) -> Any:
    """128 becomes 0 in each byte, and no other code changes."""
    return codes & (((codes & BYTES_OF_127) + BYTES_OF_127) | BYTES_OF_127)


@jit
def zeros_as_128(levels: Any) -> Any:
    """0 becomes 128 in each byte, and no other level below that changes."""
    return levels | (((levels & BYTES_OF_127) + BYTES_OF_127) & BYTES_OF_128 ^ BYTES_OF_128)


@jit
def magnitudes_less_one(bits: Array, lane: int) -> Any:
    """The smallest of 32 magnitudes less one, for each lane of a vector. So zero counts as the largest."""
    m0, m1 = (load(bits, lane) & MAGNITUDE) - 1, (load(bits, lane + LANES) & MAGNITUDE) - 1
    m2, m3 = (load(bits, lane + 2 * LANES) & MAGNITUDE) - 1, (load(bits, lane + 3 * LANES) & MAGNITUDE) - 1
    return smaller(smaller(m0, m1), smaller(m2, m3))
