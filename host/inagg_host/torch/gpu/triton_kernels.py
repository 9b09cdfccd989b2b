"""The kernels in Triton: each reads floats or codes once and writes the other, in the order of memory.

One program does a stretch of one block. Everything is integers of an explicit width, or float64: no float32 operation
meets a subnormal number, and none may be contracted to another result. Interfaces are those of `ops`. Kernels have no
annotations but `constexpr`, since Triton would look for what these name.

Triton compiles a kernel anew for other constants and types, for numbers that are 1 or multiples of 16, and for
addresses that are not multiples of 16 bytes. So what does not change in a job is a constant, counts and offsets are
exempt, and addresses are those of whole buffers, and of blocks of values: these begin at multiples of 8 lanes of 2
bytes or more.
"""

# ruff: noqa: N803, N806

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inagg_host.codec import Job
from inagg_host.io.device import BAD, TIE
from inagg_wire.layout import LANE_BITS, SIGN_AND_LEVEL, Encoding
from inagg_wire.noise import MULTIPLIER_1, MULTIPLIER_2, SHARING, VECTOR

from .table import FLOATS, Column, State

TILE = 512
"""Bytes (of four-byte codes, lanes) that one program writes: 1448 lanes are three of them, with few to spare."""

UNFUSED = {"enable_fp_fusion": False}
"""Option of a launch: no multiplication and addition become one, with one rounding; Triton's default differs between
its releases."""

LARGEST_TILE = 1024
"""Lanes that one program looks at in a step to find a block's largest."""

NATURAL, LINEAR, FIXED = 0, 1, 2

COLUMNS = tl.constexpr(len(Column))
CODED, ZERO, NAN = tl.constexpr(int(State.CODED)), tl.constexpr(int(State.ZERO)), tl.constexpr(int(State.NAN))
BAD_FLAG, TIE_FLAG = tl.constexpr(BAD), tl.constexpr(TIE)
IS_NATURAL, IS_LINEAR = tl.constexpr(NATURAL), tl.constexpr(LINEAR)
FACTOR_1, FACTOR_2 = tl.constexpr(MULTIPLIER_1), tl.constexpr(MULTIPLIER_2)
IN_VECTOR, SHARED_BY = tl.constexpr(VECTOR), tl.constexpr(SHARING)
ABOVE_ONE = tl.constexpr((1023 << 52) | (1 << 2))
"""The bits of 1 + 2**-50: a float literal would be rounded to float32."""


# --- scales ---


@triton.jit(do_not_specialize=["elements"])
def _largest(bits, out, elements, LANES: tl.constexpr, TILE: tl.constexpr):
    block = tl.program_id(0)
    begin = block * LANES  # less than 2**31: see `inagg_host.io.device.LOOK_ELEMENTS`
    # As floats' magnitudes are ordered as their bits. Registers for a whole block of 13,072 lanes would be spilled.
    largest = tl.zeros([TILE], bits.dtype.element_ty)
    for start in range(0, LANES, TILE):
        lane = start + tl.arange(0, TILE)
        x = tl.load(bits + begin + lane, mask=(lane < LANES) & (begin + lane < elements), other=0)
        if x.dtype == tl.int64:
            x &= 0x7FFFFFFFFFFFFFFF
        else:
            mask = 0x7FFF if x.dtype == tl.int16 else 0x7FFFFFFF
            x = (x & mask).to(x.dtype)
        largest = tl.maximum(largest, x)
    tl.store(out + block, tl.max(largest, axis=0))


def largest(values: Tensor, lanes: int, out: Tensor) -> None:
    """As `ops.largest`."""
    bits = values.view(FLOATS[values.element_size()])
    _largest[(out.numel(),)](bits, out, values.numel(), LANES=lanes, TILE=LARGEST_TILE, **UNFUSED)


# --- contributions ---


