"""The kernels of a device as plain torch operations, with the interface of `inagg_host.torch.gpu.triton_kernels`: the
same bits as those, and as those of the CPU.

Unsigned numbers of 32 bits stand in int32, whose sums and products wrap; that is all that hash and carries need. Floats
are taken apart as integers or widened to float64, where nothing is subnormal. So all is exact, unless a CPU was told to
flush subnormal numbers (`torch.set_flush_denormal`).

Memory that kernels write is given to them. Rows of payloads, tables, flags and counts belong to blocks; a kernel works
on ``count`` of them from row ``at`` on, so that several may be under way in one buffer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inagg_host.codec import Job
from inagg_host.codec.staged import BAD, PLACE_BITS, TIE, TIES
from inagg_host.codec.table import Column, State
from inagg_host.torch.gpu.floats import FLOATS
from inagg_wire.layout import LANE_BITS, SIGN_AND_LEVEL, Encoding
from inagg_wire.noise import MULTIPLIER_1, MULTIPLIER_2, SHARING, VECTOR

MIN32 = -(1 << 31)
SMALLEST_NORMAL = 1 << 23


def signed(word: int) -> int:
    """The int32 with the bits of a uint32."""
    return word - (1 << 32) if word >> 31 else word


def _right(x: Tensor, by: int) -> Tensor:
    """``x >> by`` of uint32."""
    return (x >> by) & ((1 << (32 - by)) - 1)


def _column(table: Tensor, column: Column) -> Tensor:
    return table[:, column].unsqueeze(1)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2.0**``exponent`` as float64, for -1022..1023."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def flag_bytes(job: Job) -> int:
    """Bytes of a block's flags, of which each may have any."""
    return 1


def count_words(job: Job) -> int:
    """Numbers, int32, that add up to a block's invalid codes."""
    return 1


def blocks_of(values: Tensor, lanes: int, count: int) -> Tensor:
    """The first ``count`` blocks: (count, lanes); the last one of ``values`` is filled up with zeros."""
    part = values[: count * lanes]
    if part.numel() < count * lanes:
        part = torch.cat([part, part.new_zeros(count * lanes - part.numel())])
    return part.view(count, lanes)


# --- scales ---


def largest(values: Tensor, lanes: int, out: Tensor) -> None:
    """The bits of the largest magnitude of each block into ``out`` (1-D, integers as large as the values), NaN above
    all else. There are as many blocks as ``out`` has room for; the last one may be a partial one."""
    blocks = blocks_of(values, lanes, out.numel())
    bits = FLOATS[values.element_size()]
    # The bits of magnitudes are in the order of the magnitudes; the sign is the sign bit of the integer as well.
    torch.amax(blocks.view(bits) & torch.iinfo(bits).max, dim=1, out=out)


# --- contributions ---


def noise(table: Tensor, lanes: int) -> Tensor:
    """Word 0 of each lane: `inagg_wire.noise.host_words`."""
    lane = torch.arange(lanes, dtype=torch.int32, device=table.device)
    x = _column(table, Column.K0) + lane // SHARING * VECTOR + lane % VECTOR
    x = (x ^ _right(x, 16)) * signed(MULTIPLIER_1)
    x = (x ^ _right(x, 15)) + _column(table, Column.K1)
    x = x * signed(MULTIPLIER_2)
    x = x ^ _right(x, 16)
    word, place = x, lane // VECTOR % 4
    for j in (1, 2, 3):
        word = torch.where(place == j, (x << 8 * j) | _right(x, 32 - 8 * j), word)
    return word


