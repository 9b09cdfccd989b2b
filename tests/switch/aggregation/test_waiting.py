"""Why a job waits: which slots lack which ranks, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.driver import SlotWait

from .pair import feed
from .world import make_binding, simple_contribution

JOB = make_binding(1, n=4, base=8, slots=8)
EVERYONE = (0, 1, 2, 3)


@pytest.fixture
def aggregator() -> Aggregator:
    made = Aggregator(32, 32, 4)
    made.bind(JOB)
    return made


def contribute(aggregator: Aggregator, block: int, ranks: tuple[int, ...], now: float) -> None:
    for rank in ranks:
        feed(aggregator, [simple_contribution(JOB, rank, block)], JOB.children[rank], now)


def test_a_job_that_has_sent_nothing_does_not_wait(aggregator: Aggregator) -> None:
    assert aggregator.waiting(1, 10.0) == (0, [])


def test_a_job_that_is_not_bound_does_not_wait(aggregator: Aggregator) -> None:
    assert aggregator.waiting(2, 10.0) == (0, [])


def test_the_missing_ranks_and_the_time_since_the_first_contribution_are_told(aggregator: Aggregator) -> None:
    contribute(aggregator, 3, EVERYONE, now=90.0)
    contribute(aggregator, 11, (2,), now=100.0)
    contribute(aggregator, 11, (0,), now=103.0)
    assert aggregator.waiting(1, 107.5) == (1, [SlotWait(slot=11, generation=2, missing=(1, 3), waiting_s=7.5)])


def test_the_longest_wait_comes_first_and_the_limit_cuts_the_list_not_the_count(aggregator: Aggregator) -> None:
    for block, now in ((3, 40.0), (0, 20.0), (6, 10.0), (5, 30.0)):
        contribute(aggregator, block, (0,), now)
    count, waits = aggregator.waiting(1, 50.0)
    assert count == 4
    assert [(w.slot, w.waiting_s) for w in waits] == [(14, 40.0), (8, 30.0), (13, 20.0), (11, 10.0)]
    assert aggregator.waiting(1, 50.0, limit=2) == (4, waits[:2])
    assert aggregator.waiting(1, 50.0, limit=0) == (4, [])


def test_a_complete_slot_does_not_wait(aggregator: Aggregator) -> None:
    contribute(aggregator, 0, (0, 1, 2, 3), 1.0)
    contribute(aggregator, 1, (0, 1, 3), 2.0)
    assert aggregator.waiting(1, 3.0) == (1, [SlotWait(9, 1, (2,), 1.0)])


def test_a_duplicate_does_not_start_the_wait_anew(aggregator: Aggregator) -> None:
    contribute(aggregator, 0, (1,), 1.0)
    contribute(aggregator, 0, (1, 1), 5.0)
    assert aggregator.waiting(1, 6.0) == (1, [SlotWait(8, 1, (0, 2, 3), 5.0)])


def test_a_new_generation_waits_from_its_own_first_contribution(aggregator: Aggregator) -> None:
    contribute(aggregator, 0, EVERYONE, 1.0)
    contribute(aggregator, 8, (3,), 5.0)
    assert aggregator.waiting(1, 6.0) == (1, [SlotWait(8, 2, (0, 1, 2), 1.0)])


def test_a_new_epoch_waits_for_nothing(aggregator: Aggregator) -> None:
    contribute(aggregator, 0, (0,), 1.0)
    aggregator.bind(replace(JOB, token=6))
    assert aggregator.waiting(1, 6.0) == (0, [])


def test_other_jobs_waits_are_not_listed(aggregator: Aggregator) -> None:
    other = make_binding(2, n=2, base=16, slots=2)
    aggregator.bind(other)
    feed(aggregator, [simple_contribution(other, 1, 0)], other.children[1], 3.0)
    contribute(aggregator, 0, (0,), 1.0)
    assert [w.slot for w in aggregator.waiting(1, 6.0)[1]] == [8]
    assert aggregator.waiting(2, 6.0) == (1, [SlotWait(16, 1, (0,), 3.0)])
    aggregator.unbind(2)
    assert aggregator.waiting(2, 6.0) == (0, [])


def test_a_job_of_32_workers_tells_each_missing_rank() -> None:
    binding, aggregator = make_binding(1, n=32), Aggregator(4, 32, 1)
    aggregator.bind(binding)
    for rank in range(32):
        missing = tuple(range(rank, 32)) if rank else ()
        assert [w.missing for w in aggregator.waiting(1, 0.0)[1]] == ([missing] if missing else [])
        feed(aggregator, [simple_contribution(binding, rank, 0)], binding.children[rank])
    assert aggregator.waiting(1, 0.0) == (0, [])


def test_a_clock_that_is_read_earlier_than_the_contribution_gives_no_negative_wait(aggregator: Aggregator) -> None:
    contribute(aggregator, 0, (0,), 7.0)
    assert aggregator.waiting(1, 6.9)[1][0].waiting_s == 0.0
