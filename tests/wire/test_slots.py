"""Slot arithmetic: blocks and their slots, the window rule by exhaustive search, leases, the end of the generations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inagg_wire import slots
from inagg_wire.errors import AdmissionError
from inagg_wire.layout import GENERATION_MAX, SLOT_COUNT_MAX
from inagg_wire.slots import WINDOW_MAX, Lease, slots_for_window


@st.composite
def leases(draw: st.DrawFn) -> Lease:
    """Any lease that there can be."""
    count = 1 << draw(st.integers(1, 17))
    return Lease(count * draw(st.integers(0, SLOT_COUNT_MAX // count - 1)), count)


blocks = st.integers(0, 1 << 60) | st.integers(0, 1000)


def blocks_per_round(count: int) -> int:
    """Blocks after which a job with ``count`` slots needs a new epoch."""
    return count * slots.GENERATION_MAX  # type: ignore[attr-defined]  # which tests make smaller


# --- blocks, slots, generations -------------------------------------------------------------------------


@given(leases(), blocks)
@settings(max_examples=200)
def test_slot_and_generation_are_within_their_bounds(lease: Lease, block: int) -> None:
    assert lease.contains(lease.slot(block))
    assert 0 <= lease.slot(block) < SLOT_COUNT_MAX
    assert 1 <= lease.generation(block) <= GENERATION_MAX


@given(leases(), blocks)
@settings(max_examples=200)
def test_round_generation_and_slot_spell_the_block(lease: Lease, block: int) -> None:
    turns = lease.round(block) * GENERATION_MAX + lease.generation(block) - 1
    assert turns * lease.slots + lease.slot(block) - lease.base == block


@given(leases(), blocks, st.integers(-1, 1), st.integers(0, 1 << 48))
@settings(max_examples=300)
def test_block_is_found_from_slot_and_generation(lease: Lease, block: int, side: int, distance: int) -> None:
    """As long as one knows where one is to within half a round."""
    half = (blocks_per_round(lease.slots) - 1) // 2
    near = max(0, block + side * min(distance, half))
    assert lease.block_at(lease.slot(block), lease.generation(block), near) == block


def test_block_is_found_at_every_distance_within_half_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "GENERATION_MAX", 3)
    lease = Lease(8, 4)
    cycle = blocks_per_round(4)
    assert cycle == 12
    for block, near in product(range(5 * cycle), range(5 * cycle)):
        if abs(block - near) < cycle / 2:
            assert lease.block_at(lease.slot(block), lease.generation(block), near) == block


def test_consecutive_blocks_take_consecutive_slots_and_then_the_next_generation() -> None:
    lease = Lease(16, 4)
    assert [(lease.slot(b), lease.generation(b)) for b in range(9)] == [
        (16, 1),
        (17, 1),
        (18, 1),
        (19, 1),
        (16, 2),
        (17, 2),
        (18, 2),
        (19, 2),
        (16, 3),
    ]


def test_no_two_blocks_of_a_round_share_slot_and_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "GENERATION_MAX", 5)
    lease = Lease(0, 8)
    seen = {(lease.round(b), lease.slot(b), lease.generation(b)) for b in range(4 * blocks_per_round(8))}
    assert len(seen) == 4 * blocks_per_round(8) == 160


# --- the window rule, by search -------------------------------------------------------------------------

State = tuple[tuple[frozenset[int], frozenset[int]], ...]
"""For each worker: the blocks that it has sent, and those whose results it has."""


def reachable(workers: int, window: int, count: int, in_order: bool = False) -> Iterator[State]:
    """All states of ``workers`` that send ``count`` blocks, in any order that the rule allows: block b only after the
    result of b - ``window``, and ``in_order`` only after b - 1 was sent. Results exist once all have sent, and arrive
    at any time, in any order or not at all."""
    start: State = tuple((frozenset(), frozenset()) for _ in range(workers))
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        yield state
        complete = frozenset.intersection(*(sent for sent, _ in state))
        for worker, (sent, got) in enumerate(state):
            allowed = [b for b in range(count) if b < window or b - window in got]
            steps = [(sent | {b}, got) for b in allowed if not (in_order and b and b - 1 not in sent)]
            steps += [(sent, got | {b}) for b in complete - got]
            for step in steps:
                after = (*state[:worker], step, *state[worker + 1 :])
                if after not in seen:
                    seen.add(after)
                    todo.append(after)


def live(state: State) -> set[int]:
    """Blocks that some worker has sent and some worker still needs the result of."""
    sent = frozenset.union(*(s for s, _ in state))
    return set(sent - frozenset.intersection(*(g for _, g in state)))


def reused_too_early(state: State, lease: Lease) -> bool:
    """Whether a slot has been given to a block while a worker still needs the result of the block before."""
    return any(lease.slot(a) == lease.slot(b) for a in live(state) for b in live(state) if a < b)


SMALL_WORLDS = [(1, 1, 6), (2, 1, 5), (3, 1, 4), (2, 2, 6)]


@pytest.mark.parametrize(("workers", "window", "count"), SMALL_WORLDS)
def test_no_slot_is_reused_while_a_worker_may_need_its_result(workers: int, window: int, count: int) -> None:
    lease = Lease(0, 2 * window)
    states = 0
    for state in reachable(workers, window, count):
        states += 1
        assert not reused_too_early(state, lease)
        sent = frozenset.union(*(s for s, _ in state))
        assert all(b - 2 * window in got for b in sent if b >= 2 * window for _, got in state)
    assert states > count


@pytest.mark.parametrize(("workers", "window", "count"), SMALL_WORLDS)
def test_live_blocks_lie_within_the_lease_if_workers_send_in_order(workers: int, window: int, count: int) -> None:
    """What a host that keeps its last 2P blocks relies on, and whoever finds a block from its slot and generation."""
    for state in reachable(workers, window, count, in_order=True):
        assert max(live(state), default=0) - min(live(state), default=0) < 2 * window
        for sent, got in state:
            assert all(b in got for b in range(max(sent, default=0) - window + 1))


def test_live_blocks_may_lie_further_apart_if_workers_do_not_send_in_order() -> None:
    """The slots stay apart even then: each of them is a chain of its own."""
    states = list(reachable(2, 2, 6))
    assert any(max(live(state), default=0) - min(live(state), default=0) >= 4 for state in states)
    assert not any(reused_too_early(state, Lease(0, 4)) for state in states)


@pytest.mark.parametrize("workers", [2, 3])
def test_window_of_more_than_half_the_lease_would_reuse_slots_too_early(workers: int) -> None:
    """So the search finds what it looks for, and the rule is as tight as it can be."""
    assert any(reused_too_early(state, Lease(0, 2)) for state in reachable(workers, 2, 4))


# --- leases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [-2, 0, 1, 3, 6, 4 * WINDOW_MAX])
def test_lease_of_no_power_of_two_within_bounds_is_refused(count: int) -> None:
    with pytest.raises(AdmissionError, match="power of two from 2 to 131072"):
        Lease(0, count)


@pytest.mark.parametrize("base", [-8, 1, 4, 7, 12, SLOT_COUNT_MAX, SLOT_COUNT_MAX - 4])
def test_lease_that_is_not_aligned_or_beyond_the_slots_is_refused(base: int) -> None:
    with pytest.raises(AdmissionError, match="must start at a multiple of 8"):
        Lease(base, 8)


def test_last_lease_ends_with_the_last_slot() -> None:
    lease = Lease(SLOT_COUNT_MAX - 8, 8)
    assert lease.slot(7) == SLOT_COUNT_MAX - 1
    assert not lease.contains(SLOT_COUNT_MAX)


@given(leases(), st.integers(0, SLOT_COUNT_MAX - 1))
@settings(max_examples=100)
def test_lease_is_matched_by_a_mask(lease: Lease, slot: int) -> None:
    """What alignment is for: a switch needs no subtraction."""
    assert lease.contains(slot) == (slot & ~(lease.slots - 1) == lease.base)


@given(leases(), leases())
@settings(max_examples=100)
def test_aligned_leases_are_nested_or_apart(a: Lease, b: Lease) -> None:
    small, large = sorted((a, b), key=lambda lease: lease.slots)
    inside = large.contains(small.base)
    assert large.contains(small.base + small.slots - 1) == inside
    assert inside or not small.contains(large.base)


@pytest.mark.parametrize(("window", "count"), [(1, 2), (2, 4), (3, 8), (4, 8), (5, 16), (64, 128), (65536, 131072)])
def test_slots_for_a_window_are_the_next_power_of_two_doubled(window: int, count: int) -> None:
    assert slots_for_window(window) == count
    assert Lease(0, count).window >= window


def test_every_window_gets_the_smallest_lease_that_serves_it() -> None:
    for window in range(1, 2000):
        count = slots_for_window(window)
        assert Lease(0, count).window >= window
        assert count == 2 or count // 4 < window


@pytest.mark.parametrize("window", [-1, 0, WINDOW_MAX + 1])
def test_window_beyond_its_bounds_is_refused(window: int) -> None:
    with pytest.raises(AdmissionError, match="choose 1 to 65536"):
        slots_for_window(window)


# --- the end of the generations -------------------------------------------------------------------------


def stale_blocks(lease: Lease, order: list[int], cleared_before: set[int]) -> list[int]:
    """Which blocks a switch would drop as stale, or add to another's sum, if contributions come in ``order`` and tags
    are cleared before some of them."""
    tags: dict[int, int] = {}
    dropped = []
    for block in order:
        if block in cleared_before:
            tags.clear()
        slot, generation = lease.slot(block), lease.generation(block)
        if generation <= tags.get(slot, 0):
            dropped.append(block)
        tags[slot] = max(generation, tags.get(slot, 0))
    return dropped


def test_epoch_at_each_new_round_keeps_every_block_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "GENERATION_MAX", 3)
    lease = Lease(4, 4)
    order = list(range(4 * blocks_per_round(4)))
    begins = {b for b in order[1:] if lease.round(b) != lease.round(b - 1)}
    assert begins == {12, 24, 36}
    assert stale_blocks(lease, order, begins) == []


def test_generations_that_wrap_without_an_epoch_are_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "GENERATION_MAX", 3)
    lease = Lease(4, 4)
    assert stale_blocks(lease, list(range(14)), set()) == [12, 13]


def test_epoch_that_begins_before_the_round_is_complete_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of the old round that is sent again in the new epoch puts the last generation into its slot's tag, and
    the new round never gets past it. So every result of a round comes before the epoch of the next."""
    monkeypatch.setattr(slots, "GENERATION_MAX", 3)
    lease = Lease(4, 4)
    order = [*range(10), *range(10, 16)]  # blocks 10 and 11 of the old round are outstanding when the epoch begins
    assert stale_blocks(lease, order, cleared_before={10}) == [14, 15]
    assert stale_blocks(lease, order, cleared_before={12}) == []


def test_epoch_of_a_large_job_lasts_for_days() -> None:
    assert blocks_per_round(256) / 1e6 / 86400 > 6


@pytest.mark.parametrize("count", [2, 256, 2 * WINDOW_MAX])
def test_generation_wraps_after_the_blocks_of_an_epoch(count: int) -> None:
    lease = Lease(0, count)
    last = blocks_per_round(count) - 1
    assert (lease.slot(last), lease.generation(last), lease.round(last)) == (count - 1, GENERATION_MAX, 0)
    assert (lease.slot(last + 1), lease.generation(last + 1), lease.round(last + 1)) == (0, 1, 1)
