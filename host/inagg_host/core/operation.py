"""One tensor on its way through the network: its memory, and the record by which the compiled core knows it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from struct import pack
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from inagg_host import codec
from inagg_host.codec.calls import Room
from inagg_host.codec.ordered import offset_of
from inagg_host.codec.staging import Codec, Staging
from inagg_wire.scale import FloatType

from .schedule import Item, Phase, as_records, chunk_blocks, item_records, plan, signature
from .state import OPERATION

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]

_SERIALS = count()
_WORD_OF: Final = {name: offset_of(OPERATION, name) // 8 for name in OPERATION.names or ()}
assert OPERATION.itemsize == 8 * len(_WORD_OF)


@dataclass(slots=True, eq=False)
class Request:
    """The request to sum ``values`` over all ranks into ``out``, and divide by ``divisor``.

    Arrays are contiguous and 1-D, and must stay as they are until the end; these two may be the same memory.
    """

    values: npt.NDArray[Any]
    out: npt.NDArray[Any]
    float_type: FloatType | None
    """Type of the values; None: take the maximum over all ranks of each byte."""
    divisor: int = 1
    contributed: npt.NDArray[Any] | None = None
    """Array that gets what this rank adds, see `AllReduce.submit`."""
    codec: Codec | None = None
    """The link to whoever brings the values, if they are not in the host's memory yet. With `Staging` the arrays only
    tell how many there are."""
    tag: int = 0
    """Number by which the caller knows it on all ranks, see `AllReduce.submit`."""
    scatters: bool = False
    """``values`` are one piece of equal size for each rank, and ``out`` gets the sums of this rank's."""


@dataclass(eq=False)
class Operation:
    """One tensor to sum, or bytes whose maxima are asked for.

    ``values`` and ``out`` are 1-D, of the job's float type or uint8; they may be the same memory.
    """

    values: npt.NDArray[Any]
    out: npt.NDArray[Any]
    job: codec.Job
    items: Sequence[Item]
    records: tuple[Records, int]
    """The items as records, and their address."""
    chunk: int
    """How many value blocks have their scales sent together."""
    first_block: int
    submitted_s: float
    magnitudes: npt.NDArray[np.uint64]
    """The largest of each value block, as `inagg_host.codec.scales.largest_magnitudes`."""
    lacking: Integers
    """int64, (phases, chunks): how many blocks of scales and of refinements are not there."""
    bytes_of: Bytes
    """uint8, (3, blocks): this rank's scale bytes, the agreed ones and their refinements. Of bytes, these are the own
    ones and the maxima."""
    room: int
    """The address of these three, one after the other: magnitudes, lacking, bytes."""
    fields: dict[str, int]
    """Fields of its record, beside addresses of the arrays above and where it stands."""
    signature: Bytes
    contributed: npt.NDArray[Any] | None = None
    maxima: bool = False
    codec: Codec | None = None
    """The link to whoever brings the values, if they are not in the host's memory yet."""
    invalid_codes: int = 0
    """Number of codes that name no level, once it is finished."""
    serial: int = field(default_factory=_SERIALS.__next__)
    """No other operation of this process has the same."""

    @property
    def blocks(self) -> int:
        """How many blocks it takes, scales included."""
        return self.items[-1].start + self.items[-1].count

    @property
    def starts(self) -> list[int]:
        """Number in the job of the first block of values, by chunk."""
        return [self.first_block + item.start for item in self.items if item.phase is Phase.VALUES]

    @property
    def needs(self) -> Phase:
        """Phase of a chunk after which its values can be encoded."""
        return Phase.REFINE if self.job.refined else Phase.SCALE

    @property
    def agreed(self) -> Bytes:
        """The agreed scales, or the maxima."""
        row: Bytes = self.bytes_of[1]
        return row

    def describe(self, words: Integers, address: int) -> None:
        """Write the record, which is at ``address``, as its ``words``: numpy takes thrice as long for fields."""
        (items, items_at), blocks, count = self.records, self.bytes_of.shape[1], self.blocks
        lacking = self.room + self.magnitudes.nbytes
        own = lacking + self.lacking.nbytes
        fields = {
            "address": address, "magnitudes": self.room, "own": own, "agreed": own + blocks,
            "refinement": own + 2 * blocks, "lacking": lacking, "items": items_at, "items_count": len(items),
            "chunks": self.lacking.shape[1], "blocks": blocks, "first_block": self.first_block, "count": count,
            "left": count, "serial": self.serial,
            "signature": int.from_bytes(self.signature.tobytes(), sys.byteorder, signed=True),
        }  # fmt: skip
        for name, value in (fields | self.fields).items():
            words[_WORD_OF[name]] = value


