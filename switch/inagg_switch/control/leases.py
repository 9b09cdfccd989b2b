"""Leases of slots to jobs: a buddy allocator per shard (Knowlton, CACM 8(10), 1965).

Leases are powers of two, aligned to their size, which is what a buddy allocator gives by itself. A freed block
merges with its buddy, so that after all leases are returned the whole shard is one block again.
"""

from __future__ import annotations

from collections.abc import Sequence

from inagg_wire.slots import Lease


class NoRoom(Exception):
    """The slots that were asked for are not free."""


class BuddyAllocator:
    """The slots of one shard; ``slots`` is a power of two. Raises ValueError if it is not."""

    def __init__(self, slots: int) -> None:
        if slots < 1 or slots & (slots - 1):
            raise ValueError(f"a shard of {slots} slots: it must be a power of two")
        self.slots = slots
        self.free: dict[int, set[int]] = {1 << order: set() for order in range(slots.bit_length())}
        """Size of a free block -> the bases of all free blocks of that size."""
        self.free[slots].add(0)
        self.leased: dict[int, int] = {}
        """Base of a lease -> its size."""

    @property
    def largest_free(self) -> int:
        """The largest lease that can be had now; 0 if none."""
        return max((size for size, bases in self.free.items() if bases), default=0)

    @property
    def slots_leased(self) -> int:
        """Slots in leases."""
        return sum(self.leased.values())

    def allocate(self, size: int) -> int | None:
        """The base of a new lease of ``size`` slots (a power of two), None if there is no room.

        It comes from the smallest free block that is large enough, the lowest of these.
        """
        for whole in sorted(self.free):
            if whole >= size and self.free[whole]:
                return self._take(min(self.free[whole]), whole, size)
        return None

    def _take(self, base: int, whole: int, size: int) -> int:
        self.free[whole].remove(base)
        while whole > size:
            whole //= 2
            self.free[whole].add(base + whole)  # the half in which the lease does not lie
        self.leased[base] = size
        return base

    def release(self, base: int) -> None:
        """Return the lease at ``base``. Raises KeyError if there is none."""
        size = self.leased.pop(base)
        while size < self.slots and (buddy := base ^ size) in self.free[size]:
            self.free[size].remove(buddy)
            base = min(base, buddy)
            size *= 2
        self.free[size].add(base)


class LeasePool:
    """The slots of all shards. A job has one lease on each, of the same size: all of them or none."""

    def __init__(self, slots: Sequence[int]) -> None:
        self.shards = tuple(BuddyAllocator(n) for n in slots)

    @property
    def largest_free(self) -> int:
        """The largest lease that every shard has room for; 0 if none."""
        return min(shard.largest_free for shard in self.shards)

    def lease(self, slots: int) -> tuple[Lease, ...]:
        """Lease ``slots`` slots on every shard. Raises `NoRoom`, and then has leased nothing."""
        taken: list[Lease] = []
        for index, shard in enumerate(self.shards):
            base = shard.allocate(slots)
            if base is None:
                self.release(taken)
                raise NoRoom(f"{slots} slots of shard {index} are not free")
            taken.append(Lease(base, slots))
        return tuple(taken)

    def release(self, leases: Sequence[Lease]) -> None:
        """Return leases, one per shard from the first."""
        for shard, lease in zip(self.shards, leases, strict=False):
            shard.release(lease.base)
