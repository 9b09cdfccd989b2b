"""`encode` and `decode` as the engine needs them for every batch: runs of blocks, arguments as numbers, few checks.

In Python a call of `kernels.encode` costs as much as the encoding of a dozen blocks, most of it for checks of arrays
that the engine has made itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import decoder, encoder
from .drafts import NOTES
from .job import Job

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]


class Room(NamedTuple):
    """For use inside the kernels."""

    indices: Any
    words: Any
    codes: Any
    drafts: Any
    """The first two of `encoder.Drafts`; no rows, if there are to be none."""
    notes: Any


class Runs:
    """The kernels of ``job``. Not thread-safe: it has room for one call.

    Arrays are as for `kernels.encode` and `kernels.decode`, but nobody looks: ``values`` were checked by `Job.bits`.
    Numbers that name no block or row raise IndexError all the same.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._indices = np.empty((3, 1024), np.int64)
        self._room, self._codes = job.room()
        self._drafts, self._notes = encoder.NO_DRAFTS.codes, encoder.NO_DRAFTS.notes

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
            datagrams, row, self._indices, self._room, self._codes, encoder.NO_DRAFTS,
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

    def room(self, blocks: int, drafts: int = 0) -> Room:
        """What the kernels need for use inside, for runs of up to ``blocks`` blocks and so many drafts."""
        self._make_room(blocks)
        if self.job.drafts and drafts > len(self._notes):
            self._drafts = np.empty((drafts, self._codes.size), np.uint8)
            self._notes = np.full((drafts, NOTES), -1, np.int64)
        return Room(self._indices, self._room, self._codes, self._drafts, self._notes)

    def _make_room(self, blocks: int) -> None:
        if blocks > self._indices.shape[1]:
            self._indices = np.empty((3, 2 * blocks), np.int64)