def begin_sum(
    request: Request, room: Room, scales: int, window: int, first_block: int, now: float, pieces: int, alone: bool,
    past: bool,
) -> Operation:  # fmt: skip
    """The sum that is ``wanted``, of values in ``pieces`` equal pieces, whose blocks begin anew with each. With more
    than one, ``out`` gets the piece that has this rank's number, ``alone`` if others get nothing of it. ``scales``: in
    a block; ``window``: blocks of all shards; ``past`` the caches: `codec.past_caches`.
    """
    values, out, contributed, brought_by = request.values, request.out, request.contributed, request.codec
    if values.size == 0 or values.size != pieces * out.size or not (out.flags.writeable or brought_by):
        what = "the same number of elements" if pieces == 1 else f"{pieces} times as many elements as out"
        raise ValueError(f"values must have {what}, at least one, and out be writable")
    if contributed is not None and contributed.size != values.size:
        raise ValueError(f"room for {contributed.size} contributed values, where there are {values.size}")
    job, piece = room.job, out.size
    chunk = chunk_blocks(job.lanes, scales, window)
    blocks = pieces * job.blocks(piece)
    fields = {
        "divisor": request.divisor, "elements": values.size, "scaled": 0, "drafting": job.drafts, "piece": piece,
        "piece_blocks": job.blocks(piece), "own_piece": job.rank if pieces > 1 else 0, "scatters": alone,
        "past": past,
    }  # fmt: skip
    fields |= room.kernels._asdict() if brought_by is None else brought_by.fields(room.kernels)
    if not isinstance(brought_by, Staging):
        job.bits(values)
        fields["values"] = fields["out"] = address_of(values)
        if out is not values:
            job.bits(out)
            fields["out"] = address_of(out)
        if contributed is not None:
            job.bits(contributed)
            fields["contributed"] = address_of(contributed)
    shape = blocks, chunk, scales, job.refined
    items = plan(*shape)
    operation = Operation(
        values, out, job, items, item_records(*shape), chunk, first_block, now, *_room(blocks, blocks, items, chunk),
        fields,
        signature_of(request, pieces), contributed, codec=brought_by,
    )  # fmt: skip
    if brought_by is not None:
        brought_by.begin(operation)
    return operation


def begin_max(request: Request, job: codec.Job, chunk: int, first_block: int, now: float) -> Operation:
    """The maxima that are ``wanted``, ``chunk`` in a block. ``job``: of any type of values."""
    values, out = request.values, request.out
    if values.size == 0 or values.size != out.size or not out.flags.writeable:
        raise ValueError("values and out must have the same number of bytes, at least one, and out be writable")
    firsts = range(0, values.size, chunk)
    items = tuple(Item(Phase.SCALE, i, 1, first, min(chunk, values.size - first)) for i, first in enumerate(firsts))
    magnitudes, lacking, rows, room = _room(0, values.size, items, chunk)
    rows[0] = values
    records = as_records(items, chunk)
    fields = {"divisor": 1, "elements": values.size, "scaled": values.size, "drafting": 0, "scatters": 0}
    return Operation(
        values, out, job, items, (records, address_of(records)), chunk, first_block, now, magnitudes, lacking, rows,
        room, fields, signature_of(request), maxima=True,
    )  # fmt: skip


def signature_of(request: Request, pieces: int = 1) -> Bytes:
    """`schedule.signature` of a request, of values in as many equal ``pieces``."""
    tag = crc32(pack(">II", request.tag, pieces)) if pieces > 1 else request.tag
    return signature(request.values.size, request.float_type, request.divisor, tag)


def _room(
    magnitudes: int, blocks: int, items: Sequence[Item], chunk: int
) -> tuple[npt.NDArray[np.uint64], Integers, Bytes, int]:
    """`Operation.magnitudes`, ``lacking``, ``bytes_of`` and ``room``: one piece of memory, for ``items`` of which
    nothing is there."""
    chunks = -(-blocks // chunk)
    start, end = 8 * magnitudes, 8 * (magnitudes + len(Phase) * chunks)
    memory = np.zeros(end + 3 * blocks, np.uint8)
    lacking = memory[start:end].view(np.int64).reshape(len(Phase), chunks)
    for item in items:
        lacking[item.phase, item.first // chunk] = item.count
    return memory[:start].view(np.uint64), lacking, memory[end:].reshape(3, blocks), address_of(memory)


def address_of(array: Any) -> int:
    """Address of the first byte."""
    address: int = array.ctypes.data  # its array interface would describe each field of a record first
    return address
