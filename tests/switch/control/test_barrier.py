"""Joining: all ranks wait for each other, then all get the same epoch."""

from __future__ import annotations

import pytest
from tests.switch.control.world import RecordingDriver, World, spec

from inagg_switch.control import events as ev
from inagg_switch.control.refusals import Code, ControlError
from inagg_switch.control.states import JobState


def test_nobody_is_admitted_before_the_last_rank_has_joined() -> None:
    world = World()
    job = spec(workers=3)
    first, second = world.join(2, job), world.join(0, job)
    assert not world.epochs
    third = world.join(1, job)
    assert world.epochs[first] is world.epochs[second] is world.epochs[third]


def test_the_first_epoch_is_number_one_and_starts_at_block_zero() -> None:
    epoch = World().join_all()
    assert epoch.epoch == 1
    assert [binding.resume_block for binding in epoch.bindings] == [0]


def test_the_switch_is_bound_before_anyone_is_admitted() -> None:
    world = World()
    world.slow = True
    tickets = [world.join(rank) for rank in range(2)]
    assert world.job().state is JobState.BINDING
    assert not world.epochs
    world.obey()
    assert world.epochs.keys() == set(tickets)
    assert world.job().state is JobState.RUNNING


def test_the_binding_has_the_addresses_in_the_order_of_ranks() -> None:
    world = World()
    world.join(1, port=4711)
    world.join(0, port=4710)
    assert world.driver.bound[0, 1].children == (("10.0.0.1", 4710), ("10.0.0.1", 4711))


def test_each_shard_is_bound_to_a_lease_of_its_own() -> None:
    world = World(RecordingDriver(shard_count=3))
    epoch = world.join_all(spec(workers=2, window=8))
    assert [binding.lease.slots for binding in epoch.bindings] == [16, 16, 16]
    assert world.driver.calls == ["bind 0 1", "bind 1 1", "bind 2 1"]


def test_the_window_is_rounded_up_to_a_power_of_two() -> None:
    epoch = World().join_all(spec(window=17))
    assert epoch.bindings[0].lease.window == 32


def test_a_seed_that_the_user_gives_is_used() -> None:
    assert World().join_all(spec(seed=0)).bindings[0].seed == 0


def test_a_rank_can_join_by_name_what_was_created() -> None:
    world = World()
    world.registry.create(world.now, spec())
    tickets = [world.join(rank, "job") for rank in range(2)]
    assert world.epochs.keys() == set(tickets)


def test_joining_by_name_what_is_not_there_says_so() -> None:
    with pytest.raises(ControlError, match="no job 'job': it has had none of that name") as caught:
        World().join(0, "job")
    assert caught.value.code is Code.NOT_FOUND


def test_a_rank_beyond_the_world_size_is_refused_and_creates_nothing() -> None:
    world = World()
    with pytest.raises(ControlError, match="rank 2 cannot join job 'job', which has ranks 0 to 1") as caught:
        world.join(2)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert not world.registry.jobs.by_name
    assert world.slots_leased == 0


def test_watchers_hear_who_joined_and_who_is_missing() -> None:
    world = World()
    world.join(1, spec(workers=3))
    assert world.events == [ev.MemberJoined(1, (0, 2))]


def test_who_waits_too_long_is_told_who_is_missing() -> None:
    world = World()
    tickets = [world.join(rank, spec(workers=5), timeout_s=10) for rank in (1, 3)]
    world.wait(9.5)
    assert not world.errors
    world.wait(0.5)
    for ticket in tickets:
        error = world.errors[ticket]
        assert error.code is Code.DEADLINE_EXCEEDED
        assert "waited 10.0 s in job 'job' for ranks 0, 2, 4 of 5" in error.text


def test_a_job_that_never_ran_is_gone_when_nobody_waits_any_more() -> None:
    world = World()
    world.join(0, timeout_s=1)
    world.wait(1)
    assert not world.registry.jobs.by_name
    assert world.slots_leased == 0
    assert world.driver.calls == []  # the switch never heard of it
    assert isinstance(ended := world.events[-1], ev.JobEnded)
    assert ended.cause is ev.Cause.NEVER_STARTED


def test_a_job_that_was_created_waits_for_its_first_rank() -> None:
    world = World()
    world.registry.create(world.now, spec())
    world.join(0, timeout_s=1)
    world.wait(2)
    assert world.job().state is JobState.JOINING
    world.wait(world.policy.join_timeout_s)
    assert not world.registry.jobs.by_name
    assert world.registry.jobs.past.last("job") is not None


def test_a_cancelled_call_no_longer_counts() -> None:
    world = World()
    world.registry.create(world.now, spec())
    world.join(0)
    world.cancel(world.last_ticket)
    world.join(1)
    assert not world.epochs
    world.join(0)
    assert len(world.epochs) == 2


