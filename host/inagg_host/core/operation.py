"""One tensor on its way through the network: its memory, and the record by which the compiled core knows it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import count
from struct import pack
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from inagg_host.codec.calls import Addresses
from inagg_host.codec.staging import Codec, Staging
from inagg_wire.scale import FloatType

from .schedule import Phase, signature
from .shape import Bytes, Integers, Shape, address_of, write

_SERIALS = count()


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


@dataclass(slots=True, eq=False)
class Operation:
    """One tensor to sum, or bytes whose maxima are asked for, on its way."""

    request: Request
    shape: Shape
    first_block: int
    submitted_s: float
    memory: Bytes
    """uint8: `magnitudes`, `lacking` and `bytes_of`, one after the other."""
    fields: dict[str, int]
    """Fields of its record that are not as others of its shape have them, but for where it stands, and its memory."""
    invalid_codes: int = 0
    """Number of codes that name no level, once it is finished."""
    serial: int = field(default_factory=_SERIALS.__next__)
    """No other operation of this process has the same."""

    @property
    def magnitudes(self) -> npt.NDArray[np.uint64]:
        """(blocks,), or none of bytes: the largest of each value block, as `codec.scales.largest_magnitudes`."""
        return self.memory[: 8 * self.shape.measured].view(np.uint64)

    @property
    def lacking(self) -> Integers:
        """int64, (phases, chunks): how many blocks of scales and of refinements are not there."""
        return self.shape.lacking(self.memory)

    @property
    def bytes_of(self) -> Bytes:
        """uint8, (3, blocks): this rank's scale bytes, the agreed ones and their refinements. Of bytes, these are the
        own ones and the maxima."""
        return self.memory[self.shape.bytes_at :].reshape(3, -1)

    @property
    def agreed(self) -> Bytes:
        """The agreed scales, or the maxima."""
        row: Bytes = self.bytes_of[1]
        return row

    @property
    def starts(self) -> list[int]:
        """Number in the job of the first block of values, by chunk."""
        return [self.first_block + item.start for item in self.shape.items if item.phase is Phase.VALUES]

    @property
    def needs(self) -> Phase:
        """Phase of a chunk after which its values can be encoded."""
        return Phase.REFINE if self.shape.job.refined else Phase.SCALE

    def describe(self, words: Integers, address: int) -> None:
        """Write the record, which is at ``address``, as its ``words``."""
        shape, memory = self.shape, address_of(self.memory)
        own = memory + shape.bytes_at
        blocks = (self.memory.size - shape.bytes_at) // 3
        words[:] = shape.words
        places = {
            "address": address, "magnitudes": memory, "lacking": memory + 8 * shape.measured, "own": own,
            "agreed": own + blocks, "refinement": own + 2 * blocks, "first_block": self.first_block,
            "serial": self.serial,
        }  # fmt: skip
        write(words, places | self.fields)


def check(request: Request, pieces: int) -> None:
    """Raises ValueError for arrays of other sizes than a request of values in so many ``pieces`` has."""
    values, out, contributed = request.values, request.out, request.contributed
    if values.size == 0 or values.size != pieces * out.size or not (out.flags.writeable or request.codec):
        what = "the same number of elements" if pieces == 1 else f"{pieces} times as many elements as out"
        raise ValueError(f"values must have {what}, at least one, and out be writable")
    if contributed is not None and contributed.size != values.size:
        raise ValueError(f"room for {contributed.size} contributed values, where there are {values.size}")


def begin_sum(
    request: Request, shape: Shape, kernels: Addresses, first_block: int, now: float, pieces: int, alone: bool,
    past: bool,
) -> Operation:  # fmt: skip
    """The sum that is asked for. Of more than one of the ``pieces``, ``out`` gets that which has this rank's number,
    ``alone`` if others get nothing of it; ``past`` the caches: `codec.past_caches`. Raises ValueError for arrays that
    are not of the job's type."""
    values, out, job = request.values, request.out, shape.job
    fields = {
        "divisor": request.divisor, "scatters": alone, "past": past, "signature": _word(signature_of(request, pieces))
    }  # fmt: skip
    if request.codec is not None:
        fields |= request.codec.fields(kernels)
    if not isinstance(request.codec, Staging):
        job.bits(values)
        fields["values"] = fields["out"] = address_of(values)
        if out is not values:
            job.bits(out)
            fields["out"] = address_of(out)
        if request.contributed is not None:
            job.bits(request.contributed)
            fields["contributed"] = address_of(request.contributed)
    operation = Operation(request, shape, first_block, now, shape.memory.copy(), fields)
    if request.codec is not None:
        request.codec.begin(operation)
    return operation


def begin_max(request: Request, shape: Shape, first_block: int, now: float) -> Operation:
    """The maxima that are asked for."""
    fields = {"divisor": 1, "scatters": 0, "signature": _word(signature_of(request))}
    operation = Operation(request, shape, first_block, now, shape.memory.copy(), fields)
    operation.bytes_of[0] = request.values
    return operation


def signature_of(request: Request, pieces: int = 1) -> bytes:
    """`schedule.signature` of a request, of values in as many equal ``pieces``."""
    tag = crc32(pack(">II", request.tag, pieces)) if pieces > 1 else request.tag
    return signature(request.values.size, request.float_type, request.divisor, tag)


def _word(signed: bytes) -> int:
    return int.from_bytes(signed, sys.byteorder, signed=True)
