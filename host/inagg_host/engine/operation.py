"""One tensor on its way through the network: how it begins, what is known of it, and the kernels if it is not in the
host's memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from inagg_host import kernels

from .plan import PLACE, Item, Phase, chunk_blocks, plan, plan_rows
from .window import Bytes, Integers

NO_ROWS = np.zeros((0, 6), np.int64)


class Codec(Protocol):
    """The kernels of one operation whose values are not in the host's memory, such as a GPU's."""

    def largest(self, first: int, count: int) -> npt.NDArray[np.uint64]:
        """As `inagg_host.kernels.largest`, of ``count`` blocks from ``first`` on."""

    def encode(
        self, scales: Bytes, refinements: Bytes, first: int, number: int, step: int, count: int, datagrams: Bytes,
        row: int,
    ) -> int:  # fmt: skip
        """As `inagg_host.kernels.Runs.encode`."""

    def decode(
        self, data: Bytes, size: int, places: Integers, blocks: Integers, step: int, offset: int, scales: Bytes,
        refinements: Bytes, divisor: int,
    ) -> int:  # fmt: skip
        """As `inagg_host.kernels.Runs.decode`."""


MakeCodec = Callable[[kernels.Job, int], Codec]
"""What makes one, when it is told the job and how many value blocks share a block of scales."""


@dataclass(eq=False)
class Operation:
    """One tensor to sum, or bytes whose maxima are asked for.

    ``values`` and ``out`` are 1-D, of the job's float type or uint8; they may be the same memory.
    """

    values: npt.NDArray[Any]
    out: npt.NDArray[Any]
    divisor: int
    runs: kernels.Runs
    items: tuple[Item, ...]
    rows: Integers
    """The same for compiled loops (`plan_rows`); none if there are blocks of scales alone, which they leave alone."""
    chunk: int
    """How many blocks have their scales in one block."""
    first_block: int
    submitted_s: float
    left: int
    """Blocks without a result."""
    magnitudes: npt.NDArray[np.uint64]
    """Largest magnitudes, then this rank's scale bytes, the agreed ones and their refinements, three rows of one array;
    one per value block. Of bytes, these are the own ones and the maxima."""
    own: Bytes
    agreed: Bytes
    refinement: Bytes
    ready: npt.NDArray[np.bool_]
    """Scales and refinements that are there, by phase and chunk."""
    contributed: npt.NDArray[Any] | None = None
    """Where to write what this rank's codes stand for."""
    maxima: bool = False
    """Bytes: there are blocks of scales alone."""
    codec: Codec | None = None
    """Where the values are, if they are not in ``values``."""
    at: int = 0
    """The item that is being sent, and how many of its blocks are."""
    sent: int = 0
    scaled: int = 0
    """How many value blocks, from the first on, have their own scales."""
    invalid_codes: int = 0
    serial: int = field(default_factory=count().__next__)
    """No other operation of this process has the same."""

    @cached_property
    def table(self) -> Integers:
        """`inagg_host.engine.stream.Part.items`."""
        table = self.rows.copy()
        table[:, PLACE] += self.first_block
        return table

    @property
    def job(self) -> kernels.Job:
        """What the kernels need to know."""
        return self.runs.job

    @property
    def blocks(self) -> int:
        """How many blocks it takes, scales included."""
        return self.items[-1].start + self.items[-1].count

    def item_of(self, block: int) -> int:
        """Which item has ``block`` (the job's numbering); the first, if it is of an earlier operation."""
        place = block - self.first_block
        at = min(self.at, len(self.items) - 1)
        if self.items[at].start <= place < self.items[at].start + self.items[at].count:
            return at  # as almost always: it is being sent
        return max(0, bisect_right(self.items, place, key=lambda item: item.start) - 1)


def begin_sum(
    values: npt.NDArray[Any],
    out: npt.NDArray[Any],
    runs: kernels.Runs,
    scale_lanes: int,
    first_block: int,
    now: float,
    divisor: int,
    contributed: npt.NDArray[Any] | None,
    codec: MakeCodec | None,
) -> Operation:
    """The sum of ``values``, see `Engine.submit`."""
    if values.size == 0 or values.size != out.size or not (out.flags.writeable or codec):
        raise ValueError("values and out must have the same number of elements, at least one, and out be writable")
    if contributed is not None and contributed.size != values.size:
        raise ValueError(f"room for {contributed.size} contributed values, where there are {values.size}")
    job = runs.job
    arrays = () if codec is not None else (values, out) if contributed is None else (values, out, contributed)
    for array in arrays:
        job.bits(array)
    chunk = chunk_blocks(job.lanes, scale_lanes)
    shape = values.size, job.lanes, chunk, job.refined
    items = plan(*shape)
    value_blocks, blocks = job.blocks(values.size), items[-1].start + items[-1].count
    own, agreed, refinement = np.zeros((3, value_blocks), np.uint8)
    return Operation(
        values,
        out,
        divisor,
        runs,
        items,
        plan_rows(*shape),
        chunk,
        first_block,
        now,
        blocks,
        np.empty(value_blocks, np.uint64),
        own,
        agreed,
        refinement,
        np.zeros((len(Phase), -(-value_blocks // chunk)), np.bool_),
        contributed=contributed,
        codec=None if codec is None else codec(job, chunk),
    )


def begin_max(values: Bytes, out: Bytes, runs: kernels.Runs, chunk: int, first_block: int, now: float) -> Operation:
    """The maxima of ``values``, ``chunk`` in a block, see `Engine.submit_max`. ``runs``: any of the job's."""
    if values.size == 0 or values.size != out.size or not out.flags.writeable:
        raise ValueError("values and out must have the same number of bytes, at least one, and out be writable")
    firsts = range(0, values.size, chunk)
    items = tuple(Item(Phase.SCALE, i, 1, first, min(chunk, values.size - first)) for i, first in enumerate(firsts))
    none = np.zeros(0, np.uint64)
    own, agreed, refinement = values.copy(), np.zeros_like(values), np.zeros(0, np.uint8)
    ready = np.zeros((len(Phase), len(items)), np.bool_)
    return Operation(
        values,
        out,
        1,
        runs,
        items,
        NO_ROWS,
        chunk,
        first_block,
        now,
        len(items),
        none,
        own,
        agreed,
        refinement,
        ready,
        maxima=True,
    )
