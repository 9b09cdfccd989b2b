"""One tensor on its way through the network: its memory, and the record by which the compiled core knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_host import codec
from inagg_host.codec.callbacks import Callbacks, MakeCodec
from inagg_host.codec.calls import addresses, own_address

from .schedule import Item, Phase, as_records, chunk_blocks, item_records, plan, signature

Bytes = npt.NDArray[np.uint8]
Records = npt.NDArray[np.void]

_SERIALS = count()


@dataclass(eq=False)
class Operation:
    """One tensor to sum, or bytes whose maxima are asked for.

    ``values`` and ``out`` are 1-D, of the job's float type or uint8; they may be the same memory.
    """

    values: npt.NDArray[Any]
    out: npt.NDArray[Any]
    job: codec.Job
    items: Sequence[Item]
    records: Records
    """The items as records."""
    chunk: int
    """How many value blocks have their scales in one block."""
    first_block: int
    submitted_s: float
    bytes_of: Bytes
    """uint8, (3, blocks): this rank's scale bytes, the agreed ones and their refinements. Of bytes, these are the own
    ones and the maxima."""
    magnitudes: npt.NDArray[np.uint64]
    """The largest of each value block, as `inagg_host.codec.largest`."""
    ready: Bytes
    """(phases, chunks): 1 where scales and refinements are there."""
    fields: dict[str, int]
    """What its record says, beside addresses of the arrays above and where it stands."""
    signature: Bytes
    contributed: npt.NDArray[Any] | None = None
    maxima: bool = False
    callbacks: Callbacks | None = None
    """The kernels, if the values are not in the host's memory."""
    invalid_codes: int = 0
    """When it is finished."""
    serial: int = field(default_factory=_SERIALS.__next__)
    """No other operation of this process has the same."""

    @property
    def blocks(self) -> int:
        """How many blocks it takes, scales included."""
        return self.items[-1].start + self.items[-1].count

    @property
    def agreed(self) -> Bytes:
        """The agreed scales, or the maxima."""
        row: Bytes = self.bytes_of[1]
        return row

    def describe(self, record: Any, address: int) -> None:
        """Write the record, which is at ``address``."""
        own, agreed, refinement = (address_of(self.bytes_of) + i * self.bytes_of.shape[1] for i in range(3))
        record["address"] = address
        record["own"], record["agreed"], record["refinement"] = own, agreed, refinement
        record["magnitudes"], record["ready"] = address_of(self.magnitudes), address_of(self.ready)
        record["items"], record["items_count"] = address_of(self.records), len(self.records)
        record["chunks"], record["blocks"] = self.ready.shape[1], self.bytes_of.shape[1]
        record["first_block"], record["count"], record["left"] = self.first_block, self.blocks, self.blocks
        record["item"], record["sent"], record["item_in"], record["invalid_codes"] = 0, 0, 0, 0
        record["serial"], record["signature"] = self.serial, self.signature
        for name, value in self.fields.items():
            record[name] = value


def begin_sum(
    values: npt.NDArray[Any],
    out: npt.NDArray[Any],
    job: codec.Job,
    scale_lanes: int,
    first_block: int,
    now: float,
    divisor: int = 1,
    contributed: npt.NDArray[Any] | None = None,
    make_codec: MakeCodec | None = None,
    tag: int = 0,
) -> Operation:
    """The sum of ``values``, see `Engine.submit`."""
    if values.size == 0 or values.size != out.size or not (out.flags.writeable or make_codec):
        raise ValueError("values and out must have the same number of elements, at least one, and out be writable")
    if contributed is not None and contributed.size != values.size:
        raise ValueError(f"room for {contributed.size} contributed values, where there are {values.size}")
    chunk = chunk_blocks(job.lanes, scale_lanes)
    fields = {"divisor": divisor, "elements": values.size, "scaled": 0, "drafting": job.drafts, "decode_own": 0}
    callbacks = None
    if make_codec is not None:
        callbacks = Callbacks(make_codec(job, chunk))
        kernels = callbacks.addresses
        fields["drafting"] = 0
    else:
        for name, array in (("values", values), ("out", out), ("contributed", contributed)):
            if array is not None:
                job.bits(array)
                fields[name] = address_of(array)
        kernels = addresses(job)
        if contributed is not None:
            fields["decode_own"] = own_address(job)
    fields |= kernels._asdict()
    shape = values.size, job.lanes, chunk, job.refined
    blocks = job.blocks(values.size)
    return Operation(
        values, out, job, plan(*shape), item_records(*shape), chunk, first_block, now,
        np.zeros((3, blocks), np.uint8), np.empty(blocks, np.uint64),
        np.zeros((len(Phase), -(-blocks // chunk)), np.uint8), fields,
        signature(values.size, job.float_type, divisor, tag), contributed, callbacks=callbacks,
    )  # fmt: skip


def begin_max(
    values: Bytes, out: Bytes, job: codec.Job, chunk: int, first_block: int, now: float, tag: int = 0
) -> Operation:
    """The maxima of ``values``, ``chunk`` in a block, see `Engine.submit_max`. ``job``: of any type of values."""
    if values.size == 0 or values.size != out.size or not out.flags.writeable:
        raise ValueError("values and out must have the same number of bytes, at least one, and out be writable")
    firsts = range(0, values.size, chunk)
    items = tuple(Item(Phase.SCALE, i, 1, first, min(chunk, values.size - first)) for i, first in enumerate(firsts))
    rows = np.zeros((3, values.size), np.uint8)
    rows[0] = values
    fields = {"divisor": 1, "elements": values.size, "scaled": values.size, "drafting": 0, "decode_own": 0}
    return Operation(
        values, out, job, items, as_records(items, chunk), chunk, first_block, now, rows, np.empty(0, np.uint64),
        np.zeros((len(Phase), len(items)), np.uint8), fields, signature(values.size, None, 1, tag), maxima=True,
    )  # fmt: skip


def address_of(array: Any) -> int:
    """Of its first byte."""
    address: int = array.ctypes.data  # its array interface would describe each field of a record first
    return address
