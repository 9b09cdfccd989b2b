"""New epochs of a running job, and of one whose switch has restarted: results must keep their bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.switch.control.world import RecordingDriver, World, job_seed, resume, spec

from inagg_switch.control import events as ev
from inagg_switch.control.members import Position, Resume
from inagg_switch.control.refusals import Code, ControlError
from inagg_switch.control.states import JobState, MemberState
from inagg_wire.slots import Lease

# ---------------------------------------------------------------------------------------- a running job


def test_a_member_that_asks_for_a_new_epoch_ends_the_running_one() -> None:
    world = World()
    epoch = world.join_all()
    world.join(1, brings=resume(epoch, 40, reason="connection lost"))
    ended = ev.EpochEnded(1, ev.Cause.NEW_EPOCH, 1, "rank 1 asked for a new epoch: connection lost")
    assert world.events[-2:] == [ended, ev.MemberJoined(1, (0,))]
    assert world.job().roster.by_rank[0].state is MemberState.BETWEEN


def test_all_go_on_from_the_smallest_block_that_any_rank_needs() -> None:
    world = World()
    epoch = world.join_all(spec(window=16))
    world.join(1, brings=resume(epoch, 40))
    ticket = world.join(0, brings=resume(epoch, 33))
    assert world.epochs[ticket].epoch == 2
    assert [binding.resume_block for binding in world.epochs[ticket].bindings] == [33]


def test_each_shard_goes_on_from_its_own_smallest_block() -> None:
    world = World(RecordingDriver(shard_count=2))
    epoch = world.join_all()
    world.join(1, brings=resume(epoch, 40, 41))
    ticket = world.join(0, brings=resume(epoch, 45, 33))
    assert [binding.resume_block for binding in world.epochs[ticket].bindings] == [40, 33]


def test_a_new_epoch_keeps_seed_and_slots_and_changes_the_token() -> None:
    world = World()
    first = world.join_all()
    second = world.join_all(brings=resume(first, 5))
    a, b = first.bindings[0], second.bindings[0]
    assert (a.seed, a.lease, a.job) == (b.seed, b.lease, b.job)
    assert a.token != b.token
    assert world.driver.calls == ["bind 0 1", "bind 0 1"]  # the second clears the slots


def test_the_token_of_an_epoch_is_neither_that_of_the_last_one_nor_zero() -> None:
    """A datagram of the last epoch, come late, must not count in this one."""
    world = World()
    world.registry._draw = iter((5, 5, 0, 7)).__next__
    first = world.join_all(spec(seed=1))
    second = world.join_all(spec(seed=1), brings=resume(first, 5))
    assert [epoch.bindings[0].token for epoch in (first, second)] == [5, 7]


def test_a_lost_reply_can_be_asked_for_again_and_disturbs_nobody() -> None:
    world = World()
    world.join_all()
    again = world.join(1)
    assert world.epochs[again].epoch == 1
    assert world.job().state is JobState.RUNNING


def test_a_lost_reply_of_a_later_epoch_can_be_asked_for_again() -> None:
    world = World()
    brought = resume(world.join_all(), 12)
    world.join_all(brings=brought)
    again = world.join(0, brings=brought)
    assert world.epochs[again].epoch == 2
    assert world.job().state is JobState.RUNNING


def test_a_member_with_a_new_address_gets_a_new_epoch() -> None:
    world = World()
    world.join_all()
    world.join(1, port=9999)
    assert world.job().state is JobState.JOINING
    ticket = world.join(0)
    assert world.epochs[ticket].bindings[0].children[1] == ("10.0.0.1", 9999)


def test_blocks_more_than_a_window_apart_are_not_of_one_run() -> None:
    world = World()
    epoch = world.join_all(spec(window=16))
    world.join(1, brings=resume(epoch, 100))
    with pytest.raises(ControlError, match="rank 0 of job 'job' needs block 83 of shard 0 and rank 1 block 100"):
        world.join(0, brings=resume(epoch, 83))
    ticket = world.join(0, brings=resume(epoch, 84))
    assert [binding.resume_block for binding in world.epochs[ticket].bindings] == [84]


def test_a_process_that_starts_anew_cannot_join_ranks_that_have_results() -> None:
    world = World()
    epoch = world.join_all()
    world.join(1, brings=resume(epoch, 3))
    world.wait(11, job="job")
    with pytest.raises(ControlError, match="rank 0 of job 'job' starts anew and rank 1 has results already") as e:
        world.join(0, member=666)
    assert e.value.code is Code.FAILED_PRECONDITION


def test_a_rank_that_has_results_cannot_join_a_process_that_starts_anew() -> None:
    world = World()
    epoch = world.join_all()
    world.wait(11, beating=(0,))
    world.join(1, member=666)
    with pytest.raises(ControlError, match="rank 1 of job 'job' starts anew and rank 0 has results already"):
        world.join(0, brings=resume(epoch, 3))


def test_a_rank_that_lacks_the_first_block_may_have_results_of_later_ones() -> None:
    """What its peer sent is in them, and a process that takes the peer's place may send something else."""
    world = World()
    epoch = world.join_all()
    world.join(1, brings=replace(resume(epoch, 0), has_results=True))
    world.wait(11, job="job")
    with pytest.raises(ControlError, match="rank 0 of job 'job' starts anew and rank 1 has results already"):
        world.join(0, member=666)


