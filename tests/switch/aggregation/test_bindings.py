"""Binding and unbinding: what is refused, what is forgotten, what goes on, and that nothing leaks."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import replace

import pytest

from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.aggregation.model import Output
from inagg_switch.binding import Binding
from inagg_switch.driver import DriverError
from inagg_wire.errors import Reason
from inagg_wire.formats import FORMATS
from inagg_wire.layout import LANE_COUNT_MAX

from .oracle import result_of
from .pair import Pair, feed
from .world import STRANGER, addresses, block_of, make_binding, simple_contribution


def complete(pair: Pair, binding: Binding, block: int) -> None:
    """One block of the job, exactly."""
    assert pair.round(binding, block_of(binding, block)) == [Output(result_of(binding, block), binding.children)]


def test_after_unbind_a_job_is_unknown_and_its_slots_can_be_leased_again() -> None:
    pair, old = Pair(), make_binding(1, n=3)
    pair.bind(old)
    complete(pair, old, 0)
    pair.receive(block_of(old, 1)[0], old.children[0])
    pair.unbind(1)
    assert pair.round(old, block_of(old, 1)) == []
    assert pair.aggregator.counters().drops == {Reason.UNKNOWN_JOB: 3}
    new = make_binding(2, "fix32", n=2)
    pair.bind(new)
    for block in range(9):
        complete(pair, new, block)


def test_a_leased_slot_is_clear_whatever_generation_it_served() -> None:
    pair = Pair()
    far = make_binding(1, n=2, resume_block=1_000_000)
    pair.bind(far)
    complete(pair, far, 1_000_000)
    pair.receive(block_of(far, 1_000_001)[0], far.children[0])
    again = replace(far, token=5, resume_block=0)
    pair.bind(again)
    for block in range(8):
        complete(pair, again, block)


def test_unbinding_what_is_not_bound_is_no_error() -> None:
    pair = Pair()
    pair.unbind(7)
    pair.bind(make_binding(1))
    pair.unbind(7)
    pair.unbind(1)
    pair.unbind(1)
    assert pair.aggregator.counters().jobs == {}


def test_counters_go_on_over_epochs() -> None:
    pair, binding = Pair(), make_binding(1, n=2)
    for epoch in range(3):
        pair.bind(replace(binding, token=100 + epoch, lease=make_binding(base=4 * epoch).lease))
        complete(pair, pair.bindings[1], 0)
    assert pair.aggregator.counters().jobs[1].contributions == [3, 3]
    assert pair.aggregator.counters().jobs[1].results == 3


def test_counters_of_an_ended_job_do_not_leak_into_the_next_of_the_same_number() -> None:
    pair, binding = Pair(), make_binding(1, n=2)
    pair.bind(binding)
    complete(pair, binding, 0)
    pair.round(binding, block_of(binding, 0))
    pair.unbind(1)
    pair.bind(binding)
    counts = pair.aggregator.counters().jobs[1]
    assert not any(counts.contributions + counts.resends + counts.bytes_in + [counts.results, counts.invalid_codes])


def test_counters_of_an_ended_job_do_not_leak_into_the_next_of_another_number() -> None:
    pair = Pair(jobs=1)  # so that they share a row
    first, second = make_binding(1, n=32), make_binding(2, n=32)
    pair.bind(first)
    complete(pair, first, 0)
    pair.unbind(1)
    pair.bind(second)
    assert pair.aggregator.counters().jobs[2].contributions == [0] * 32
    complete(pair, second, 0)
    pair.check()


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2)])
def test_a_new_epoch_may_have_more_or_fewer_workers_and_no_count_is_lost(before: int, after: int) -> None:
    pair, binding = Pair(), make_binding(1, n=before)
    pair.bind(binding)
    complete(pair, binding, 0)
    binding = make_binding(1, n=after, token=2)
    pair.bind(binding)
    complete(pair, binding, 0)
    counts = pair.aggregator.counters().jobs[1]
    assert counts.contributions == [2, 2, 1, 1, 1]
    if after < before:
        gone = ("10.0.1.5", 5001)
        assert pair.receive(simple_contribution(binding, 0, 1), gone) == []
        assert pair.aggregator.counters().drops == {Reason.UNKNOWN_SOURCE: 1}


def test_a_new_epoch_may_have_other_addresses() -> None:
    pair, binding = Pair(), make_binding(1, n=2)
    pair.bind(binding)
    moved = replace(binding, token=2, children=(STRANGER, binding.children[0]))  # rank 0 moves, rank 1 takes its place
    pair.bind(moved)
    complete(pair, moved, 0)
    assert pair.receive(simple_contribution(moved, 1, 1), binding.children[1]) == []
    assert pair.aggregator.counters().drops == {Reason.UNKNOWN_SOURCE: 1}


def test_a_new_epoch_may_have_another_lease_and_leaves_the_old_one_free() -> None:
    pair, binding = Pair(slots=16), make_binding(1, n=2, base=0, slots=8)
    pair.bind(binding)
    moved = make_binding(1, n=2, base=8, slots=8, token=2)
    pair.bind(moved)
    other = make_binding(2, n=2, base=0, slots=8)
    pair.bind(other)
    for job in (moved, other):
        complete(pair, job, 3)


# --- refusals -------------------------------------------------------------------------------------------

BOUND = make_binding(1, n=2, base=8, slots=8)
REFUSED = {
    "the same lease": (make_binding(2, base=8, slots=8), "job 2 would share slots with job 1"),
    "part of a lease": (make_binding(2, base=12, slots=2), "job 2 would share slots with job 1"),
    "around a lease": (make_binding(2, base=0, slots=16), "job 2 would share slots with job 1"),
    "slots beyond the switch's": (make_binding(2, base=32, slots=32), "slots 32 to 63: this switch has 32"),
    "too many lanes": (make_binding(2, lanes=72), "72 lanes: this switch's slots have 64"),
    "two ranks at one address": (
        make_binding(2, children=addresses(1) * 2),
        "two peers of a job have the same address; each needs a socket of its own",
    ),
}


def whole_state(aggregator: Aggregator) -> bytes:
    arrays = [*aggregator._slots, *aggregator._jobs, *aggregator._counts, *aggregator._sources.peers]
    sources = repr(sorted(aggregator._sources._names.values()))
    return b"".join(array.tobytes() for array in arrays) + f"{sources}{aggregator.counters()}".encode()


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("rebind", [False, True], ids=["new", "rebind"])
def test_a_refused_binding_changes_nothing(case: str, rebind: bool) -> None:
    refused, why = REFUSED[case]
    aggregator = Aggregator(32, 64, 4)
    aggregator.bind(BOUND)
    if rebind:
        aggregator.bind(make_binding(2, n=3, base=16, slots=4, token=8))
    feed(aggregator, [simple_contribution(BOUND, 0, 0)], BOUND.children[0])
    before = whole_state(aggregator)
    with pytest.raises(DriverError, match=why):
        aggregator.bind(refused)
    assert whole_state(aggregator) == before
    outputs = feed(aggregator, [simple_contribution(BOUND, 1, 0)], BOUND.children[1])
    assert outputs == [Output(result_of(BOUND, 0), BOUND.children)]


def test_one_job_too_many_is_refused_until_another_ends() -> None:
    pair = Pair(jobs=2)
    one, two, three = (make_binding(job, base=4 * job) for job in (1, 2, 3))
    pair.bind(one)
    pair.bind(two)
    with pytest.raises(DriverError, match="this switch serves 2 jobs at a time, and has as many"):
        pair.bind(three)
    pair.bind(replace(two, token=3))  # a new epoch takes no further row
    pair.unbind(1)
    pair.bind(three)
    for job in (pair.bindings[2], three):
        complete(pair, job, 0)


def test_lanes_beyond_those_asked_for_are_refused_though_rows_are_rounded_up() -> None:
    """The noise table ends where the lanes do; a row of accumulators does not."""
    pair = Pair(slots=4, lanes=8)
    with pytest.raises(DriverError, match="16 lanes: this switch's slots have 8"):
        pair.bind(make_binding(1, lanes=16))
    pair.bind(make_binding(1, lanes=8))
    complete(pair, pair.bindings[1], 0)


def test_results_that_no_udp_datagram_holds_are_refused() -> None:
    aggregator = Aggregator(4, LANE_COUNT_MAX, 1)
    with pytest.raises(DriverError, match="results of 65528 lanes do not fit a UDP datagram"):
        aggregator.bind(make_binding(1, "nat8", lanes=LANE_COUNT_MAX))
    aggregator.bind(make_binding(1, "nat8", lanes=65480))


@pytest.mark.parametrize("slots", [0, 1, 3, 12])
def test_a_switch_has_a_power_of_two_of_slots(slots: int) -> None:
    with pytest.raises(ValueError, match=f"{slots} slots: choose a power of two, 2 or more"):
        Aggregator(slots, 8)


# --- nothing leaks --------------------------------------------------------------------------------------


def test_a_thousand_jobs_one_after_another_leave_nothing_behind() -> None:
    aggregator, names = Aggregator(64, 64, 4), sorted(FORMATS)
    attributes = {name: len(value) for name, value in vars(aggregator).items() if isinstance(value, Sized)}
    assert {"_bindings", "_free_rows", "_by_row"} <= set(attributes)
    for number in range(1000):
        fmt, n, base = names[number % len(names)], 1 + number % 32, 4 * (number % 16)
        binding = make_binding(number + 1, fmt, n, lanes=32, base=base, token=number + 1)
        aggregator.bind(binding)
        outputs = [
            output
            for rank, source in enumerate(binding.children)
            for output in feed(aggregator, [simple_contribution(binding, rank, 0)], source)
        ]
        assert outputs == [Output(result_of(binding, 0), binding.children)]
        aggregator.unbind(binding.job)
    assert {name: len(value) for name, value in vars(aggregator).items() if isinstance(value, Sized)} == attributes
    assert aggregator._sources._names == {}
    assert sorted(aggregator._free_rows) == [0, 1, 2, 3]
    assert aggregator._by_row == [None] * 4
    assert (aggregator._jobs.row == -1).all()
    assert aggregator.counters().jobs == {}


def test_a_source_is_known_as_long_as_any_of_its_jobs_lives() -> None:
    pair = Pair()
    jobs = [make_binding(job, n=2, base=4 * job, children=addresses(2)) for job in (1, 2, 3)]
    for binding in jobs:
        pair.bind(binding)
    for index, binding in enumerate(jobs):
        for living in jobs[index:]:
            complete(pair, living, index)
        pair.unbind(binding.job)
        assert bool(pair.aggregator._sources._names) == (index < 2)


def test_jobs_that_are_bound_over_and_over_stay_apart() -> None:
    """The other job works on in the middle of each change."""
    pair, steady = Pair(), make_binding(1, "nat4", n=3)
    pair.bind(steady)
    for turn in range(50):
        contributions = block_of(steady, turn)
        pair.receive(contributions[0], steady.children[0])
        if turn % 3 == 2:
            pair.unbind(2)
        else:
            name, n = sorted(FORMATS)[turn % 7], 1 + turn % 5
            pair.bind(make_binding(2, name, n=n, base=8, slots=8, token=turn + 1, resume_block=turn))
            complete(pair, pair.bindings[2], turn)
        pair.receive(contributions[1], steady.children[1])
        outputs = pair.receive(contributions[2], steady.children[2])
        assert outputs == [Output(result_of(steady, turn), steady.children)]
    pair.check()
