"""What the windows of a job remember of their blocks: one array of each kind for all shards, so that a compiled loop
need not know how many there are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .loops import OUTCOMES


class Memory(NamedTuple):
    """By shard, then by row. Block b of a shard, whose lease has so many slots, is in row b mod slots; but its datagram
    is in row b mod rows of ``ring``, of which there may be more."""

    ring: Any
    """uint8, (shards, rows, bytes): its datagram. It is there for as long as the row above; so if there are more rows,
    those of as many of the next blocks are free."""
    sizes: Any
    """int64: how many bytes of the row that takes."""
    op: Any
    """uint8."""
    done: Any
    """bool: it has its result in this epoch, or none is awaited."""
    taken: Any
    """bool: its result was given to the caller; once, over all epochs."""
    once: Any
    """bool: it was sent once so far, and the timer has not run out (Karn's rule)."""
    sent_s: Any
    """float64: when it was first sent in this epoch."""
    after: Any
    """int64: the last block that was new when this one was last sent."""
    counts: Any
    """int64, (shards, outcomes): what became of received datagrams."""

    def of(self, shard: int, rows: int) -> Memory:
        """That of one shard, of ``rows`` rows besides its ring: views, without the first axis."""
        return Memory(
            ring=self.ring[shard],
            sizes=self.sizes[shard, :rows],
            op=self.op[shard, :rows],
            done=self.done[shard, :rows],
            taken=self.taken[shard, :rows],
            once=self.once[shard, :rows],
            sent_s=self.sent_s[shard, :rows],
            after=self.after[shard, :rows],
            counts=self.counts[shard],
        )


def make_memory(shards: int, rows: int, free: int, stride: int) -> Memory:
    """Of windows that have sent nothing, with so many ``rows``, a power of two. ``free``: so many more blocks of each
    shard, from the next one on, have a place in the ring. ``stride``: bytes of the largest datagram."""
    shape = shards, rows
    return Memory(
        # Written, so that no all-reduce has to wait for the pages.
        ring=np.full((shards, 1 << (rows + free - 1).bit_length(), stride), 0, np.uint8),
        sizes=np.zeros(shape, np.int64),
        op=np.zeros(shape, np.uint8),
        done=np.ones(shape, np.bool_),
        taken=np.ones(shape, np.bool_),
        once=np.zeros(shape, np.bool_),
        sent_s=np.zeros(shape, np.float64),
        after=np.zeros(shape, np.int64),
        counts=np.zeros((shards, len(OUTCOMES)), np.int64),
    )