def test_a_replaced_process_can_bring_the_state_of_its_peers() -> None:
    world = World()
    epoch = world.join_all()
    world.wait(11, beating=(0,))
    world.join(0, brings=resume(epoch, 3))
    ticket = world.join(1, member=666, brings=resume(epoch, 3))
    assert [binding.resume_block for binding in world.epochs[ticket].bindings] == [3]


def test_all_processes_can_start_anew_in_the_same_job() -> None:
    world = World()
    first = world.join_all()
    world.wait(11)
    tickets = [world.join(rank, spec(), member=500 + rank) for rank in range(2)]
    second = world.epochs[tickets[0]]
    assert second.epoch == 2
    assert [binding.resume_block for binding in second.bindings] == [0]
    assert second.bindings[0].seed == first.bindings[0].seed


def test_an_epoch_that_the_job_has_not_had_is_refused() -> None:
    world = World()
    epoch = world.join_all()
    brought = Resume(7, job_seed(epoch), (Position(32, 0),))
    with pytest.raises(ControlError, match="brings epoch 7, and the job has only had 1"):
        world.join(0, brings=brought)
    assert world.job().state is JobState.RUNNING


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 3}, "it brings seed 3, and the job has"),
        ({"shards": ()}, "it brings 0 shards, and this switch has 1"),
        ({"shards": (Position(64, 4),)}, "a lease of another size than the 32 slots"),
        ({"epoch": 0}, "epochs are numbered from 1"),
    ],
)
def test_what_is_not_of_this_job_is_refused_and_changes_nothing(change: dict[str, object], words: str) -> None:
    world = World()
    epoch = world.join_all()
    values = {"epoch": 1, "seed": job_seed(epoch), "shards": (Position(32, 4),)}
    with pytest.raises(ControlError, match=words):
        world.join(0, brings=Resume(**{**values, **change}))  # type: ignore[arg-type]
    assert world.job().state is JobState.RUNNING
    assert not world.errors


# ---------------------------------------------------------------------------------------- a switch that restarted


def test_after_a_restart_the_ranks_bring_back_epoch_and_seed_and_get_other_slots() -> None:
    """Another job has theirs now, perhaps. The switch's noise is the same wherever they are."""
    world = World()
    world.join_all(spec("other", window=32))
    first = world.join_all()
    assert first.bindings[0].lease.base == 64
    world.restart()
    second = world.join_all(brings=resume(first, 21))
    assert second.epoch == 2
    assert job_seed(second) == job_seed(first)
    assert second.bindings[0].seed != first.bindings[0].seed
    assert second.bindings[0].lease == Lease(0, 32)
    assert [binding.resume_block for binding in second.bindings] == [21]
    assert world.slots_leased == 32


def test_after_a_restart_the_epoch_is_beyond_the_largest_that_any_rank_brings() -> None:
    world = World()
    first = world.join_all()
    second = world.join_all(brings=resume(first, 1))
    world.restart()
    world.join(0, brings=resume(first, 1))  # it never heard of the second
    ticket = world.join(1, brings=resume(second, 2))
    assert world.epochs[ticket].epoch == 3


def test_after_a_restart_an_epoch_that_leaves_no_room_for_others_is_refused() -> None:
    world = World()
    brings = resume(world.join_all(), 1)
    world.restart()
    with pytest.raises(ControlError, match="brings epoch 2147483649"):
        world.join(0, brings=replace(brings, epoch=(1 << 31) + 1))
    assert not world.registry.jobs.by_number


def test_after_a_restart_a_rank_without_results_can_come_before_one_that_brings_the_seed() -> None:
    world = World()
    first = world.join_all()
    world.restart()
    world.join(0)
    ticket = world.join(1, brings=resume(first, 0))
    assert job_seed(world.epochs[ticket]) == job_seed(first)


def test_a_seed_that_the_user_gave_holds_against_one_that_is_brought() -> None:
    world = World()
    first = world.join_all(spec(seed=5))
    world.restart()
    with pytest.raises(ControlError, match="it brings seed 5, and the job has 6"):
        world.join(0, spec(seed=6), brings=resume(first, 4))
    assert not world.registry.jobs.by_name


def test_once_the_switch_was_told_of_a_seed_no_rank_can_change_it() -> None:
    world = World()
    first = world.join_all()
    world.restart()
    world.registry._draw = lambda: 7
    world.slow = True
    world.join(0)
    world.join(1)  # orders the switch to bind
    world.leave(1)
    with pytest.raises(ControlError, match=f"it brings seed {job_seed(first)}, and the job has 7"):
        world.join(1, brings=resume(first, 0))


def test_a_job_that_nobody_waits_for_while_the_switch_is_told_is_dropped_again() -> None:
    world = World()
    world.slow = True
    world.join(0)
    world.join(1)
    world.leave(1)
    world.leave(0)
    world.obey()
    world.obey()
    assert world.driver.calls == ["bind 0 1", "unbind 0 1"]
    assert world.driver.bound == {}
    assert world.slots_leased == 0
