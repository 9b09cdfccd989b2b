"""Scales and contributions in Triton: see `triton_kernels`."""

# ruff: noqa: N803, N806

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from inagg_host.codec import Job
from inagg_host.codec.staged import BAD, PLACE_BITS, TIE, TIES
from inagg_wire.layout import LANE_BITS, SIGN_AND_LEVEL, Encoding
from inagg_wire.noise import MULTIPLIER_1, MULTIPLIER_2, SHARING, VECTOR

from .floats import FLOATS
from .triton_bits import CODED, COLUMNS, UNFUSED, ZERO, magnitude_of, power_of_two, widen

TILE = 512
"""Lanes that one program encodes: 1448 lanes are three of them, with few to spare."""
ENCODING_WARPS = 1
"""A thread has 16 lanes of a tile: four times four neighbours."""

LARGEST_TILE, LARGEST_WARPS = 1024, 4
"""Lanes that one program looks at in a step to find a block's largest."""

NATURAL, LINEAR, FIXED = 0, 1, 2

BAD_FLAG, TIE_FLAG = tl.constexpr(BAD), tl.constexpr(TIE)
TIES_MOST, BITS_OF_LANE = tl.constexpr(TIES), tl.constexpr(PLACE_BITS)
IS_NATURAL, IS_LINEAR = tl.constexpr(NATURAL), tl.constexpr(LINEAR)
FACTOR_1, FACTOR_2 = tl.constexpr(MULTIPLIER_1), tl.constexpr(MULTIPLIER_2)
IN_VECTOR, SHARED_BY = tl.constexpr(VECTOR), tl.constexpr(SHARING)
ABOVE_ONE = tl.constexpr((1023 << 52) | (1 << 2))
"""The bits of 1 + 2**-50: a float literal would be rounded to float32."""


# --- scales ---


@triton.jit(do_not_specialize=["elements"])
def _largest(bits, out, elements, LANES: tl.constexpr, TILE: tl.constexpr):
    block = tl.program_id(0)
    begin = bits + block * LANES  # less than 2**31: see `device.LOOK_ELEMENTS`
    # As floats' magnitudes are ordered as their bits. Registers for a whole block of 13,072 lanes would be spilled.
    largest = tl.zeros([TILE], bits.dtype.element_ty)
    if (block + 1) * LANES <= elements:
        for start in range(0, LANES, TILE):
            lane = start + tl.arange(0, TILE)
            largest = tl.maximum(largest, magnitude_of(tl.load(begin + lane, mask=lane < LANES, other=0)))
    else:
        for start in range(0, LANES, TILE):
            lane = start + tl.arange(0, TILE)
            there = (lane < LANES) & (block * LANES + lane < elements)
            largest = tl.maximum(largest, magnitude_of(tl.load(begin + lane, mask=there, other=0)))
    tl.store(out + block, tl.max(largest, axis=0))


def largest(values: Tensor, lanes: int, out: Tensor) -> Any:
    """The bits of the largest magnitude of each block into ``out`` (1-D, integers as large as the values), NaN above
    all else. There are as many blocks as ``out`` has room for; the last one may be a partial one. Returns what Triton
    has launched; so do all of these."""
    bits = values.view(FLOATS[values.element_size()])
    return _largest[(out.numel(),)](
        bits, out, values.numel(), LANES=lanes, TILE=LARGEST_TILE, num_warps=LARGEST_WARPS, **UNFUSED
    )


# --- contributions ---


