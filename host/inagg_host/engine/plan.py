"""The order in which a tensor's blocks are sent: scales ahead of the values that need them.

A tensor has ceil(elements / lanes) value blocks, one scale byte each, so a block of scales covers a *chunk* of
``scale_lanes`` value blocks. All ranks must number their blocks alike, whatever their timing; so the order is
fixed by the shape alone. Scales go one chunk ahead of the values (two, where a second round refines them), so that
their round trips hide behind the values of earlier chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum


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


def plan(elements: int, lanes: int, scale_lanes: int, refined: bool) -> tuple[Item, ...]:
    """The blocks of a tensor of ``elements`` elements (> 0), in the order in which they are numbered and sent."""
    return tuple(_items(-(-elements // lanes), scale_lanes, refined))


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
