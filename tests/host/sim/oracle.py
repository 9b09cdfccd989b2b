"""What must come of a tensor, by the reference codec of `inagg_wire` and plain sums of integers.

Nothing here is the engine's, the kernels' or the switch's but the order of the blocks and what marks their tensor
(`plan`, with tests of its own).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inagg_host.core.schedule import SIGNATURE_LANES, Item, Phase, scales_per_block, signature
from inagg_wire import codec, noise, noise_keys, payload, reencode, scale
from inagg_wire.formats import JobFormat
from inagg_wire.layout import Op
from inagg_wire.reencode import Integers
from inagg_wire.scale import Floats, FloatType, Unit
from inagg_wire.slots import Lease

Below = tuple["Below", ...] | int
"""What is below a switch: switches, or so many workers."""


@dataclass(frozen=True, slots=True)
class Expected:
    """By block of the job: payloads of contributions (``up``, by rank too) and of results; by tensor, the sums."""

    up: dict[tuple[int, int], bytes]
    down: dict[int, bytes]
    sums: list[Floats]


def expect(
    into: Expected,
    fmt: JobFormat,
    lanes: int,
    seed: int,
    shards: int,
    lease: Lease,
    float_type: FloatType,
    values: tuple[Floats, ...],
    divisor: int,
    first: int,
    items: tuple[Item, ...],
    below: Below = 0,
    pieces: int = 1,
) -> None:
    """Add one tensor, of equal ``pieces``, whose first block is ``first``. ``below``: what is below the root, if its
    format makes the others round sums."""
    n, piece = len(values), values[0].size // pieces
    starts = [(at, min(lanes, p * piece + piece - at)) for p in range(pieces)
              for at in range(p * piece, p * piece + piece, lanes)]  # fmt: skip
    blocks = range(len(starts))
    cut = [[v[at : at + size] for at, size in starts] for v in values]
    tag = zlib.crc32(struct.pack(">II", 0, pieces)) if pieces > 1 else 0
    own = [[scale.scale_byte(fmt, n, block, float_type) for block in of_rank] for of_rank in cut]
    agreed = [max(column) for column in zip(*own, strict=True)]
    refine = [
        [scale.refine_byte(fmt, cut[w][i], float_type, own[w][i], agreed[i]) if fmt.refined else 0 for i in blocks]
        for w in range(n)
    ]
    refined = [max(column) for column in zip(*refine, strict=True)]
    units = [scale.unit(fmt, n, agreed[i], refined[i]) for i in blocks]
    sums = np.zeros(values[0].size, float_type.dtype)
    per_block = scales_per_block(fmt.scale_lanes(lanes))
    for item in items:
        for i in range(item.count):
            number = first + item.start + i
            if item.phase is not Phase.VALUES:
                start = item.first + i * per_block
                chunk = slice(start, min(start + per_block, item.first + item.blocks))
                bytes_ = own if item.phase is Phase.SCALE else refine
                size = fmt.scale_lanes(lanes)
                tail = b""
                if item.phase is Phase.SCALE and size > SIGNATURE_LANES:
                    tail = signature(values[0].size, float_type, divisor, tag)
                for w in range(n):
                    into.up[w, number] = bytes(bytes_[w][chunk]).ljust(size - len(tail), b"\0") + tail
                down = bytes((agreed if item.phase is Phase.SCALE else refined)[chunk])
                into.down[number] = down.ljust(size - len(tail), b"\0") + tail
                continue
            k = item.first + i
            integers = []
            for w in range(n):
                codes = _codes(fmt, n, cut[w][k], float_type, units[k], seed, w, number, lanes)
                into.up[w, number] = payload.pack(fmt.up, codes)
                integers.append(reencode.contribution_integers(Op.SUM, fmt, n, codes)[0])
            place = number // shards
            slot, generation = lease.slot(place), lease.generation(place)
            total, shift = sum(integers, np.zeros(lanes, np.int64)), 0
            if fmt.roundings and below:
                total, shift = _rounded(fmt, below, integers, seed, lease.base, slot, generation)
            words = noise.switch_words(seed, slot, generation, lanes)
            result = reencode.result_codes(Op.SUM, fmt, n, total, words, shift)
            into.down[number] = payload.pack(fmt.down(n), result)
            at, size = starts[k]
            sums[at : at + size] = mean(result[:size], float_type, fmt, n, units[k], divisor)
    into.sums.append(sums)


def _rounded(
    fmt: JobFormat, below: Below, integers: list[Integers], seed: int, base: int, slot: int, generation: int
) -> tuple[Integers, int]:
    """The sum at the root, and log2 of its unit, where each switch below rounds what it sends up."""
    n, key_seed = len(integers), noise_keys.seed_for_lease(seed, base)

    def total(below: Below, first: int) -> tuple[Integers, int, int]:
        """Of the workers from ``first`` on: their sum, how many they are, and how many levels of switches."""
        if isinstance(below, int):
            return sum(integers[first : first + below], np.zeros_like(integers[0])), below, 1
        sums, count, levels = np.zeros_like(integers[0]), 0, 0
        for it in below:
            part, workers, levels = total(it, first + count)
            key = noise_keys.block_key(key_seed, first + count, levels)
            words = noise.partial_words(key, seed, slot, generation, part.size)
            codes = reencode.partial_codes(Op.SUM, fmt, n, part, words)
            sums += reencode.integers(fmt.up, codes, fmt.result_levels(n))[0]
            count += workers
        return sums, count, levels + 1

    return total(below, 0)[0], 0 if isinstance(below, int) else fmt.partial_shift(n)


def _codes(
    fmt: JobFormat, n: int, block: Floats, float_type: FloatType, unit: Unit | None, seed: int, w: int, number: int,
    lanes: int,
) -> npt.NDArray[np.uint32]:  # fmt: skip
    codes = np.zeros(lanes, np.uint32)
    if unit is not None:
        key = noise_keys.block_key(seed, w, number)
        codes[: block.size] = codec.encode(
            block, float_type, fmt, n, unit, lambda i: noise.host_words(key, block.size, i)
        )
    return codes


def mean(
    codes: npt.NDArray[np.uint32], float_type: FloatType, fmt: JobFormat, n: int, unit: Unit | None, divisor: int
) -> Floats:
    """The sum that ``codes`` stand for by ``divisor``; types narrower than float32 go through it."""
    if divisor == 1:
        return codec.decode(codes, float_type, fmt, n, unit)
    wide = FloatType.FLOAT64 if float_type is FloatType.FLOAT64 else FloatType.FLOAT32
    sums = codec.decode(codes, wide, fmt, n, unit)
    with np.errstate(over="ignore", under="ignore"):
        quotient: Floats = sums / sums.dtype.type(divisor)
        if float_type is FloatType.BFLOAT16:
            bits = quotient.view(np.uint32).astype(np.uint64)
            rounded = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
            return np.where(np.isnan(quotient), 0x7FC0, rounded).astype(np.uint16)
        return quotient.astype(float_type.dtype)
