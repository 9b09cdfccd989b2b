"""A link that counts what is worth counting: each contribution and each result once, however often it was sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inagg_link.around import LinkAround
from inagg_link.base import Batch, Link

SLOT_OFFSET = 16
"""Where the header has slot and generation, four bytes each, big-endian."""


@dataclass(slots=True)
class Tally:
    """Counts of one direction. The first two do not depend on how busy the machine was."""

    datagrams: int = 0
    payload_bytes: int = 0
    again: int = 0
    """Datagrams that were there before."""


class CountingLink(LinkAround):
    """Wraps a rank's link; ``up`` and ``down`` are what went through. A block is known by its slot and generation."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.up, self.down = Tally(), Tally()
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    @staticmethod
    def _count(data: NDArray[np.uint8], size: int, tally: Tally, latest: dict[int, int]) -> None:
        tags = data.reshape(-1, size)[:, SLOT_OFFSET : SLOT_OFFSET + 8].copy().view(">u4")
        for slot, generation in tags.tolist():
            if generation > latest.get(slot, 0):
                latest[slot] = generation
                tally.datagrams += 1
                tally.payload_bytes += size
            else:
                tally.again += 1

    def receive(self, timeout_s: float) -> list[Batch]:
        batches = self.link.receive(timeout_s)
        for batch in batches:
            self._count(batch.data, batch.size, self.down, self._received)
        return batches

    def send(self, batch: Batch) -> int:
        accepted = self.link.send(batch)
        self._count(batch.data[: accepted * batch.size], batch.size, self.up, self._sent)
        return accepted