def encode(
    job: Job, values: Tensor, table: Tensor, payloads: Tensor, flags: Tensor, ties: Tensor, counted: Tensor, at: int,
    count: int, first: int = 0,
) -> None:  # fmt: skip
    """The ``payloads`` of the first blocks of ``values``, and their ``flags`` (`flag_bytes` each), both uint8 and 1-D.

    Blocks with the flag `BAD` hold nothing of use; those with `TIE` have lanes that must be encoded again,
    exactly: these are in ``ties`` (int64, `codec.staged.TIES` pairs), see `codec.staging.Board`, of which ``counted``
    (int32, 1) are taken. ``first``: the number of the first block in the operation.
    """
    blocks, table = blocks_of(values, job.lanes, count), table[at : at + count]
    up = job.format.up
    natural = up in SIGN_AND_LEVEL
    floor, part, beyond = (_natural if natural else _linear)(job, blocks, table)
    complement = ~noise(table, job.lanes)
    coded = _column(table, Column.STATE) == State.CODED
    level = floor + ((complement ^ MIN32) < (part ^ MIN32)).to(torch.int32)
    negative = torch.signbit(blocks) & (level > 0)
    if natural:
        codes = torch.where(negative, level | (8 if up is Encoding.NAT4 else 128), level)
    else:
        codes = torch.where(negative, -level, level)
    payload = _pack(up, torch.where(coded, codes, 0))
    bad = torch.where(coded, beyond, (_column(table, Column.STATE) == State.ZERO) & (blocks != 0)).any(dim=1)
    tied = coded & (part == complement)
    for block, lane in tied.nonzero().tolist():
        at_tie = 2 * (int(counted) % TIES)
        bits = int(blocks[block, lane].view(FLOATS[values.element_size()]))
        ties[at_tie], ties[at_tie + 1] = (first + block + 1) << PLACE_BITS | lane, bits
        counted += 1
    tie = tied.any(dim=1)
    size = job.for_encode.payload_bytes
    payloads[at * size : (at + count) * size].view(count, size).copy_(payload)
    flags[at : at + count] = bad.to(torch.uint8) * BAD + tie.to(torch.uint8) * TIE


