"""The order in which a tensor's blocks are sent: scales ahead of the values that need them.

A tensor has ceil(elements / lanes) value blocks, one scale byte each, and a block of scales covers a *chunk* of them,
at most about as many as it has lanes. All ranks must number their blocks alike, whatever their timing; so the order is
fixed by the shape alone. Scales go one chunk ahead of the values (two, where a second round refines them), so that
their round trips hide behind the values of earlier chunks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
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
"""Of a chunk, if its scales fit into a block. With fewer, ranks wait more often for scales (measured
on two cores, 64 MiB, 4 workers: chunks of a quarter of that take 9 % longer); with more, the first chunk takes longer,
of which nothing can be sent until its magnitudes are known."""


CHUNKS_AHEAD = 16
"""As many blocks as so many chunks have may be drafted before they can be sent, by a rank that would else only wait for
the others. (Measured on two cores, 64 MiB, 4 workers: 6 % less time than without; with half as many chunks 4 %, with
no more than sending needs 2 %.) On loopback they take 13 MB."""


def drafted_blocks(chunk: int, shards: int) -> int:
    """How many blocks of a shard, from its next one on, are to have room for drafts, with chunks of so many and no
    second round.

    Sending needs 2 * ``chunk`` + 2 of the job's blocks, up to the last one whose scale is sent with the next one: for
    the scales of chunk k + 1 are followed by the values of chunk k, the scales of chunk k + 2 and the values of chunk
    k + 1.
    """
    return -(-(CHUNKS_AHEAD * chunk + 2) // shards)


def scales_per_block(scale_lanes: int) -> int:
    """Scales that one block carries. A block of scales that has only eight lanes carries no signature."""
    return scale_lanes - SIGNATURE_LANES if scale_lanes > SIGNATURE_LANES else scale_lanes


def chunk_blocks(lanes: int, scale_lanes: int) -> int:
    """Value blocks whose scales are sent in one block."""
    return min(scales_per_block(scale_lanes), CHUNK_ELEMENTS // lanes)


def signature(elements: int, float_type: FloatType | None, divisor: int, tag: int) -> npt.NDArray[np.uint8]:
    """Four bytes that tell operations apart, then what they lack to 255. ``float_type`` None: maxima of bytes.
    ``tag``: 32 bits of the caller's, for what is alike otherwise. It is not to be changed.

    The switch takes the maximum over all ranks of each byte. If a rank has another operation, some byte differs, and
    then its maximum and that of its complement add up to more than 255.
    """
    kind = _KINDS.index(float_type)
    digest = zlib.crc32(pack(">QbII", elements, kind, divisor, tag))
    return np.frombuffer(pack(">II", digest, digest ^ 0xFFFFFFFF), np.uint8)


_KINDS = [*FloatType, None]


class Phase(IntEnum):
    """What a block carries."""

    SCALE = 0  # op MAX
    REFINE = 1  # op MAX
    VALUES = 2  # op SUM


@dataclass(frozen=True, slots=True)
class Item:
    """``count`` consecutive blocks of one phase and chunk.

    ``start``: the first one's place in the operation's own numbering, from 0. ``first``: the first value block of
    the chunk; ``blocks``: how many value blocks the chunk has (``count`` is that for values, 1 for scales).
    """

    phase: Phase
    start: int
    count: int
    first: int
    blocks: int


@lru_cache(1024)
def plan(blocks: int, chunk: int, refined: bool) -> tuple[Item, ...]:
    """The blocks of a tensor that has ``blocks`` of values (> 0), in the order in which they are numbered and sent.

    ``chunk``: see `chunk_blocks`.
    """
    return tuple(_items(blocks, chunk, refined))


ITEM = np.dtype([(name, np.int64) for name in ("phase", "start", "count", "first", "blocks", "chunk")])
"""An `Item`, with the number of its chunk."""


@lru_cache(1024)
def item_records(blocks: int, chunk: int, refined: bool) -> tuple[npt.NDArray[np.void], int]:
    """`plan` as `ITEM` records, and their address. They are not to be changed."""
    records = as_records(plan(blocks, chunk, refined), chunk)
    return records, records.ctypes.data


def as_records(items: Iterable[Item], chunk: int) -> npt.NDArray[np.void]:
    """`ITEM` records of ``items`` of an operation whose chunks are of ``chunk`` blocks."""
    return np.array([(i.phase, i.start, i.count, i.first, i.blocks, i.first // chunk) for i in items], ITEM)


def _items(values: int, chunk: int, refined: bool) -> Iterator[Item]:
    chunks = -(-values // chunk)
    phases = list(Phase) if refined else [Phase.SCALE, Phase.VALUES]
    start = 0
    for step in range(chunks + len(phases) - 1):
        for lag, phase in enumerate(phases):
            if 0 <= (k := step - lag) < chunks:
                blocks = min(chunk, values - k * chunk)
                count = blocks if phase is Phase.VALUES else 1
                yield Item(phase, start, count, k * chunk, blocks)
                start += count
