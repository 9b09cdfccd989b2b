"""The last results of a shard, as they came: what other ranks may lack when the network breaks."""

from __future__ import annotations

import numpy as np

from .window import Bytes, Integers, Window


class Kept:
    """A ring of results beside the window's ring of contributions, and as long: no two ranks are further apart."""

    def __init__(self, window: Window, ring: Bytes) -> None:
        """``ring``: (slots, bytes of the largest result), to keep them in."""
        self._window = window
        self.ring = ring

    @property
    def datagram_bytes(self) -> int:
        """Bytes of a row of `results`."""
        return int(self.ring.shape[1])

    def keep(self, datagrams: Bytes, rows: Integers, blocks: Integers) -> None:
        """Keep the results of ``blocks``, which stand in ``rows`` of ``datagrams``."""
        self.ring[blocks & (self._window.lease.slots - 1), : datagrams.shape[1]] = datagrams[rows]

    def results(self, blocks: Integers) -> Bytes:
        """The kept results of ``blocks``: (blocks, datagram_bytes), a copy. Shorter ones are filled up."""
        kept: Bytes = self.ring[blocks & (self._window.lease.slots - 1)]
        return kept

    def finished(self) -> Integers:
        """First the block from which on results are kept (all before have theirs), then those that are finished."""
        oldest, blocks = self._window.recent()
        return np.concatenate([[oldest], blocks])
