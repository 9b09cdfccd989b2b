"""What a feeder needs of a device: few functions, none of which waits but `Device.fetch`.

A device has three streams, each of which does what it is given in order: *look* finds the largest magnitudes, once the
values are computed; *down* encodes and copies codes to the host; *up* copies results to the device and decodes them.
None of them waits for another one on the device: what must come first the feeder has seen done, by a `Mark`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from inagg_host.codec import Job

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

BAD, TIE = 1, 2
"""Flags of a block: values beyond the agreed scale; a rounding that word 0 of the noise leaves open."""

SHELF_BLOCKS, LOOK_ELEMENTS = 1 << 15, 1 << 28
"""The most blocks, and elements, whose largest magnitudes are found at a time."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory of the host that the device reaches: `codec.staging.SLOT_BYTES` of codes, and as many of results."""

    number: int
    codes: Bytes
    results: Bytes


class Mark(Protocol):
    """A place in a stream."""

    def done(self) -> bool:
        """Whether the device has come there: then all that it has copied is in the host's memory. Raises what went
        wrong on the device."""


class Looked(Mark, Protocol):
    """Where the largest magnitudes are found."""

    def found(self) -> npt.NDArray[Any]:
        """When it is done: their bits, as unsigned integers of the size of a value."""


class Encoded(Mark, Protocol):
    """Where codes are copied to the host."""

    def flags(self) -> Bytes:
        """When it is done: `BAD` and `TIE` of each block."""


class Decoded(Mark, Protocol):
    """Where sums are written."""

    def invalid(self) -> int:
        """When it is done: how many codes named no level."""


class Device(Protocol):
    """One device, for one thread. ``operand`` is what the device knows of one operation's values and sums; blocks of
    values are counted from their first element, blocks of sums from the first of this rank's piece."""

    slots: list[Slot]
    """So many that, beside one, they have room for a batch of each shard: the core waits until all codes of those are
    there. The runs before them were sent, so their slots come back."""
    shelves: int
    """How many times largest magnitudes may be looked for at the same time."""

    def look(self, operand: Any, lanes: int, first: int, count: int, shelf: int) -> Looked:
        """Find the largest magnitude of ``count`` blocks, when their values are computed."""

    def encode(
        self, operand: Any, job: Job, slot: Slot, at: int, first: int, scales: Bytes, refinements: Bytes,
        numbers: Integers,
    ) -> Encoded:  # fmt: skip
        """Encode the blocks from ``first`` on that have these agreed bytes and numbers in the job, to ``slot.codes``,
        where the first one is the ``at``-th."""

    def fetch(self, operand: Any, job: Job, block: int) -> npt.NDArray[Any]:
        """The values of one block, of ``job.dtype``; waits for them."""

    def decode(
        self, operand: Any, job: Job, slot: Slot, at: int, first: int, scales: Bytes, refinements: Bytes, divisor: int
    ) -> Decoded:
        """Write the sums of the results from the ``at``-th of ``slot.results`` on, which have these agreed bytes, over
        the blocks from ``first`` on."""

    def begin_thread(self) -> None:
        """The calling thread uses the device from now on."""

    def end_thread(self) -> None:
        """Wait until the device rings no bell any more."""
