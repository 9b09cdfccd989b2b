"""The part that operations of one type and size have alike, as the compiled core knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from inagg_host import codec
from inagg_host.codec.calls import Room
from inagg_host.codec.ordered import offset_of

from .schedule import Item, Phase, as_records, chunk_blocks, plan
from .state import OPERATION

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]

_WORD_OF: Final = {name: offset_of(OPERATION, name) // 8 for name in OPERATION.names or ()}
assert OPERATION.itemsize == 8 * len(_WORD_OF)


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """All that operations of one type of values and one size have alike: made once, as it takes as long as all else
    that begins an operation, and small tensors wait for that."""

    job: codec.Job
    items: Sequence[Item]
    chunk: int
    """How many value blocks have their scales sent together."""
    words: Integers
    """Their record, but for what differs."""
    records: Records
    """`schedule.ITEM`, (items,), whose address the record has."""
    memory: Bytes
    """`Operation.memory` as it begins: nothing is there."""
    measured: int
    """Number of blocks of which the largest magnitude is found."""
    chunks: int

    @property
    def blocks(self) -> int:
        """How many blocks an operation takes, scales included."""
        return self.items[-1].start + self.items[-1].count

    @property
    def bytes_at(self) -> int:
        """Where `Operation.bytes_of` is in its memory."""
        return 8 * (self.measured + len(Phase) * self.chunks)

    def lacking(self, memory: Bytes) -> Integers:
        """`Operation.lacking` in its memory."""
        return memory[8 * self.measured : self.bytes_at].view(np.int64).reshape(len(Phase), self.chunks)


def shape_of_sums(room: Room, template: Integers, size: int, pieces: int, scales: int, window: int) -> Shape:
    """Shape of sums of values in ``pieces`` of ``size`` elements each, whose blocks begin anew with each. ``template``:
    the words of a record of this type of values; ``scales``: in a block; ``window``: blocks of all shards."""
    job = room.job
    chunk, blocks = chunk_blocks(job.lanes, scales, window), pieces * job.blocks(size)
    fields = {
        "elements": pieces * size, "scaled": 0, "drafting": job.drafts, "piece": size, "piece_blocks": job.blocks(size),
        "own_piece": job.rank if pieces > 1 else 0, **room.kernels._asdict(),
    }  # fmt: skip
    return _shape(job, plan(blocks, chunk, scales, job.refined), chunk, template, blocks, blocks, fields)


def shape_of_maxima(job: codec.Job, template: Integers, size: int, chunk: int) -> Shape:
    """Shape of maxima of ``size`` bytes, ``chunk`` in a block. ``job``: of any type of values."""
    firsts = range(0, size, chunk)
    items = tuple(Item(Phase.SCALE, i, 1, first, min(chunk, size - first)) for i, first in enumerate(firsts))
    fields = {"elements": size, "scaled": size, "drafting": 0}
    return _shape(job, items, chunk, template, 0, size, fields)


def _shape(
    job: codec.Job, items: Sequence[Item], chunk: int, template: Integers, measured: int, blocks: int,
    fields: dict[str, int],
) -> Shape:  # fmt: skip
    records, chunks = as_records(items, chunk), -(-blocks // chunk)
    memory = np.zeros(8 * (measured + len(Phase) * chunks) + 3 * blocks, np.uint8)
    shape = Shape(job, items, chunk, template.copy(), records, memory, measured, chunks)
    lacking = shape.lacking(memory)
    for item in items:
        lacking[item.phase, item.first // chunk] = item.count
    counts = {"blocks": blocks, "chunks": chunks, "count": shape.blocks, "left": shape.blocks}
    write(shape.words, fields | counts | {"items": address_of(records), "items_count": len(items)})
    return shape


def write(words: Integers, fields: dict[str, int]) -> None:
    """Write ``fields`` of a `state.OPERATION`, as its words: numpy takes thrice as long for fields."""
    for name, value in fields.items():
        words[_WORD_OF[name]] = value


def address_of(array: Any) -> int:
    """Address of the first byte."""
    address: int = array.ctypes.data  # its array interface would describe each field of a record first
    return address