@triton.jit
def _hash(counter, k0, k1):
    """`inagg_wire.noise.hashes`, uint32."""
    x = counter.to(tl.uint32) + k0
    x = (x ^ (x >> 16)) * tl.full([1], FACTOR_1, tl.uint32)
    x = (x ^ (x >> 15)) + k1
    x = x * tl.full([1], FACTOR_2, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def _rotated(x, BY: tl.constexpr):
    """To the left by so many bits."""
    return x if BY == 0 else (x << BY) | (x >> (32 - BY))


@triton.jit
def _natural32(magnitude, exponent):
    """The level below a float32's magnitude (bits, uint32), and the top 32 bits of what is above it."""
    lifted = magnitude.to(tl.float32).to(tl.uint32, bitcast=True)
    normal = magnitude >= 0x00800000
    field = tl.where(normal, (magnitude >> 23).to(tl.int32), (lifted >> 23).to(tl.int32) - 149)
    fraction = tl.where(normal, magnitude, lifted) & 0x007FFFFF
    position = field - (exponent + 127)
    whole = tl.where(magnitude == 0, 0, fraction | 0x00800000)
    left = position + 9
    to_left = tl.minimum(tl.maximum(left, 0), 8).to(tl.uint32)
    to_right = tl.minimum(tl.maximum(-left, 0), 31).to(tl.uint32)
    part = tl.where(position >= 0, fraction << 9, tl.where(left > 0, whole << to_left, whole >> to_right))
    return tl.maximum(position + 1, 0), part


@triton.jit
def _natural64(magnitude, exponent):
    fraction = magnitude & 0x000FFFFFFFFFFFFF
    position = (magnitude >> 52).to(tl.int32) - (exponent + 1023)
    by = tl.minimum(tl.maximum(20 - position, 0), 63).to(tl.int64)
    part = tl.where(position >= 0, fraction >> 20, (fraction | 0x0010000000000000) >> by)
    return tl.maximum(position + 1, 0), part.to(tl.uint32)


@triton.jit
def _inverse(mantissa, FAMILY: tl.constexpr):
    """Return a float64 a little above the inverse of a mantissa, with which `_linear` multiplies."""
    inverse = mantissa
    if FAMILY == IS_LINEAR:
        inverse = (1.0 / mantissa.to(tl.float64)) * tl.full([1], ABOVE_ONE, tl.int64).to(tl.float64, bitcast=True)
    return inverse


@triton.jit
def _linear(magnitude, exponent, mantissa, inverse, TOP: tl.constexpr, FAMILY: tl.constexpr):
    """The same of a float64, for multiples of the unit: see `inagg_host.codec.encoder_loops.steps`."""
    wide = mantissa.to(tl.float64)
    magnitude = tl.where(magnitude <= wide * TOP * power_of_two(exponent), magnitude, 0.0)
    if FAMILY == IS_LINEAR:
        steps = tl.floor(tl.floor(magnitude * power_of_two(32 - exponent)) * inverse)
        floor = tl.floor(steps * power_of_two(tl.full([1], -32, tl.int32)))
        part = steps - floor * power_of_two(tl.full([1], 32, tl.int32))
    else:
        steps = magnitude * power_of_two(-exponent)
        floor = tl.floor(steps)
        part = tl.floor((steps - floor) * power_of_two(tl.full([1], 32, tl.int32)))
    return floor.to(tl.int64).to(tl.int32), part.to(tl.int64).to(tl.uint32)


@triton.jit
def _as_float64(magnitude):
    """A magnitude as a number."""
    if magnitude.dtype == tl.uint32:
        number = magnitude.to(tl.float32, bitcast=True).to(tl.float64)
    else:
        number = magnitude.to(tl.float64, bitcast=True)
    return number


@triton.jit
def _is_beyond(highest, exponent, mantissa, TOP: tl.constexpr, FRACTION_BITS: tl.constexpr, FAMILY: tl.constexpr):
    """Whether a magnitude is above the top level, or NaN."""
    top = exponent + FRACTION_BITS
    if FAMILY != IS_NATURAL:
        within = _as_float64(highest) <= mantissa.to(tl.float64) * TOP * power_of_two(exponent)
        beyond = within == 0
    elif highest.dtype == tl.uint32:
        beyond = highest > tl.where(top > 127, 0x7F7FFFFF, (top + 127) << 23).to(tl.uint32)
    else:
        beyond = highest > (top + 1023).to(tl.int64) << 52
    return beyond


@triton.jit
def _rounded(magnitude, word, exponent, mantissa, inverse, TOP: tl.constexpr, FAMILY: tl.constexpr):
    """The level to which the noise rounds a magnitude, and whether it leaves that open."""
    if FAMILY != IS_NATURAL:
        level, part = _linear(_as_float64(magnitude), exponent, mantissa, inverse, TOP, FAMILY)
    elif magnitude.dtype == tl.uint32:
        level, part = _natural32(magnitude, exponent)
    else:
        level, part = _natural64(magnitude, exponent)
    complement = word ^ 0xFFFFFFFF  # Triton's interpreter has no ~ of unsigned numbers
    return level + (part > complement).to(tl.int32), part == complement


@triton.jit
def _rounded_inside(magnitude, word, exponent):
    """Version of `_rounded` for float32's magnitudes that are 0, or normal and not below level 1, as most are: the
    noise is added to the fraction, and what is carried rounds up."""
    level_0 = (-(exponent + 126) << 23).to(tl.uint32, bitcast=True)
    level = ((magnitude + (word >> 9) + level_0) >> 23).to(tl.int32)
    return tl.where(magnitude == 0, 0, level), (magnitude << 9) + word == 0xFFFFFFFF


@triton.jit
def _four(values, at, lane, elements, whole, LANES: tl.constexpr):
    """The bits of the values from ``at`` on that belong to ``lane`` and those that are one, two and three times
    VECTOR further on. Lanes are there or not in groups of eight; elements one by one, so what they mask is loaded one
    by one."""
    second, third, fourth = IN_VECTOR, 2 * IN_VECTOR, 3 * IN_VECTOR
    if whole:
        a = tl.load(values + at, mask=lane < LANES, other=0)
        b = tl.load(values + at + second, mask=lane + second < LANES, other=0)
        c = tl.load(values + at + third, mask=lane + third < LANES, other=0)
        d = tl.load(values + at + fourth, mask=lane + fourth < LANES, other=0)
    else:
        a = tl.load(values + at, mask=(lane < LANES) & (at < elements), other=0)
        b = tl.load(values + at + second, mask=(lane + second < LANES) & (at + second < elements), other=0)
        c = tl.load(values + at + third, mask=(lane + third < LANES) & (at + third < elements), other=0)
        d = tl.load(values + at + fourth, mask=(lane + fourth < LANES) & (at + fourth < elements), other=0)
    return a, b, c, d


@triton.jit
def _unsigned(bits, HALF: tl.constexpr):
    """Magnitudes that are in the order of their bits: of a float32, or of a float64."""
    if bits.dtype == tl.int64:
        magnitude = magnitude_of(bits)
    else:
        magnitude = magnitude_of(widen(bits, HALF).to(tl.int32, bitcast=True)).to(tl.uint32, bitcast=True)
    return magnitude


@triton.jit
def _store(to, unit, level, bits, FAMILY: tl.constexpr, BITS: tl.constexpr, LANES: tl.constexpr):
    """The codes of a row of eight lanes for each group. ``unit``: the first one's, in bytes or codes of four bytes."""
    GROUPS: tl.constexpr = level.shape[0]
    PER: tl.constexpr = 8 // BITS if BITS < 8 else 1
    negative = bits < 0
    if FAMILY == IS_NATURAL:
        code = tl.where(negative & (level > 0), level | (1 << (BITS - 1)), level)
    else:
        code = tl.where(negative, -level, level)
    if BITS == 2:
        first, second = tl.split(tl.reshape(code & 3, [GROUPS, IN_VECTOR // 2, 2]))
        first, second = tl.split(tl.reshape((first << 2) | second, [GROUPS, IN_VECTOR // 4, 2]))
        code = (first << 4) | second
    elif BITS == 4:
        first, second = tl.split(tl.reshape(code & 15, [GROUPS, IN_VECTOR // 2, 2]))
        code = (first << 4) | second
    elif BITS == 32:
        w = code.to(tl.uint32, bitcast=True)
        w = (w >> 24) | ((w >> 8) & 0xFF00) | ((w << 8) & 0xFF0000) | (w << 24)
        code = w.to(tl.int32, bitcast=True)
    at = unit + tl.arange(0, IN_VECTOR // PER)[None, :]
    tl.store(to + at, code.to(to.dtype.element_ty), mask=at < LANES // PER)


@triton.jit
def _note(ties, counted, block, lane, bits, tied):
    """Tell the host of lanes that are ``tied``, and their values."""
    at = tl.atomic_add(counted + tl.zeros_like(lane), 1, mask=tied, sem="relaxed") & (TIES_MOST - 1)
    tl.store(ties + 2 * at + 1, bits.to(tl.int64), mask=tied)
    tl.store(ties + 2 * at, ((block + 1).to(tl.int64) << BITS_OF_LANE) | lane, mask=tied)


@triton.jit(do_not_specialize=["elements", "row_at", "first"])
def _encode(
    values, table, payloads, flags, ties, counted, elements, row_at, first, LANES: tl.constexpr, UNITS: tl.constexpr,
    TOP: tl.constexpr, FRACTION_BITS: tl.constexpr, FAMILY: tl.constexpr, BITS: tl.constexpr, HALF: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """``values``: their bits; ``first``: the number of their first block in the operation. UNITS: bytes of a payload,
    or lanes if a code has four bytes. A program encodes so many groups of lanes that share hashes."""
    PER: tl.constexpr = 8 // BITS if BITS < 8 else 1
    block = tl.program_id(0)
    row = table + (row_at + block) * COLUMNS
    state, exponent, mantissa = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    k0, k1 = tl.load(row + 3).to(tl.uint32, bitcast=True), tl.load(row + 4).to(tl.uint32, bitcast=True)
    inverse = _inverse(mantissa, FAMILY)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)[:, None]
    within = tl.arange(0, IN_VECTOR)[None, :]
    lane = group * SHARED_BY + within
    whole = (block + 1) * LANES <= elements
    a, b, c, d = _four(values, block * LANES + lane, lane, elements, whole, LANES)
    p, q, r, s = _unsigned(a, HALF), _unsigned(b, HALF), _unsigned(c, HALF), _unsigned(d, HALF)
    highest = tl.max(tl.maximum(tl.maximum(p, q), tl.maximum(r, s)))
    word = _hash(group * IN_VECTOR + within, k0, k1)
    w, x, y, z = word, _rotated(word, 8), _rotated(word, 16), _rotated(word, 24)
    inside = False
    if FAMILY == IS_NATURAL and p.dtype == tl.uint32:
        # 0 less 1 is above all else.
        lowest = tl.min(tl.minimum(tl.minimum(p - 1, q - 1), tl.minimum(r - 1, s - 1)))
        inside = lowest >= ((tl.maximum(exponent + 127, 1) << 23) - 1).to(tl.uint32)
    if state != CODED:
        e = tl.zeros([GROUPS, IN_VECTOR], tl.int32)
        f, g, h, tied = e, e, e, e < 0
        bad = (state == ZERO) & (highest != 0)
    elif inside:
        e, tied_e = _rounded_inside(p, w, exponent)
        f, tied_f = _rounded_inside(q, x, exponent)
        g, tied_g = _rounded_inside(r, y, exponent)
        h, tied_h = _rounded_inside(s, z, exponent)
        tied = tied_e | tied_f | tied_g | tied_h
        bad = _is_beyond(highest, exponent, mantissa, TOP, FRACTION_BITS, FAMILY)
    else:
        e, tied_e = _rounded(p, w, exponent, mantissa, inverse, TOP, FAMILY)
        f, tied_f = _rounded(q, x, exponent, mantissa, inverse, TOP, FAMILY)
        g, tied_g = _rounded(r, y, exponent, mantissa, inverse, TOP, FAMILY)
        h, tied_h = _rounded(s, z, exponent, mantissa, inverse, TOP, FAMILY)
        tied = tied_e | tied_f | tied_g | tied_h
        bad = _is_beyond(highest, exponent, mantissa, TOP, FRACTION_BITS, FAMILY)
    to = payloads + (row_at + block) * UNITS  # less than 2**31: see `codec.launches.BASE_BLOCKS`
    unit = group * (SHARED_BY // PER)
    _store(to, unit, e, a, FAMILY, BITS, LANES)
    _store(to, unit + IN_VECTOR // PER, f, b, FAMILY, BITS, LANES)
    _store(to, unit + 2 * IN_VECTOR // PER, g, c, FAMILY, BITS, LANES)
    _store(to, unit + 3 * IN_VECTOR // PER, h, d, FAMILY, BITS, LANES)
    any_tied = tl.max(tied.to(tl.int32))
    if any_tied != 0:  # all anew: what is kept for this, which almost never comes, would take registers
        for j in range(4):
            there, by = lane + j * IN_VECTOR, 8 * j
            shared = (word << by) | (word >> (32 - by) % 32)
            at = block * LANES + there
            bits = tl.load(values + at, mask=(there < LANES) & (at < elements), other=0)
            _, tied = _rounded(_unsigned(bits, HALF), shared, exponent, mantissa, inverse, TOP, FAMILY)
            _note(ties, counted, first + block, there, bits, tied)
    flag = bad.to(tl.int32) * BAD_FLAG + any_tied * TIE_FLAG
    tl.store(flags + (row_at + block) * tl.num_programs(1) + tl.program_id(1), flag.to(tl.uint8))


def flag_bytes(job: Job) -> int:
    """Bytes of a block's flags, one of each program; any may have any flag."""
    return -(-job.lanes // TILE)


def encode(
    job: Job, values: Tensor, table: Tensor, payloads: Tensor, flags: Tensor, ties: Tensor, counted: Tensor, at: int,
    count: int, first: int = 0,
) -> Any:  # fmt: skip
    """The ``payloads`` of the first blocks of ``values``, and their ``flags`` (`flag_bytes` each), both uint8 and 1-D.

    Blocks with the flag `BAD` hold nothing of use; those with `TIE` have lanes that must be encoded again, exactly:
    these are in ``ties`` (int64, `codec.staged.TIES` pairs), see `codec.staging.Board`, of which ``counted`` (int32,
    1) are taken. ``first``: the number of the first block in the operation.
    """
    up = job.format.up
    family = NATURAL if up in SIGN_AND_LEVEL else FIXED if up is Encoding.FIX32 else LINEAR
    out = payloads.view(torch.int32) if family == FIXED else payloads
    return _encode[(count, flag_bytes(job))](
        values.view(FLOATS[values.element_size()]), table, out, flags, ties, counted, values.numel(), at, first,
        LANES=job.lanes, UNITS=job.for_encode.payload_bytes // out.element_size(), TOP=job.for_encode.top,
        FRACTION_BITS=job.for_encode.fraction_bits, FAMILY=family, BITS=LANE_BITS[up],
        HALF=values.dtype is torch.float16, GROUPS=TILE // SHARING, num_warps=ENCODING_WARPS, **UNFUSED,
    )  # fmt: skip
