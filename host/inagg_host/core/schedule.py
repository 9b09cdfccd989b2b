"""The order in which a tensor's blocks are sent: scales ahead of the values that need them.

A tensor has ceil(elements / lanes) value blocks, one scale byte each, which are sent in *chunks*: first the scales of
a chunk, in as many blocks as they take, then its values. All ranks must number their blocks alike, whatever their
timing; so the order is fixed by the shape alone, and by the window, which all ranks have from the control plane. Scales
go one chunk ahead of the values (two, where a second round refines them), and a chunk has about a window of blocks, or
as many as one block of scales covers: so their round trips hide behind the values of earlier chunks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from struct import pack

import numpy as np
import numpy.typing as npt

from inagg_wire.scale import FloatType

SIGNATURE_LANES = 8
"""The last lanes of a block of scales say what the operation is: see `signature`."""


CHUNK_ELEMENTS = 1 << 19
"""The most of a chunk. With fewer, ranks wait more often for scales (measured on two cores, 64 MiB, 4 workers: chunks
of a quarter of that take 9 % longer); with more, the first chunk takes longer, of which nothing can be sent until its
magnitudes are known."""


CHUNKS_AHEAD = 16
"""Chunks whose blocks may be drafted before they can be sent, by a rank that would else only wait for the others.
(Measured on two cores, 64 MiB, 4 workers: 6 % less time than without; with half as many chunks 4 %, with no more than
sending needs 2 %.) On loopback they take 13 MB."""


def drafted_blocks(chunk: int, shards: int) -> int:
    """How many blocks of a shard, from its next one on, are to have room for drafts, with chunks of so many and no
    second round.

    Sending needs those of two chunks, with their scales, up to the last one whose scale is sent with the next one: for
    the scales of chunk k + 1 are followed by the values of chunk k, the scales of chunk k + 2 and the values of chunk
    k + 1. A chunk has no more blocks of scales than of values, and one if it has one.
    """
    return -(-(CHUNKS_AHEAD * chunk + 2) // shards)


def scales_per_block(scale_lanes: int) -> int:
    """Scales that one block carries. A block of scales that has only eight lanes carries no signature."""
    return scale_lanes - SIGNATURE_LANES if scale_lanes > SIGNATURE_LANES else scale_lanes


def chunk_blocks(lanes: int, scales: int, window: int) -> int:
    """Value blocks of a chunk, with ``scales`` in a block, and ``window`` blocks of all shards.

    Of blocks with few lanes the scales of a window take several. With just the values of one block of scales between
    it and the values that need it, so few would be out, whatever the window.
    """
    most = CHUNK_ELEMENTS // lanes
    return min(-(-min(window, most) // scales) * scales, most)


def signature(elements: int, float_type: FloatType | None, divisor: int, tag: int) -> bytes:
    """Four bytes that tell operations apart, then what they lack to 255. ``float_type`` None: maxima of bytes.
    ``tag``: 32 bits of the caller's, for what is alike otherwise.

    The switch takes the maximum over all ranks of each byte. If a rank has another operation, some byte differs, and
    then its maximum and that of its complement add up to more than 255.
    """
    kind = _KINDS.index(float_type)
    digest = zlib.crc32(pack(">QbII", elements, kind, divisor, tag))
    return pack(">II", digest, digest ^ 0xFFFFFFFF)


_KINDS = [*FloatType, None]


class Phase(IntEnum):
    """Content of a block."""

    SCALE = 0  # op MAX
    REFINE = 1  # op MAX
    VALUES = 2  # op SUM


@dataclass(frozen=True, slots=True)
class Item:
    """``count`` consecutive blocks of one phase and chunk.

    ``start``: the first one's place in the operation's own numbering, from 0. ``first``: the first value block of
    the chunk; ``blocks``: how many value blocks the chunk has (``count`` is that for values; scales take fewer).
    """

    phase: Phase
    start: int
    count: int
    first: int
    blocks: int


@lru_cache(1024)
def plan(blocks: int, chunk: int, scales: int, refined: bool) -> tuple[Item, ...]:
    """The blocks of a tensor that has ``blocks`` of values (> 0), in the order in which they are numbered and sent.

    ``chunk``: see `chunk_blocks`; ``scales``: in a block.
    """
    chunks = -(-blocks // chunk)
    phases = list(Phase) if refined else [Phase.SCALE, Phase.VALUES]
    items, start = list[Item](), 0
    for step in range(chunks + len(phases) - 1):
        for lag, phase in enumerate(phases):
            if 0 <= (k := step - lag) < chunks:
                values = min(chunk, blocks - k * chunk)
                count = values if phase is Phase.VALUES else -(-values // scales)
                items.append(Item(phase, start, count, k * chunk, values))
                start += count
    return tuple(items)


ITEM = np.dtype([(name, np.int64) for name in ("phase", "start", "count", "first", "blocks", "chunk")])
"""An `Item`, with the number of its chunk."""


def as_records(items: Iterable[Item], chunk: int) -> npt.NDArray[np.void]:
    """`ITEM` records of ``items`` of an operation whose chunks are of ``chunk`` blocks."""
    return np.array([(i.phase, i.start, i.count, i.first, i.blocks, i.first // chunk) for i in items], ITEM)