@triton.jit
def _word(lane, k0, k1):
    """Word 0 of `inagg_wire.noise.host_words`, uint32."""
    x = (lane // SHARED_BY * IN_VECTOR + lane % IN_VECTOR).to(tl.uint32) + k0
    x = (x ^ (x >> 16)) * tl.full([1], FACTOR_1, tl.uint32)
    x = (x ^ (x >> 15)) + k1
    x = x * tl.full([1], FACTOR_2, tl.uint32)
    x = x ^ (x >> 16)
    by = (lane // IN_VECTOR % 4 * 8).to(tl.uint32)
    # No shift by 32, which is undefined.
    return (x << by) | (x >> 1 >> (31 - by))


@triton.jit
def _power_of_two(exponent):
    return ((exponent.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _widen(bits, HALF: tl.constexpr):
    """Bits of float16, bfloat16 (int16) or float32 (int32) as float32."""
    if bits.dtype == tl.int32:
        wide = bits.to(tl.float32, bitcast=True)
    elif HALF:
        wide = bits.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        wide = (bits.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return wide


@triton.jit
def _natural32(magnitude, exponent, top):
    """The level below a float32's magnitude (bits, uint32), the top 32 bits of what is above it, and whether it is
    beyond 2**top."""
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
    limit = tl.where(top > 127, 0x7F7FFFFF, (top + 127) << 23).to(tl.uint32)
    return tl.maximum(position + 1, 0), part, magnitude > limit


@triton.jit
def _natural64(magnitude, exponent, top):
    fraction = magnitude & 0x000FFFFFFFFFFFFF
    position = (magnitude >> 52).to(tl.int32) - (exponent + 1023)
    by = tl.minimum(tl.maximum(20 - position, 0), 63).to(tl.int64)
    part = tl.where(position >= 0, fraction >> 20, (fraction | 0x0010000000000000) >> by)
    return tl.maximum(position + 1, 0), part.to(tl.uint32), magnitude > (top + 1023).to(tl.int64) << 52


@triton.jit
def _linear(magnitude, exponent, mantissa, TOP: tl.constexpr, FAMILY: tl.constexpr):
    """The same of a float64, for multiples of the unit: see `inagg_host.codec.encoder_loops.steps`."""
    wide = mantissa.to(tl.float64)
    within = magnitude <= wide * TOP * _power_of_two(exponent)
    magnitude = tl.where(within, magnitude, 0.0)
    if FAMILY == IS_LINEAR:
        inverse = (1.0 / wide) * tl.full([1], ABOVE_ONE, tl.int64).to(tl.float64, bitcast=True)
        steps = tl.floor(tl.floor(magnitude * _power_of_two(32 - exponent)) * inverse)
        floor = tl.floor(steps * _power_of_two(tl.full([1], -32, tl.int32)))
        part = steps - floor * _power_of_two(tl.full([1], 32, tl.int32))
    else:
        steps = magnitude * _power_of_two(-exponent)
        floor = tl.floor(steps)
        part = tl.floor((steps - floor) * _power_of_two(tl.full([1], 32, tl.int32)))
    return floor.to(tl.int64).to(tl.int32), part.to(tl.int64).to(tl.uint32), within == 0


@triton.jit(do_not_specialize=["elements", "row_at"])
def _encode(
    values, table, payloads, flags, elements, row_at, LANES: tl.constexpr, UNITS: tl.constexpr,
    TOP: tl.constexpr, FRACTION_BITS: tl.constexpr, FAMILY: tl.constexpr, BITS: tl.constexpr, HALF: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """``values``: their bits. UNITS: bytes of a payload, or lanes if a code has four bytes."""
    PER: tl.constexpr = 8 // BITS if BITS < 8 else 1
    block = tl.program_id(0)
    row = table + (row_at + block) * COLUMNS
    state, exponent, mantissa = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    k0, k1 = tl.load(row + 3).to(tl.uint32, bitcast=True), tl.load(row + 4).to(tl.uint32, bitcast=True)
    top = exponent + FRACTION_BITS
    unit = tl.program_id(1) * TILE + tl.arange(0, TILE)
    packed = tl.zeros([TILE], tl.int32)
    bad = tl.zeros([TILE], tl.int32)
    tied = tl.zeros([TILE], tl.int32)
    for i in tl.static_range(PER):
        lane = unit * PER + i
        at = block * LANES + lane
        bits = tl.load(values + at, mask=(unit < UNITS) & (at < elements), other=0)
        if bits.dtype == tl.int64:
            magnitude = bits & 0x7FFFFFFFFFFFFFFF
            if FAMILY == IS_NATURAL:
                level, part, beyond = _natural64(magnitude, exponent, top)
            else:
                x = magnitude.to(tl.float64, bitcast=True)
                level, part, beyond = _linear(x, exponent, mantissa, TOP, FAMILY)
        else:
            magnitude = _widen(bits, HALF).to(tl.uint32, bitcast=True) & 0x7FFFFFFF
            if FAMILY == IS_NATURAL:
                level, part, beyond = _natural32(magnitude, exponent, top)
            else:
                x = magnitude.to(tl.float32, bitcast=True).to(tl.float64)
                level, part, beyond = _linear(x, exponent, mantissa, TOP, FAMILY)
        complement = ~_word(lane, k0, k1)
        level += (part > complement).to(tl.int32)
        negative = bits < 0
        if FAMILY == IS_NATURAL:
            code = tl.where(negative & (level > 0), level | (1 << (BITS - 1)), level)
        else:
            code = tl.where(negative, -level, level)
        if BITS < 8:
            packed = (packed << BITS) | (code & ((1 << BITS) - 1))
        else:
            packed = code
        wrong = tl.where(state == CODED, beyond.to(tl.int32), ((state == ZERO) & (magnitude != 0)).to(tl.int32))
        bad |= wrong
        tied |= ((part == complement) & (unit < UNITS) & (state == CODED)).to(tl.int32)
    packed = tl.where(state == CODED, packed, 0)
    to = payloads + (row_at + block) * UNITS + unit  # less than 2**31: of a slot
    if BITS == 32:
        w = packed.to(tl.uint32, bitcast=True)
        w = (w >> 24) | ((w >> 8) & 0xFF00) | ((w << 8) & 0xFF0000) | (w << 24)
        tl.store(to, w.to(tl.int32, bitcast=True), mask=unit < UNITS)
    else:
        tl.store(to, packed.to(tl.uint8), mask=unit < UNITS)
    flag = tl.max(bad, axis=0) * BAD_FLAG + tl.max(tied, axis=0) * TIE_FLAG
    tl.store(flags + (row_at + block) * tl.num_programs(1) + tl.program_id(1), flag.to(tl.uint8))


def _units(job: Job) -> int:
    """Bytes of a payload, or lanes if a code has four bytes."""
    return job.lanes if job.format.up is Encoding.FIX32 else job.for_encode.payload_bytes


def flag_bytes(job: Job) -> int:
    """As `ops.flag_bytes`: one of each program."""
    return -(-_units(job) // TILE)


def count_words(job: Job) -> int:
    """As `ops.count_words`: one of each program."""
    return -(-job.lanes // TILE)


def encode(job: Job, values: Tensor, table: Tensor, payloads: Tensor, flags: Tensor, at: int, count: int) -> None:
    """As `ops.encode`."""
    up = job.format.up
    family = NATURAL if up in SIGN_AND_LEVEL else FIXED if up is Encoding.FIX32 else LINEAR
    out = payloads.view(torch.int32) if family == FIXED else payloads
    _encode[(count, flag_bytes(job))](
        values.view(FLOATS[values.element_size()]), table, out, flags, values.numel(), at, LANES=job.lanes,
        UNITS=_units(job), TOP=job.for_encode.top, FRACTION_BITS=job.for_encode.fraction_bits, FAMILY=family,
        BITS=LANE_BITS[up], HALF=values.dtype is torch.float16, TILE=TILE, **UNFUSED,
    )  # fmt: skip


# --- results ---


@triton.jit
def _narrow(bits, HALF: tl.constexpr, SIZE: tl.constexpr):
    """Bits of float32 (uint32) to those of the type, to nearest even."""
    if SIZE == 4:
        narrow = bits.to(tl.int32, bitcast=True)
    elif HALF:
        narrow = bits.to(tl.float32, bitcast=True).to(tl.float16).to(tl.int16, bitcast=True)
    else:  # never of NaN
        narrow = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.uint16).to(tl.int16, bitcast=True)
    return narrow


@triton.jit
def _swapped(word):
    """The two low bytes of an int32, in the other order; no others."""
    return ((word >> 8) & 0xFF) | ((word & 0xFF) << 8)


@triton.jit
def _signed(word):
    """An int32 of 16 bits, as two's complement."""
    return (word ^ 0x8000) - 0x8000


@triton.jit(do_not_specialize=["elements", "row_at", "divisor"])
def _decode(
    payloads, table, out, counts, elements, row_at, divisor, LANES: tl.constexpr, UNITS: tl.constexpr,
    NAN_BITS: tl.constexpr, TOP: tl.constexpr, NATURAL_CODE: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr,
    HALF: tl.constexpr, MEAN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``out``: the values' bits, of SIZE bytes. ``payloads``: integers of the size of a code, at least a byte; UNITS:
    of a block."""
    block = tl.program_id(0)
    row = table + (row_at + block) * COLUMNS
    source = payloads + (row_at + block) * UNITS  # less than 2**31: of a slot
    state, exponent, mantissa = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    lane = tl.program_id(1) * TILE + tl.arange(0, TILE)
    at = block * LANES + lane
    there = (lane < LANES) & (at < elements)
    if BITS == 4:
        byte = tl.load(source + lane // 2, mask=there, other=0).to(tl.int32)
        code = tl.where(lane % 2 == 0, byte >> 4, byte & 15)
        if not NATURAL_CODE:
            code = (code ^ 8) - 8
    else:
        raw = tl.load(source + lane, mask=there, other=0)
        if BITS == 8:
            code = raw.to(tl.int32)
            if not NATURAL_CODE:
                code = ((code & 0xFF) ^ 0x80) - 0x80
        elif BITS == 16:
            code = _signed(_swapped(raw.to(tl.int32)))
        else:
            # As two halves: for sm_100 Triton 3.9 cannot select the instruction that LLVM makes of all four bytes.
            first_half, second_half = _swapped(raw), _swapped(raw >> 16)
            code = (_signed(first_half).to(tl.int64) << 16) + second_half
    if NATURAL_CODE:
        SIGN: tl.constexpr = 1 << (BITS - 1)
        code &= 0xFF
        level = code & (SIGN - 1)
        valid = level <= TOP
        some = valid & (level > 0)
        power = level - 1 + exponent
        negative = code >= SIGN
        if SIZE == 8:
            bits = tl.where(some, (power.to(tl.int64) + 1023) << 52, 0)
            sums = tl.where(some & negative, bits | (-0x7FFFFFFFFFFFFFFF - 1), bits)
        else:
            field = tl.where(power > 127, 255, power + 127) << 23
            subnormal = tl.full([1], 1, tl.int32) << tl.minimum(tl.maximum(power + 149, 0), 22)
            bits32 = tl.where(power >= -126, field, tl.where(power >= -149, subnormal, 0))
            bits32 = tl.where(some, bits32, 0).to(tl.uint32, bitcast=True)
            bits32 = tl.where(some & negative, bits32 | tl.full([1], 0x80000000, tl.uint32), bits32)
            sums = _narrow(bits32, HALF, SIZE)
    else:
        wide = code.to(tl.int64)
        valid = (wide <= TOP) & (wide >= -TOP)
        unit = mantissa.to(tl.float64) * _power_of_two(exponent)
        exact = tl.where(valid, wide, 0).to(tl.float64) * unit + 0.0
        if SIZE == 8:
            sums = exact.to(tl.int64, bitcast=True)
        elif SIZE == 4:
            sums = exact.to(tl.float32).to(tl.int32, bitcast=True)
        else:
            nearest = exact.to(tl.float32)
            bits32 = nearest.to(tl.uint32, bitcast=True)
            again = nearest.to(tl.float64)
            inexact = (again != exact) & ((bits32 & 0x7FFFFFFF) < 0x7F800000)
            too_far = tl.abs(again) > tl.abs(exact)
            odd = (bits32 - too_far.to(tl.uint32)) | 1
            sums = _narrow(tl.where(inexact, odd, bits32), HALF, SIZE)
    if MEAN:
        if SIZE == 8:
            sums = (sums.to(tl.float64, bitcast=True) / divisor.to(tl.float64)).to(tl.int64, bitcast=True)
        elif SIZE == 4:
            quotient = tl.div_rn(sums.to(tl.float32, bitcast=True), tl.zeros([TILE], tl.float32) + divisor)
            sums = quotient.to(tl.int32, bitcast=True)
        else:
            quotient = tl.div_rn(_widen(sums, HALF), tl.zeros([TILE], tl.float32) + divisor)
            sums = _narrow(quotient.to(tl.uint32, bitcast=True), HALF, SIZE)
    sums = tl.where(state == CODED, sums, tl.where(state == NAN, NAN_BITS, 0).to(sums.dtype))
    tl.store(out + at, sums, mask=there)
    wrong = tl.sum((there & (valid == 0) & (state == CODED)).to(tl.int32), axis=0)
    tl.store(counts + (row_at + block) * tl.num_programs(1) + tl.program_id(1), wrong)


NAN_BITS = {torch.float16: 0x7E00, torch.bfloat16: 0x7FC0, torch.float32: 0x7FC00000, torch.float64: 0x7FF8 << 48}


def decode(
    job: Job, payloads: Tensor, table: Tensor, values: Tensor, counts: Tensor, at: int, count: int, divisor: int = 1
) -> None:
    """As `ops.decode`."""
    encoding = job.format.down(job.workers)
    each, size = LANE_BITS[encoding], values.element_size()
    codes = {16: torch.int16, 32: torch.int32}.get(each)
    source = payloads if codes is None else payloads.view(codes)
    _decode[(count, count_words(job))](
        source, table, values.view(FLOATS[size]), counts, values.numel(), at, divisor, LANES=job.lanes,
        UNITS=job.for_decode.payload_bytes // source.element_size(), NAN_BITS=NAN_BITS[values.dtype],
        TOP=job.for_decode.top, NATURAL_CODE=encoding in SIGN_AND_LEVEL, BITS=each, SIZE=size,
        HALF=values.dtype is torch.float16, MEAN=divisor != 1, TILE=TILE, **UNFUSED,
    )  # fmt: skip
