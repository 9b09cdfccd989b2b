"""Results in Triton: see `triton_kernels`."""

# ruff: noqa: N803, N806

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from inagg_host.codec import Job
from inagg_wire.layout import LANE_BITS, SIGN_AND_LEVEL

from .floats import FLOATS
from .triton_bits import CODED, COLUMNS, NAN, UNFUSED, power_of_two

DECODING_TILE, DECODING_STEPS, DECODING_WARPS = 512, 3, 4
"""Lanes that one program decodes at once, and how often. A thread has four neighbours: 16 bytes of float32 are stored
at once."""


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


@triton.jit
def _unpacked(raw, lane, NATURAL_CODE: tl.constexpr, BITS: tl.constexpr):
    """Codes, from the bytes or words that they are in: an integer, of a natural one the bits."""
    if BITS == 4:
        byte = raw.to(tl.int32)
        code = tl.where(lane % 2 == 0, (byte >> 4) & 15, byte & 15)
        if not NATURAL_CODE:
            code = (code ^ 8) - 8
    elif BITS == 8:
        code = raw.to(tl.int32) & 0xFF
        if not NATURAL_CODE:
            code = (code ^ 0x80) - 0x80
    elif BITS == 16:
        code = _signed(_swapped(raw.to(tl.int32)))
    else:
        # As two halves: for sm_100 Triton 3.9 cannot select the instruction that LLVM makes of all four bytes.
        first_half, second_half = _swapped(raw), _swapped(raw >> 16)
        code = (_signed(first_half).to(tl.int64) << 16) + second_half
    return code


@triton.jit
def _powers(code, exponent, TOP: tl.constexpr, BITS: tl.constexpr, NORMAL: tl.constexpr):
    """The sums that natural codes stand for, as bits of float32, uint32. NORMAL: all levels are normal numbers."""
    SIGN: tl.constexpr = 1 << (BITS - 1)
    level = code & (SIGN - 1)
    if NORMAL:
        bits = (level << 23) + ((exponent + 126) << 23)
    else:
        power = level - 1 + exponent
        field = tl.where(power > 127, 255, power + 127) << 23
        subnormal = tl.full([1], 1, tl.int32) << tl.minimum(tl.maximum(power + 149, 0), 22)
        bits = tl.where(power >= -126, field, tl.where(power >= -149, subnormal, 0))
    sign = (code & SIGN).to(tl.uint32) << (32 - BITS)
    return tl.where((level > 0) & (level <= TOP), bits.to(tl.uint32, bitcast=True) | sign, 0)


@triton.jit
def _powers64(code, exponent, TOP: tl.constexpr, BITS: tl.constexpr):
    """The same as bits of float64, int64."""
    SIGN: tl.constexpr = 1 << (BITS - 1)
    level = code & (SIGN - 1)
    bits = ((level - 1 + exponent).to(tl.int64) + 1023) << 52
    bits = tl.where(code >= SIGN, bits | (-0x7FFFFFFFFFFFFFFF - 1), bits)
    return tl.where((level > 0) & (level <= TOP), bits, 0)


@triton.jit
def _multiples(code, exponent, mantissa, TOP: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr):
    """The sums that integers stand for, as bits."""
    wide = code.to(tl.int64)
    unit = mantissa.to(tl.float64) * power_of_two(exponent)
    exact = tl.where((wide <= TOP) & (wide >= -TOP), wide, 0).to(tl.float64) * unit + 0.0
    if SIZE == 8:
        sums = exact.to(tl.int64, bitcast=True)
    elif SIZE == 4:
        sums = exact.to(tl.float32).to(tl.int32, bitcast=True)
    else:
        nearest = exact.to(tl.float32)
        bits = nearest.to(tl.uint32, bitcast=True)
        again = nearest.to(tl.float64)
        inexact = (again != exact) & ((bits & 0x7FFFFFFF) < 0x7F800000)
        too_far = tl.abs(again) > tl.abs(exact)
        odd = (bits - too_far.to(tl.uint32)) | 1
        sums = _narrow(tl.where(inexact, odd, bits), HALF, SIZE)
    return sums


@triton.jit
def _divided(sums, divisor, HALF: tl.constexpr, SIZE: tl.constexpr):
    """Bits of sums, of float32 if the type is narrower, to those of means."""
    if SIZE == 8:
        means = (sums.to(tl.float64, bitcast=True) / divisor.to(tl.float64)).to(tl.int64, bitcast=True)
    else:
        wide = sums.to(tl.float32, bitcast=True)
        means = _narrow(tl.div_rn(wide, tl.zeros_like(wide) + divisor).to(tl.uint32, bitcast=True), HALF, SIZE)
    return means


