"""Kernels over natural codes that a slot holds as they came, until the last worker's have come.

To keep them, and to add them in the pass that writes the result, moves a quarter of the bytes that sums would. The last
contribution is read where it was received.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inagg_link.jit import fused, inline, jit
from inagg_link.simd import (
    LANES,
    doubled,
    float_sum,
    halved,
    load,
    load_first,
    splat,
    store,
    store_first,
    upper_bytes,
    upper_halves,
)
from inagg_wire.noise import GROUP_LANES

from .kernels import I32, U32, Array, nat8_code, nat8_value
from .state import Noise

HELD_WORKERS = 4
"""Workers whose codes of a byte fit into a row of accumulators, four bytes a lane. They stand there in the order in
which they came, each worker's after another's."""

GROUP = 4 * LANES
"""Lanes that are added at a time."""

ONE = np.uint8(1)


EXACT_OCTAVES = 23
"""Spread of levels up to which float32 is exact. With levels from l to h, the sum of four is a multiple of 2^(l - 1)
and at most 4 * 2^(h - 1). A float32 has 24 bits, so it holds all such if h - l is at most 22, or h less l - 1 at most
this."""


@fused
def hold_nat8(held: Array, payload: Array, lanes: int, levels: int) -> tuple[int, int, int]:
    """Keep a contribution's codes in ``held`` (uint8); those that name no level become zero. Returns how many, and the
    `range_of_levels` as they came."""
    lowest, highest = np.uint8(255), np.uint8(0)
    for i in range(lanes):
        code = np.uint8(payload[i])
        held[i] = code
        level = np.uint8(code & np.uint8(127))
        lowest, highest = min(lowest, np.uint8(level - ONE)), max(highest, level)
    invalid = 0
    if highest > levels:
        for i in range(lanes):
            if held[i] & np.uint8(127) > levels:
                held[i] = 0
                invalid += 1
    return invalid, int(lowest), int(highest)


@fused
def range_of_levels(payload: Array, lanes: int) -> tuple[int, int]:
    """The lowest level of nat8 codes but 0, less one, or 255; and the highest."""
    lowest, highest = np.uint8(255), np.uint8(0)
    for i in range(lanes):
        level = np.uint8(payload[i] & np.uint8(127))
        lowest, highest = min(lowest, np.uint8(level - ONE)), max(highest, level)
    return int(lowest), int(highest)


@jit
def unpack_nat4(codes: Array, payload: Array, lanes: int) -> None:
    """nat4 codes, two a byte, as nat8 codes (uint8): to be added at twice the speed of `add_nat4`."""
    for i in range(lanes // 2):
        high, low = np.uint8(payload[i] >> np.uint8(4)), payload[i]
        codes[2 * i] = np.uint8(((high & np.uint8(8)) << np.uint8(4)) | (high & np.uint8(7)))
        codes[2 * i + 1] = np.uint8(((low & np.uint8(8)) << np.uint8(4)) | (low & np.uint8(7)))


@jit
def hold_nat4(held: Array, payload: Array, lanes: int) -> None:
    """Keep a contribution's codes, two a byte, in ``held`` (uint8): every code is valid."""
    for i in range(lanes // 2):
        held[i] = payload[i]


@fused
def vector_codes(wa: Any, wb: Any, wc: Any, wd: Any, workers: int, noise: Any) -> Any:
    """The codes of the sums of `GROUP` lanes, four a word, as they come and go. ``noise``: that of each word, whose
    four lanes share it. Of two ``workers`` the codes are in ``wa`` and ``wd``."""
    if workers == 2:
        s0, s1 = float_sum(floats_of(wa, 24), floats_of(wd, 24)), float_sum(floats_of(wa, 16), floats_of(wd, 16))
        s2, s3 = float_sum(floats_of(wa, 8), floats_of(wd, 8)), float_sum(floats_of(wa, 0), floats_of(wd, 0))
    else:
        s0, s1 = sums_of(wa, wb, wc, wd, 24), sums_of(wa, wb, wc, wd, 16)
        s2, s3 = sums_of(wa, wb, wc, wd, 8), sums_of(wa, wb, wc, wd, 0)
    even = upper_halves(rounded_floats(s0, noise), rounded_floats(s2, noise))
    odd = upper_halves(rounded_floats(s1, noise), rounded_floats(s3, noise))
    return upper_bytes(doubled(even) | (even & 0x80008000), doubled(odd) | (odd & 0x80008000))


@inline
def sums_of(a: Any, b: Any, c: Any, d: Any, by: int) -> Any:
    first, second = float_sum(floats_of(a, by), floats_of(b, by)), float_sum(floats_of(c, by), floats_of(d, by))
    return float_sum(first, second)


@inline
def floats_of(words: Any, by: int) -> Any:
    """2^-126 times the integer of a nat8 code of each word, as bits of a float32; the code is the highest byte when the
    word is shifted to the left by ``by``. Level 1 has the least exponent of a normal float32, level 0 is zero."""
    return halved(words << by) & 0xBF800000


@inline
def rounded_floats(sums: Any, noise: Any) -> Any:
    """Sums of `floats_of`, rounded as by `nat8_code`: each code's sign is that of the float, and its level the exponent
    field, which is less than 128.

    With e the exponent field, the sum's leading one is at e - 1, and what is below it, e - 1 bits, is the fraction's
    beginning. The noise has as many bits from that place on when it is shifted to the left by 33 - e, then by 9 to the
    right; the carry out of the fraction goes into the exponent, which is the level. Modulo 32: for e = 1 and e = 0,
    where the fraction is zero, there is noise in it, but nothing carries.
    """
    bits = float_sum(sums, splat(U32(0)))  # a negative zero becomes a positive one
    by = ((splat(U32(0x00FFFFFF)) - bits) >> 23) & 31  # 1 less the exponent and 256 times the sign; nothing is borrowed
    return bits + ((noise << by) >> 9)


@jit
def exact_in_floats(a: Array, b: Array, c: Array, d: Array, lanes: int) -> bool:
    """Whether no lane has levels so far apart that a float32 would not hold its sum: see `EXACT_OCTAVES`."""
    most = np.uint8(0)
    for i in range(lanes):
        p, q = np.uint8(a[i] & np.uint8(127)), np.uint8(b[i] & np.uint8(127))
        r, s = np.uint8(c[i] & np.uint8(127)), np.uint8(d[i] & np.uint8(127))
        highest = max(max(p, q), max(r, s))
        # Less one, level 0 becomes the highest of all.
        p, q, r, s = np.uint8(p - ONE), np.uint8(q - ONE), np.uint8(r - ONE), np.uint8(s - ONE)
        lowest = min(min(p, q), min(r, s))
        most = max(most, np.uint8(max(highest, lowest) - lowest))
    return bool(most <= EXACT_OCTAVES)


@fused
def emit_held(
    out: Array, kept: Array, held: Array, last: Array, workers: int, octaves: int, lanes: int, noise: Noise, word: Any
) -> None:
    """The result (nat8) of the codes of ``workers``: all but one are in ``held``, then ``last``, which may be the last
    row of ``held``. The rows between are cleared. ``word``: that of group 0. ``octaves``: the highest level of all less
    the lowest of all (`range_of_levels`), or more.

    It goes to ``out`` and to ``kept``, which is in no cache: a copy would wait for it, this pass computes meanwhile.
    """
    a, b, c = held[:lanes], held[lanes:], held[2 * lanes :]
    if workers == 2:
        b, c = a, a
    else:
        held[(workers - 1) * lanes : (HELD_WORKERS - 1) * lanes] = 0
    # A gradient has levels far apart in many blocks, but seldom in one lane.
    exact = octaves <= EXACT_OCTAVES or exact_in_floats(a, b, c, last, lanes)
    if exact:
        whole = lanes // GROUP * GROUP
        for lane in range(0, whole, GROUP):
            wa, wb, wc, wd = load(a, lane), load(b, lane), load(c, lane), load(last, lane)
            codes = vector_codes(wa, wb, wc, wd, workers, load(noise.groups, lane // GROUP_LANES) ^ word)
            store(out, lane, codes)
            store(kept, lane, codes)
        rest = (lanes - whole) // GROUP_LANES
        if rest > 0:
            wa, wb = load_first(a, whole, rest), load_first(b, whole, rest)
            wc, wd = load_first(c, whole, rest), load_first(last, whole, rest)
            noises = load_first(noise.groups, whole // GROUP_LANES, rest) ^ word
            codes = vector_codes(wa, wb, wc, wd, workers, noises)
            store_first(out, whole, codes, rest)
            store_first(kept, whole, codes, rest)
    elif workers == 2:
        for i in range(lanes):
            code = nat8_code(I32(nat8_value(a[i]) + nat8_value(last[i])), U32(noise.lanes[i] ^ word))
            out[i] = code
            kept[i] = code
    else:
        for i in range(lanes):
            first, second = I32(nat8_value(a[i]) + nat8_value(b[i])), I32(nat8_value(c[i]) + nat8_value(last[i]))
            code = nat8_code(I32(first + second), U32(noise.lanes[i] ^ word))
            out[i] = code
            kept[i] = code
