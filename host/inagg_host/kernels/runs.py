"""`encode` and `decode` as the engine needs them for every batch: runs of blocks, arguments as numbers, few checks.

In Python a call of `kernels.encode` costs as much as the encoding of a dozen blocks, most of it for checks of arrays
that the engine has made itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import decoder, encoder
from .bits import groups
from .drafts import FIRST_UNIT, NOBODYS, NOTES, Drafts
from .job import Job

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]


class Room(NamedTuple):
    """For use inside the kernels."""

    indices: Any
    words: Any
    codes: Any
    drafts: Drafts


class Runs:
    """The kernels of ``job``. Not thread-safe: it has room for one call.

    Arrays are as for `kernels.encode` and `kernels.decode`, but nobody looks: ``values`` were checked by `Job.bits`.
    Numbers that name no block or row raise IndexError all the same.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._indices = np.empty((3, 1024), np.int64)
        self._room, self._codes = job.room()
        self._drafts = encoder.NO_DRAFTS

    def encode(
        self,
        values: npt.NDArray[Any],
        scales: Bytes,
        refinements: Bytes,
        first: int,
        number: int,
        step: int,
        count: int,
        datagrams: Bytes,
        row: int,
    ) -> int:
        """Write the payloads of ``count`` blocks, ``first`` and every ``step``-th after it; their numbers in the job go
        up likewise from ``number``, their rows by one from ``row``. Returns as `kernels.encode`."""
        self._make_room(count)
        bad: int = encoder.encode_run(
            self.job.for_encode, values.view(self.job.unsigned), first, number, step, count, scales, refinements,
            datagrams, row, self._indices, self._room, self._codes, encoder.NO_DRAFTS, 0,
        )  # fmt: skip
        if bad == encoder.OUT_OF_RANGE:
            raise IndexError(f"{count} blocks from {first} or rows from {row}: some are not there")
        return bad

    def decode(
        self,
        data: Bytes,
        size: int,
        places: Indices,
        numbers: Indices,
        step: int,
        offset: int,
        values: npt.NDArray[Any],
        scales: Bytes,
        refinements: Bytes,
        divisor: int,
    ) -> int:
        """Write the sums in the results at ``places`` of ``data``, datagrams of ``size`` bytes back to back, over the
        blocks ``numbers`` * ``step`` + ``offset`` of ``values``. Returns how many codes name no level."""
        self._make_room(len(numbers))
        invalid: int = decoder.decode_run(
            self.job.for_decode, data, size, places, numbers, step, offset, values.view(self.job.unsigned), scales,
            refinements, divisor, self._indices, self._room, self._codes,
        )  # fmt: skip
        if invalid < 0:
            raise IndexError("results of blocks that are not there")
        return invalid

    def room(self, blocks: int, rows: int = 0) -> Room:
        """What the kernels need for use inside, for runs of up to ``blocks`` blocks and drafts in so many rows."""
        self._make_room(blocks)
        if self.job.drafts and rows > len(self._drafts.notes):
            self._drafts = Drafts(
                np.full((rows, NOTES), NOBODYS, np.int64),
                np.empty((rows, groups(self.job.lanes)), np.uint8),
                np.full(1, FIRST_UNIT, np.int64),
            )
        return Room(self._indices, self._room, self._codes, self._drafts)

    def _make_room(self, blocks: int) -> None:
        if blocks > self._indices.shape[1]:
            self._indices = np.empty((3, 2 * blocks), np.int64)