@triton.jit
def _decode_lanes(
    raw, to, lane, room, state, exponent, mantissa, divisor, LANES: tl.constexpr, NAN_BITS: tl.constexpr,
    TOP: tl.constexpr, NATURAL_CODE: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    MEAN: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Write the sums of ``lane``, whose codes are in ``raw``; which of them name no level. ``room``: how many values
    there are from the block's first on. PLAIN: as many as it has lanes, and it is coded, with levels that are normal
    numbers: so are most. Lanes are there or not in groups of eight, elements one by one, and so they are stored."""
    SUM_SIZE: tl.constexpr = 4 if MEAN and SIZE == 2 else SIZE
    code = _unpacked(raw, lane, NATURAL_CODE, BITS)
    if NATURAL_CODE:
        valid = (code & ((1 << (BITS - 1)) - 1)) <= TOP
        if SIZE == 8:
            sums = _powers64(code, exponent, TOP, BITS)
        else:
            sums = _narrow(_powers(code, exponent, TOP, BITS, PLAIN), HALF, SUM_SIZE)
    else:
        valid = (code <= TOP) & (code >= -TOP)
        sums = _multiples(code, exponent, mantissa, TOP, SUM_SIZE, HALF)
    if MEAN:
        sums = _divided(sums, divisor, HALF, SIZE)
    if PLAIN:
        there = lane < LANES
        wrong = there & (valid == 0)
    else:
        there = (lane < LANES) & (lane < room)
        wrong = there & (valid == 0) & (state == CODED)
        sums = tl.where(state == CODED, sums, tl.where(state == NAN, NAN_BITS, 0).to(sums.dtype))
    tl.store(to + lane, sums, mask=there)
    return wrong.to(tl.int32)


@triton.jit(do_not_specialize=["elements", "row_at", "divisor"])
def _decode(
    payloads, table, out, counts, elements, row_at, divisor, LANES: tl.constexpr, UNITS: tl.constexpr,
    NAN_BITS: tl.constexpr, TOP: tl.constexpr, NATURAL_CODE: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr,
    HALF: tl.constexpr, MEAN: tl.constexpr, TILE: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """``out``: the values' bits, of SIZE bytes. ``payloads``: integers of the size of a code, at least a byte; UNITS:
    of a block. A program decodes STEPS times TILE lanes."""
    block = tl.program_id(0)
    row = table + (row_at + block) * COLUMNS
    source = payloads + (row_at + block) * UNITS  # less than 2**31: see `codec.launches.BASE_BLOCKS`
    state, exponent, mantissa = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    to, room = out + block * LANES, elements - block * LANES
    lane = tl.program_id(1) * (STEPS * TILE) + tl.arange(0, TILE)
    raws = ()
    for step in tl.static_range(STEPS):  # all of them before anything is stored, which might be what is loaded
        place = lane + step * TILE
        raws = raws + (  # type: ignore[assignment]  # noqa: RUF005  # Triton knows no * there
            tl.load(source + place * BITS // 8 if BITS < 8 else source + place, mask=place < LANES, other=0),
        )
    wrong = tl.zeros([TILE], tl.int32)
    plain = (room >= LANES) & (state == CODED)
    if NATURAL_CODE:
        plain &= (exponent >= -126) & (exponent + TOP <= 128)
    if plain:
        for step in tl.static_range(STEPS):
            wrong += _decode_lanes(
                raws[step], to, lane + step * TILE, room, state, exponent, mantissa, divisor, LANES, NAN_BITS, TOP,
                NATURAL_CODE, BITS, SIZE, HALF, MEAN, True,
            )  # fmt: skip
    else:
        for step in tl.static_range(STEPS):
            wrong += _decode_lanes(
                raws[step], to, lane + step * TILE, room, state, exponent, mantissa, divisor, LANES, NAN_BITS, TOP,
                NATURAL_CODE, BITS, SIZE, HALF, MEAN, False,
            )  # fmt: skip
    tl.store(counts + (row_at + block) * tl.num_programs(1) + tl.program_id(1), tl.sum(wrong, axis=0))


def decode(
    job: Job, payloads: Tensor, table: Tensor, values: Tensor, counts: Tensor, at: int, count: int, divisor: int = 1
) -> Any:
    """Write the sums that ``payloads`` (uint8, 1-D) hold over the first blocks of ``values``; into ``counts`` (int32,
    `count_words` a block) how many codes name no level. ``divisor`` as in `inagg_host.codec.decoder.decode`."""
    encoding = job.format.down(job.workers)
    each, size = LANE_BITS[encoding], values.element_size()
    codes = {16: torch.int16, 32: torch.int32}.get(each)
    source = payloads if codes is None else payloads.view(codes)
    return _decode[(count, count_words(job))](
        source, table, values.view(FLOATS[size]), counts, values.numel(), at, divisor, LANES=job.lanes,
        UNITS=job.for_decode.payload_bytes // source.element_size(), NAN_BITS=job.float_type.nan_bits,
        TOP=job.for_decode.top, NATURAL_CODE=encoding in SIGN_AND_LEVEL, BITS=each, SIZE=size,
        HALF=values.dtype is torch.float16, MEAN=divisor != 1, TILE=DECODING_TILE,
        STEPS=_steps(job), num_warps=DECODING_WARPS, **UNFUSED,
    )  # fmt: skip


def count_words(job: Job) -> int:
    """Numbers, int32, that add up to a block's invalid codes: one of each program."""
    return -(-job.lanes // (DECODING_TILE * _steps(job)))


def _steps(job: Job) -> int:
    return min(DECODING_STEPS, -(-job.lanes // DECODING_TILE))