def _natural(job: Job, blocks: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The level below each magnitude, the top 32 bits of what is above it, and whether it is beyond the top level."""
    exponent = _column(table, Column.EXPONENT)
    top = exponent + job.for_encode.fraction_bits  # log2 of S
    if blocks.dtype is torch.float64:
        magnitude = blocks.view(torch.int64) & torch.iinfo(torch.int64).max
        fraction = magnitude & ((1 << 52) - 1)
        position = (magnitude >> 52) - (exponent + 1023)
        inside = position >= 0
        # The fraction's top 32 bits; below the window those of 1.fraction (subnormals are too far below to matter).
        part = torch.where(inside, fraction >> 20, (fraction | (1 << 52)) >> (20 - position).clamp(0, 63))
        beyond = magnitude > (top.to(torch.int64) + 1023) << 52
        return torch.where(inside, position + 1, 0).to(torch.int32), part.to(torch.int32), beyond
    magnitude = blocks.float().view(torch.int32) & 0x7FFFFFFF
    # As a number, the magnitude of a subnormal float is its multiple of 2**-149.
    lifted = magnitude.float().view(torch.int32)
    normal = magnitude >= SMALLEST_NORMAL
    field = torch.where(normal, magnitude >> 23, (lifted >> 23) - 149)
    fraction = torch.where(normal, magnitude, lifted) & (SMALLEST_NORMAL - 1)
    position = field - (exponent + 127)
    inside = position >= 0
    whole = torch.where(magnitude == 0, 0, fraction | SMALLEST_NORMAL)
    left = position + 9  # 24 bits below the point begin at bit 31 + position
    below = torch.where(left > 0, whole << left.clamp(0, 8), whole >> (-left).clamp(0, 31))
    part = torch.where(inside, fraction << 9, below)
    largest_finite = torch.where(top > 127, 0x7F7FFFFF, (top + 127) << 23)
    return torch.where(inside, position + 1, 0), part, magnitude > largest_finite


def _linear(job: Job, blocks: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same for levels that are multiples of the unit; see `inagg_host.codec.encoder_loops.steps` for why."""
    exponent, mantissa = _column(table, Column.EXPONENT), _column(table, Column.MANTISSA).double()
    magnitude = blocks.double().abs()
    top = job.for_encode.top * mantissa * _power_of_two(exponent)
    beyond = ~(magnitude <= top)
    magnitude = torch.where(beyond, 0.0, magnitude)  # what is beyond may be no integer at all
    if job.format.up is Encoding.FIX32:
        steps = magnitude * _power_of_two(-exponent)
        floor = steps.floor()
        part = ((steps - floor) * 2.0**32).floor()
    else:
        inverse = (1.0 / mantissa) * (1.0 + 2.0**-50)
        steps = ((magnitude * _power_of_two(32 - exponent)).floor() * inverse).floor()
        floor = (steps * 2.0**-32).floor()
        part = steps - floor * 2.0**32
    return floor.to(torch.int32), part.to(torch.int64).to(torch.int32), beyond


def _pack(encoding: Encoding, codes: Tensor) -> Tensor:
    """Codes, an int32 a lane, to payloads."""
    if encoding is Encoding.FIX32:
        return codes.view(torch.uint8).view(*codes.shape, 4).flip(-1).reshape(len(codes), -1)
    each = LANE_BITS[encoding]
    if each == 8:
        return codes.to(torch.uint8)
    per_byte = 8 // each
    grouped = (codes & ((1 << each) - 1)).view(len(codes), -1, per_byte)
    packed = grouped[..., 0]
    for i in range(1, per_byte):
        packed = packed << each | grouped[..., i]
    return packed.to(torch.uint8)


# --- results ---


def decode(
    job: Job, payloads: Tensor, table: Tensor, values: Tensor, counts: Tensor, at: int, count: int, divisor: int = 1
) -> None:
    """Write the sums that ``payloads`` (uint8, 1-D) hold over the first blocks of ``values``; into ``counts`` (int32,
    `count_words` a block) how many codes name no level. ``divisor`` as in `inagg_host.codec.decoder.decode`."""
    table, size = table[at : at + count], job.for_decode.payload_bytes
    state = _column(table, Column.STATE)
    encoding = job.format.down(job.workers)
    codes = _unpack(encoding, payloads[at * size : (at + count) * size].view(count, size))
    wide = torch.float32 if divisor != 1 and values.element_size() == 2 else values.dtype
    sums, valid = (_from_natural if encoding in SIGN_AND_LEVEL else _from_integers)(job, codes, table, wide)
    if divisor != 1:
        # By a tensor: by a number, torch would multiply with the reciprocal on CUDA.
        sums = (sums / torch.full((), divisor, dtype=wide, device=sums.device)).to(values.dtype)
    sums = torch.where(state == State.CODED, sums, 0)
    sums = torch.where(state == State.NAN, torch.full((), float("nan"), dtype=values.dtype, device=values.device), sums)
    out = values[: count * job.lanes]
    out.copy_(sums.view(-1)[: out.numel()])
    counted = (torch.arange(sums.numel(), device=values.device) < out.numel()).view_as(valid)
    counts[at : at + count] = ((state == State.CODED) & ~valid & counted).sum(dim=1)


def _unpack(encoding: Encoding, payloads: Tensor) -> Tensor:
    """One int32 a lane: natural codes as they are, all others as integers."""
    match encoding:
        case Encoding.NAT8:
            return payloads.to(torch.int32)
        case Encoding.NAT4 | Encoding.INT4:
            wide = payloads.to(torch.int32)
            codes = torch.stack([wide >> 4, wide & 15], dim=-1).view(len(payloads), -1)
            return codes if encoding is Encoding.NAT4 else (codes ^ 8) - 8
        case Encoding.DITH8 | Encoding.INT8:
            return payloads.view(torch.int8).to(torch.int32)
    size = LANE_BITS[encoding] // 8
    swapped = payloads.view(len(payloads), -1, size).flip(-1).contiguous()
    return swapped.view(torch.int16 if size == 2 else torch.int32).squeeze(-1).to(torch.int32)


def _from_natural(job: Job, codes: Tensor, table: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sums of ``dtype``, and which codes name a level."""
    sign = 8 if job.format.down(job.workers) is Encoding.NAT4 else 128
    level = codes & (sign - 1)
    valid = level <= job.for_decode.top
    exponent = level - 1 + _column(table, Column.EXPONENT)
    some = valid & (level > 0)
    if dtype is torch.float64:
        magnitude = torch.where(some, _power_of_two(torch.where(some, exponent, 0)), 0.0)
    else:
        field = torch.where(exponent > 127, 255, exponent + 127) << 23
        subnormal = torch.ones_like(exponent) << (exponent + 149).clamp(0, 22)
        bits = torch.where(exponent >= -126, field, torch.where(exponent >= -149, subnormal, 0))
        magnitude = torch.where(some, bits, 0).view(torch.float32)
    return torch.where((codes >= sign) & some, -magnitude, magnitude).to(dtype), valid


def _from_integers(job: Job, codes: Tensor, table: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same of integers: multiples of the unit, exact in float64, and then rounded once."""
    integers = codes.to(torch.int64)
    valid = integers.abs() <= job.for_decode.top
    unit = _column(table, Column.MANTISSA).double() * _power_of_two(_column(table, Column.EXPONENT))
    exact = torch.where(valid, integers, 0).double() * unit + 0.0
    if dtype in (torch.float16, torch.bfloat16):
        return _rounded_to_odd(exact).to(dtype), valid
    return exact.to(dtype), valid


def _rounded_to_odd(exact: Tensor) -> Tensor:
    """float64 to float32, to odd, so that rounding again gives what rounding once would (see `inagg_wire.codec`)."""
    nearest = exact.float()
    bits = nearest.view(torch.int32)
    inexact = (nearest.double() != exact) & nearest.isfinite()
    too_far = nearest.double().abs() > exact.abs()
    return torch.where(inexact, (bits - too_far.to(torch.int32)) | 1, bits).view(torch.float32)