def test_a_rank_that_joins_again_replaces_its_earlier_call() -> None:
    world = World()
    first = world.join(0)
    second = world.join(0)
    assert world.errors[first].code is Code.ABORTED
    world.join(1)
    assert second in world.epochs
    assert first not in world.epochs


def test_when_an_earlier_call_is_cancelled_the_one_in_its_place_waits_on() -> None:
    world = World()
    world.join(0)
    earlier = world.last_ticket
    again = world.join(0)
    world.cancel(earlier)
    world.join(1)
    assert again in world.epochs


def test_another_process_cannot_take_a_rank_that_waits() -> None:
    world = World()
    world.join(0)
    with pytest.raises(ControlError, match="rank 0 of job 'job' is taken by another process, or") as caught:
        world.join(0, member=666)
    assert "or by an AllReduce or process group of this one that is not closed, which waits" in caught.value.text
    assert caught.value.code is Code.ALREADY_EXISTS
    world.join(1)
    assert len(world.epochs) == 2


def test_another_process_cannot_take_a_rank_that_heartbeats() -> None:
    world = World()
    world.join_all()
    world.wait(30, beating=(0, 1))
    world.wait(0.25)
    with pytest.raises(ControlError, match=r"which was heard 0\.25 s ago; if it is gone, try again in 9\.8 s"):
        world.join(0, member=666)
    assert world.job().state is JobState.RUNNING


def test_one_process_cannot_be_two_ranks() -> None:
    world = World()
    world.join(0, member=7)
    with pytest.raises(ControlError, match="this process is rank 0 of job 'job' already and asks to be rank 1"):
        world.join(1, member=7)


def test_two_ranks_cannot_have_one_address() -> None:
    world = World()
    world.join(0, port=4000)
    with pytest.raises(ControlError, match=r"ranks 1 and 0 of job 'job' both give the address 10\.0\.0\.1 port 4000"):
        world.join(1, port=4000)


def test_a_call_cancelled_while_the_switch_is_told_comes_too_late_and_can_be_repeated() -> None:
    world = World()
    world.slow = True
    world.join(0)
    world.join(1)
    world.cancel(world.last_ticket)
    world.obey()
    assert world.job().state is JobState.RUNNING
    again = world.join(1)
    assert world.epochs[again].epoch == 1  # the epoch that the others are in
    assert world.job().state is JobState.RUNNING


def test_a_rank_that_leaves_while_the_switch_is_told_reopens_the_barrier() -> None:
    world = World()
    world.slow = True
    first, second = world.join(0), world.join(1)
    world.leave(1)
    assert world.errors[second].code is Code.ABORTED
    world.obey()  # the answer to an order that no longer counts
    assert not world.epochs
    assert world.job().state is JobState.JOINING
    world.slow = False
    third = world.join(1)
    assert world.epochs[first] is world.epochs[third]
    assert world.driver.bound[0, 1].token == world.epochs[third].bindings[0].token


def test_an_order_that_no_longer_counts_may_fail() -> None:
    world = World()
    world.slow, world.driver.bind_error = True, "table full"
    first, _ = world.join(0), world.join(1)
    world.leave(1)
    world.obey()
    assert first not in world.errors
    world.slow, world.driver.bind_error = False, ""
    assert world.epochs[world.join(1)] is world.epochs[first]


def test_an_answer_to_an_order_that_no_longer_counts_opens_no_barrier() -> None:
    world = World()
    world.slow = True
    for rank in (0, 1, 1):
        world.join(rank)
    first, second = (order for order in world.orders if isinstance(order, ev.Bind))
    world.registry.bound(world.now, first.job, first.serial)
    assert world.job().state is JobState.BINDING
    for _ in range(2):  # nor does it matter if it is given twice
        world.registry.bound(world.now, second.job, second.serial)
        assert world.job().state is JobState.RUNNING
    world.pump()
    assert [type(event) for event in world.events].count(ev.EpochStarted) == 1


def test_an_epoch_that_is_prepared_counts_once_it_runs() -> None:
    world = World()
    world.slow = True
    for rank in range(2):
        world.join(rank)
    assert world.job().epochs.number == 0
    world.obey()
    assert world.job().epochs.number == 1


def test_a_rank_that_calls_again_while_the_switch_is_told_gets_the_epoch() -> None:
    world = World()
    world.slow = True
    first, second = world.join(0), world.join(1)
    again = world.join(1)
    world.obey()
    world.obey()
    assert world.epochs[first] is world.epochs[again]
    assert world.errors[second].code is Code.ABORTED


def test_tokens_are_never_zero_and_never_those_of_the_last_epoch() -> None:
    world = World()
    draws = iter([0, 5, 5, 0, 6])
    world.registry._draw = lambda: next(draws)
    world.join_all(spec(seed=1))
    world.leave(0)
    world.leave(1)
    assert world.registry.jobs.past.jobs[-1].epoch == 1
    epoch = world.join_all(spec(seed=1))
    assert epoch.bindings[0].token == 5  # another job may draw the same: its number differs
