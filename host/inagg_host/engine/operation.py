"""One tensor on its way through the network: what is known of it, and the kernels if it is not in the host's memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from inagg_host import kernels

from .plan import Item
from .window import Bytes, Integers


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
    first_block: int
    submitted_s: float
    left: int
    """Blocks without a result."""
    magnitudes: npt.NDArray[np.uint64]
    """Largest magnitudes, then this rank's scale bytes, the agreed ones and their refinements; one per value block. Of
    bytes, these are the own ones and the maxima."""
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
    invalid_codes: int = 0

    @cached_property
    def table(self) -> Integers:
        """`inagg_host.engine.stream.Part.items`."""
        rows = [(i.phase, self.first_block + i.start, i.count, i.first, i.blocks) for i in self.items]
        return np.array(rows, np.int64)

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
