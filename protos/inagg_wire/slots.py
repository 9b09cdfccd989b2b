"""Slot arithmetic: which slot and generation a block uses, the window, leases, the end of an epoch.

A job leases ``slots`` = 2P consecutive slots, a power of two, aligned to their number. P is the *window*.

Why 2P slots and a window of P are enough. Block b uses slot b mod 2P. A worker sends block b + 2P (the next
user of b's slot) only after it has the result of b + P. A result exists only once every worker has
contributed, so every worker has sent b + P, and it did so only after it had the result of b. So when the
switch first sees generation g + 1 of a slot, no worker can still need the result of generation g, and the
switch may forget it. A copy of a contribution to generation g that the network still holds is *stale* from
then on, however late it comes, since the slot's tag only grows within an epoch.

So, too, whoever keeps to this sends generation g + 1 only when g is complete. A switch takes no other: one rank that
counts wrong would else wipe out a sum of all, and its tag, far ahead, would make all that follows stale. An epoch
begins with some block of the job, and each slot with the generation that the first block from there on has in it
(`Lease.first_generation`).

Workers send new blocks in order. Then whoever sends b has all results up to b - P, and the blocks that anyone has
sent and anyone still needs lie within 2P of each other: a host need keep no more than its last 2P. (Slots would stay
apart without this order, but one lost result would let the other slots run ahead of it without bound.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .errors import AdmissionError
from .layout import GENERATION_MAX, SLOT_COUNT_MAX

WINDOW_MAX: Final = 1 << 16
"""The largest window P, in blocks. 2P <= SLOT_COUNT_MAX, and a sequence gap fits 32 bits many times over."""
assert 2 * WINDOW_MAX <= SLOT_COUNT_MAX


@dataclass(frozen=True, slots=True)
class Lease:
    """``slots`` consecutive slots from ``base``. Raises `AdmissionError` if they could not be leased."""

    base: int
    slots: int

    def __post_init__(self) -> None:
        if not (2 <= self.slots <= 2 * WINDOW_MAX and self.slots & (self.slots - 1) == 0):
            raise AdmissionError(
                f"a lease of {self.slots} slots: a job takes a power of two from 2 to {2 * WINDOW_MAX}"
            )
        # Aligned, so that `slot & (slots - 1)` is the offset in the lease and a switch can match the lease by
        # a mask, with no subtraction.
        if self.base < 0 or self.base % self.slots or self.base + self.slots > SLOT_COUNT_MAX:
            raise AdmissionError(
                f"a lease of {self.slots} slots at {self.base}: it must start at a multiple of {self.slots} and "
                f"end at or below {SLOT_COUNT_MAX}"
            )

    @property
    def window(self) -> int:
        """P: how many blocks a worker may have outstanding."""
        return self.slots // 2

    def slot(self, block: int) -> int:
        """The slot of ``block`` (>= 0)."""
        return self.base + (block & (self.slots - 1))

    def generation(self, block: int) -> int:
        """The generation of ``block`` in its slot, 1..GENERATION_MAX."""
        return 1 + (block // self.slots) % GENERATION_MAX

    def first_generation(self, slot: int, block: int) -> int:
        """The generation of the first block from ``block`` on that uses ``slot``. In the last generation of a round it
        may be one that there is not (GENERATION_MAX + 1): a new epoch must begin before."""
        return self.generation(block) + (slot < self.slot(block))

    def round(self, block: int) -> int:
        """Number of times that the generations have wrapped before ``block``.

        Tags must be cleared, by a new epoch, between blocks of different rounds: in round r + 1 the slots
        start at generation 1 again, which their tags would call stale. At 10^6 blocks a second and 256 slots, a round
        lasts six days.
        """
        return block // self.slots // GENERATION_MAX

    def contains(self, slot: int) -> bool:
        """Whether ``slot`` is one of the lease."""
        return self.base <= slot < self.base + self.slots

    def overlaps(self, other: Lease) -> bool:
        """Whether they share slots."""
        return self.base < other.base + other.slots and other.base < self.base + self.slots

    def block_at(self, slot: int, generation: int, near: int) -> int:
        """The block nearest ``near`` that uses ``slot`` in ``generation``.

        The inverse of `slot` and `generation` for a host that knows about where it is. Exact while blocks
        are less than half a round apart, and a host's live blocks lie within 2P of each other.
        """
        cycle = self.slots * GENERATION_MAX
        offset = (generation - 1) * self.slots + (slot - self.base)
        return offset + cycle * max(0, (near - offset + cycle // 2) // cycle)


def slots_for_window(window: int) -> int:
    """The slots to lease for a window of at least ``window`` blocks: the next power of two, doubled."""
    if not 1 <= window <= WINDOW_MAX:
        raise AdmissionError(f"a window of {window} blocks: choose 1 to {WINDOW_MAX}")
    return 2 << (window - 1).bit_length()
