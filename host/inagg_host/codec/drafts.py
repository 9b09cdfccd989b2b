"""Codes of nat8 before anybody knows their scale: drafts, which are finished when all workers have agreed on it.

Natural rounding adds noise to the bits of a float and keeps its sign and exponent. For a value at the unit or above,
the scale has no part in that: it only says from which exponent on levels count. So a draft counts them from the unit
that is expected, where the block's datagram will be; if another scale is agreed on, its codes are shifted. The values,
which come from memory, are read once for both their largest magnitude and their codes.

Values below the unit, other than zero, are needed again: a gradient has some in many blocks, but few, so they alone are
encoded anew. A draft is of no use if there are many, or values too far above the unit that was expected.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba.extending import register_jitable

from inagg_link.jit import fused, inline, jit
from inagg_link.simd import (
    LANES,
    any_set,
    bytes_less,
    counting,
    doubled,
    fence,
    larger,
    largest,
    load,
    load_first,
    prefetch,
    smaller,
    smaller_bytes,
    smallest_byte,
    splat,
    store_bytes,
    store_first_bytes,
    upper_bytes,
    upper_halves,
)
from inagg_wire.layout import HEADER_BYTES
from inagg_wire.noise import SHARING

from .bits import (
    I64,
    STEP,
    U8,
    U32,
    U64,
    Array,
    block_key,
    hashed,
    padded,
    words_0,
    words_1,
    words_2,
    words_3,
)
from .exact import double_bits
from .own import write_rest, write_rounded
from .past_caches import STREAM_FROM, goes_past_caches

FIRST_UNIT = 64
"""The exponent field of the unit that is expected before any scale is known, that of 2**-63. With 127 levels, a draft
has a use for most scales larger than that."""
FIELDS = 126
"""The exponent fields of a draft's magnitudes are less than that of its unit and so many more: rounded up they have
level 127, the largest in 7 bits."""
NOT_FINITE = 255
"""The exponent field of infinity and NaN."""

SERIAL, NUMBER, UNIT, LARGEST, LOWEST, BELOW = range(6)
"""Columns of ``notes``, int64, what is known of the draft in each row: the operation and the block's number in the job,
as each of them has its own noise; the exponent field of the unit; the bits of the largest magnitude, a float32; the
lowest level but 0, or 0 if the draft is of no use whatever the unit, or 128 if all are zero; how many groups of
`SHARING` lanes have values below the unit."""
NOTES = 6
NOBODYS = -1
"""Instead of an operation: there is no draft."""

LINE = 16
"""Floats of a cache line."""
EARLY = 3072
"""Distance at which a loop asks for values ahead: the processor does it by itself, but not beyond a page. (Measured, of
values in no cache, vectors of 16: with 1,024, 2,048 and 3,072 a block takes 0.113, 0.092 and 0.082 ns a float.)"""

MAGNITUDE = U32(0x7FFFFFFF)
IN_BYTES = U32(0x01010101)
BYTES_OF_127, BYTES_OF_128 = U32(0x7F7F7F7F), U32(0x80808080)


Vectors = tuple[Any, Any, Any, Any]


@register_jitable
def groups(lanes: int) -> int:
    """How many times `SHARING` lanes a block has, with those that share vectors of hashes with them."""
    return padded(lanes) // SHARING


class Drafts(NamedTuple):
    """Drafts, by the row of the datagrams in which they are. No rows: there are to be none."""

    notes: Any
    """int64, (rows, `NOTES`)."""
    below: Any
    """uint8, (rows, `groups`): 1 where a group of lanes has values below the unit."""
    expected: Any
    """int64, one: the exponent field of the unit that is expected, that of the block that was finished last. It is 33
    or more: 2**-94 is the least unit of blocks that are not lifted (`encoder.LIFT_BELOW`)."""


@inline
def draft_blocks(
    job: Any,
    values: Array,
    first: int,
    number: int,
    count: int,
    shards: int,
    serial: int,
    datagrams: Array,
    drafts: Drafts,
    magnitudes: Array,
    contributed: Array,
) -> None:
    """Drafts of ``count`` blocks of float32 ``values`` (their bits) from ``first`` on, numbered on from ``number``, in
    the rows of ``datagrams`` that will be theirs: as many for each of the ``shards``, a power of two.

    Their largest ``magnitudes`` are as from `scales.largest_magnitudes`, that of block b at b.

    ``job``: a `coding.Natural`. ``contributed``: bits of what the codes will stand for, of all blocks; empty if
    nobody wants to know.
    """
    rows = len(datagrams) // shards
    shard, block = number % shards, number // shards
    for i in range(count):
        at, row = first + i, shard * rows + (block & (rows - 1))
        shard += 1
        if shard == shards:
            shard, block = 0, block + 1
        k0, k1 = block_key(job.seed, job.worker, number + i)
        begin, end = at * job.lanes, min((at + 1) * job.lanes, len(values))
        bits, own = values[begin:end], contributed[begin:end]
        payload, unit_field = datagrams[row, HEADER_BYTES : HEADER_BYTES + len(bits)], int(drafts.expected[0])
        past = goes_past_caches(len(contributed), own)
        most, lowest, renew = draft(payload, bits, unit_field, k0, k1, drafts.below[row], own, past)
        note = drafts.notes[row]
        note[SERIAL], note[NUMBER], note[UNIT] = serial, number + i, unit_field
        note[LARGEST], note[LOWEST], note[BELOW] = I64(most), lowest, renew
        magnitudes[at] = double_bits(U64(most), 32, 23)
    if len(contributed) >= STREAM_FROM:
        fence()


@fused
def draft(
    out: Array, bits: Array, unit_field: int, k0: Any, k1: Any, below: Array, own: Array, past: bool
) -> tuple[Any, int, int]:
    """The draft of a block, for the unit whose exponent field is ``unit_field``, 2 or more. Returns what is known of
    it, as `LARGEST`, `LOWEST` and `BELOW` have it. ``own``: what its codes stand for, or empty; ``past`` the caches.

    p is the mantissa, of 23 bits. So the top 23 bits of word 0 decide, by the carry out of their sum into the exponent,
    and nothing is left for a tie.
    """
    unit, half, ones = splat(U32(unit_field << 23)), splat(U32(U32(unit_field - 1) * IN_BYTES)), splat(IN_BYTES)
    counters = counting() + k0
    most, lowest, renew = splat(U32(0)), splat(BYTES_OF_128), 0
    whole = len(bits) // STEP * STEP
    below[:] = 0
    for lane in range(0, whole, STEP):
        for line in range(0, STEP, LINE):
            prefetch(bits, lane + EARLY + line)
        b0, b1 = load(bits, lane), load(bits, lane + LANES)
        b2, b3 = load(bits, lane + 2 * LANES), load(bits, lane + 3 * LANES)
        values = (b0, b1, b2, b3)
        codes, levels, doubles, sums = codes_of(values, hashed(counters, k1), half)
        if len(own) > 0:
            write_rounded(own, lane, sums, past)
        if any_set(bytes_less(ones, levels)):
            codes, levels = without_signs_of_zeros(codes), zeros_as_128(levels)
            renew += mark_small(below, lane // SHARING, values, unit)
        store_bytes(out, lane, codes)
        counters, most, lowest = counters + LANES, larger(most, doubles), smaller_bytes(lowest, levels)
    rest = len(bits) - whole
    if rest > 0:
        for line in range(0, rest, LINE):
            prefetch(bits, whole + EARLY + line)
        b0, b1 = load_first(bits, whole, rest), load_first(bits, whole + LANES, rest - LANES)
        b2 = load_first(bits, whole + 2 * LANES, rest - 2 * LANES)
        b3 = load_first(bits, whole + 3 * LANES, rest - 3 * LANES)
        values = (b0, b1, b2, b3)
        codes, levels, doubles, sums = codes_of(values, hashed(counters, k1), half)
        if any_set(smaller_bytes(bytes_less(ones, levels), bytes_less(splat(U32(rest * IN_BYTES)), lanes_of_bytes()))):
            codes = without_signs_of_zeros(codes)
            renew += mark_small(below, whole // SHARING, values, unit)
        store_first_bytes(out, whole, codes, rest)
        most, lowest = larger(most, doubles), smaller_bytes(lowest, zeros_as_128(levels))
        if len(own) > 0:
            write_rest(own, whole, sums, rest, past)
    magnitude = U32(largest(most) >> U32(1))
    usable = magnitude < U32(min(unit_field + FIELDS, NOT_FINITE) << 23)
    return magnitude, int(smallest_byte(lowest)) if usable else 0, renew


@jit
def codes_of(values: Vectors, noise: Any, half: Any) -> tuple[Any, Any, Any, Vectors]:
    """Codes of `STEP` lanes, zero with its sign, and their levels, both for `store_bytes`; the
    largest of the magnitudes, doubled: where it is too large, levels above 127 make codes of no meaning; and the sums
    of their bits and noise.

    ``noise``: the lanes' hashes; ``half``: in all bytes, the exponent field of half the unit.
    """
    b0, b1, b2, b3 = values
    s0, s1 = b0 + (words_0(noise) >> U32(9)), b1 + (words_1(noise) >> U32(9))
    s2, s3 = b2 + (words_2(noise) >> U32(9)), b3 + (words_3(noise) >> U32(9))
    even, odd = upper_halves(s0, s2), upper_halves(s1, s3)
    levels = bytes_less(upper_bytes(doubled(even), doubled(odd)), half)
    # The largest magnitude, doubled: the sum loses the sign.
    doubles = larger(larger(b0 + b0, b1 + b1), larger(b2 + b2, b3 + b3))
    return levels | (upper_bytes(even, odd) & BYTES_OF_128), levels, doubles, (s0, s1, s2, s3)


@jit
def without_signs_of_zeros(codes: Any) -> Any:
    """128 becomes 0 in each byte, and no other code changes."""
    return codes & (((codes & BYTES_OF_127) + BYTES_OF_127) | BYTES_OF_127)


@jit
def zeros_as_128(levels: Any) -> Any:
    """0 becomes 128 in each byte, and no other level below that changes."""
    return levels | (((levels & BYTES_OF_127) + BYTES_OF_127) & BYTES_OF_128 ^ BYTES_OF_128)


@inline
def lanes_of_bytes() -> Any:
    """The lane that each byte is for, as `store_bytes` stores them."""
    return counting() * IN_BYTES + U32(LANES << 8 | 2 * LANES << 16 | 3 * LANES << 24)


@jit
def mark_small(below: Array, group: int, values: Vectors, unit: Any) -> int:
    """Mark those groups of `STEP` lanes, ``group`` and perhaps the next, that have a magnitude less than the ``unit``
    and other than zero. Returns how many."""
    at_least = unit - 1  # so zero counts as the largest
    m0, m1 = (values[0] & MAGNITUDE) - 1, (values[1] & MAGNITUDE) - 1
    m2, m3 = (values[2] & MAGNITUDE) - 1, (values[3] & MAGNITUDE) - 1
    first, second = smaller(smaller(m0, m1), at_least), smaller(smaller(m2, m3), at_least)
    if STEP == SHARING:
        below[group] = U8(any_set(smaller(first, second) ^ at_least))
        return int(below[group])
    below[group], below[group + 1] = U8(any_set(first ^ at_least)), U8(any_set(second ^ at_least))
    return int(below[group]) + int(below[group + 1])
