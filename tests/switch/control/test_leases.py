"""Slots: power-of-two, aligned, never to two at once, all back in the end."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from inagg_switch.control.leases import BuddyAllocator, LeasePool, NoRoom


def test_a_lease_comes_from_the_smallest_block_that_is_large_enough() -> None:
    shard = BuddyAllocator(16)
    assert shard.allocate(2) == 0  # leaves 2, 4 and 8 free
    assert shard.allocate(8) == 8
    assert shard.allocate(2) == 2  # and not 4, which would spoil the 4
    assert shard.allocate(4) == 4
    assert shard.largest_free == 0


def test_a_full_shard_gives_nothing() -> None:
    shard = BuddyAllocator(4)
    shard.allocate(4)
    assert shard.allocate(2) is None


def test_returned_slots_merge_into_one_block() -> None:
    shard = BuddyAllocator(16)
    bases = [shard.allocate(2) for _ in range(8)]
    for base in bases:
        assert base is not None
        shard.release(base)
    assert shard.largest_free == 16
    assert shard.free[16] == {0}


def test_returning_what_is_not_leased_is_an_error() -> None:
    with pytest.raises(KeyError):
        BuddyAllocator(16).release(0)


@pytest.mark.parametrize("slots", [0, 3, 12, -4])
def test_a_shard_has_a_power_of_two_of_slots(slots: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        BuddyAllocator(slots)


def test_a_pool_leases_on_all_shards_or_on_none() -> None:
    pool = LeasePool([16, 16])
    pool.shards[1].allocate(16)
    with pytest.raises(NoRoom, match="shard 1"):
        pool.lease(4)
    assert pool.shards[0].largest_free == 16


class BuddyMachine(RuleBasedStateMachine):
    """Any sequence of leases and returns, against a set of slots in use."""

    @initialize(order=st.integers(1, 8))
    def start(self, order: int) -> None:
        self.slots = 1 << order
        self.shard = BuddyAllocator(self.slots)
        self.mine: dict[int, int] = {}

    def used(self) -> set[int]:
        return {slot for base, size in self.mine.items() for slot in range(base, base + size)}

    @rule(order=st.integers(0, 8))
    def allocate(self, order: int) -> None:
        size = 1 << order
        fits = self.shard.largest_free >= size
        base = self.shard.allocate(size)
        assert (base is not None) == fits
        if base is not None:
            assert not self.used() & set(range(base, base + size))
            self.mine[base] = size

    @rule(choice=st.randoms(use_true_random=False))
    def release(self, choice: object) -> None:
        if self.mine:
            base = choice.choice(sorted(self.mine))  # type: ignore[attr-defined]
            self.shard.release(base)
            del self.mine[base]

    @invariant()
    def aligned_and_inside(self) -> None:
        if hasattr(self, "mine"):
            assert all(base % size == 0 and base + size <= self.slots for base, size in self.mine.items())

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "mine"):
            free = [slot for size, bases in self.shard.free.items() for b in bases for slot in range(b, b + size)]
            assert len(free) == len(set(free))
            assert set(free) | self.used() == set(range(self.slots))
            assert not set(free) & self.used()
            assert self.shard.slots_leased == len(self.used())

    def teardown(self) -> None:
        if hasattr(self, "mine"):
            for base in self.mine:
                self.shard.release(base)
            assert self.shard.largest_free == self.slots


TestBuddies = BuddyMachine.TestCase
TestBuddies.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
