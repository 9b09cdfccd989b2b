"""All jobs of a switch: names, numbers, room, isolation, and a switch that fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.switch.control.world import LIMITS, RecordingDriver, World, spec

from inagg_switch.control import events as ev
from inagg_switch.control.admission import check
from inagg_switch.control.policy import Policy
from inagg_switch.control.refusals import Code, ControlError
from inagg_switch.control.registry import Registry
from inagg_switch.control.states import JobState
from inagg_switch.driver import Shard


def test_creating_the_same_job_again_changes_nothing() -> None:
    world = World()
    job, created = world.registry.create(world.now, spec())
    again, created_again = world.registry.create(world.now, spec())
    assert again is job
    assert (created, created_again) == (True, False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workers": 3}, "it has workers 2, and this call says 3"),
        ({"format_name": "fix32", "lanes": 256}, "it has format nat8, and this call says fix32"),
        ({"lanes": 8}, "it has lanes 1448, and this call says 8"),
        ({"window": 64}, "it has window 16, and this call says 64"),
        ({"seed": 4}, "it has seed 9, and this call says 4"),
        ({"heartbeat_limit_s": 1.0}, "it has heartbeat_limit_s 10.0, and this call says 1.0"),
        ({"rejoin_limit_s": 1.0}, "it has rejoin_limit_s 60.0, and this call says 1.0"),
    ],
)
def test_a_job_with_other_parameters_is_refused_with_both_values(change: dict[str, object], words: str) -> None:
    world = World()
    world.join(0, spec(seed=9))
    with pytest.raises(ControlError, match=words) as caught:
        world.join(1, spec(**{"seed": 9, **change}))  # type: ignore[arg-type]
    assert caught.value.code is Code.ALREADY_EXISTS
    assert world.job().roster.missing() == (1,)


def test_windows_that_lease_the_same_slots_are_the_same() -> None:
    world = World()
    world.join(0, spec(window=9))
    world.join(1, spec(window=16))
    assert len(world.epochs) == 2


def test_lanes_and_a_window_that_are_left_to_the_switch_fit_any_job() -> None:
    world = World()
    world.join(0, spec(lanes=8))
    world.join(1, check(LIMITS, name="job", workers=2, format_name="nat8", lanes=None, window=None))
    assert [epoch.bindings[0].lanes for epoch in world.epochs.values()] == [8, 8]


def test_lanes_that_the_switch_chose_are_kept_against_others_that_are_asked_for() -> None:
    world = World()
    world.join(0, check(LIMITS, name="job", workers=2, format_name="nat8", lanes=None, window=16))
    with pytest.raises(ControlError, match="it has lanes 1448, and this call says 8"):
        world.join(1, spec(lanes=8))


def test_a_seed_that_is_left_to_the_switch_fits_any_job() -> None:
    world = World()
    world.join(0, spec(seed=9))
    world.join(1, spec())
    assert world.driver.bound[0, 1].seed == 9


def test_a_seed_that_the_switch_drew_is_not_silently_kept_against_one_that_is_asked_for() -> None:
    world = World()
    world.join(0, spec())
    with pytest.raises(ControlError, match="it has seed 4097, and this call says 9"):
        world.join(1, spec(seed=9))


def test_a_refusal_for_want_of_slots_says_what_would_fit() -> None:
    world = World()  # 1024 slots
    world.join_all(spec("a", window=256))
    with pytest.raises(
        ControlError, match="512 blocks needs 1024 slots on each shard; the largest window that fits now is 256"
    ) as caught:
        world.join(0, spec("b", window=512))
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert list(world.registry.jobs.by_name) == ["a"]
    world.join_all(spec("c", window=256))
    with pytest.raises(ControlError, match="all slots are leased by 2 jobs"):
        world.join(0, spec("b", window=1))


def test_a_window_that_the_switch_could_never_serve_is_called_so() -> None:
    world = World()
    with pytest.raises(ControlError, match="the largest window of this switch is 512") as caught:
        world.join(0, spec(window=1024))
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_the_number_of_jobs_is_bounded() -> None:
    world = World(policy=Policy(jobs_max=2))
    world.join(0, spec("a"))
    world.join(0, spec("b"))
    with pytest.raises(ControlError, match="this switch keeps 2 jobs") as caught:
        world.join(0, spec("c"))
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_the_number_of_jobs_is_bounded_by_what_the_switch_has_room_for() -> None:
    world = World(RecordingDriver(limits=replace(LIMITS, jobs=1)), Policy(jobs_max=2))
    world.join(0, spec("a"))
    with pytest.raises(ControlError, match="this switch keeps 1 jobs") as caught:
        world.join(0, spec("b"))
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_what_is_remembered_of_ended_jobs_is_bounded() -> None:
    world = World(policy=Policy(ended_kept=3))
    for number in range(5):
        world.join_all(spec(f"job{number}"))
        world.leave(0, f"job{number}", end=True)
    assert [ended.name for ended in world.registry.jobs.past.jobs] == ["job2", "job3", "job4"]


def test_job_numbers_go_round_and_skip_those_in_use() -> None:
    world = World()
    world.join(0, spec("a"))
    world.registry.jobs._last_number = 65534
    world.join(0, spec("b"))
    world.join(0, spec("c"))
    assert [job.number for job in world.registry.jobs] == [1, 65535, 2]


def test_a_hundred_jobs_one_after_another_leave_nothing_behind() -> None:
    world = World(RecordingDriver(slots=32))  # room for one
    for _ in range(100):
        world.join_all()
        world.leave(0)
        world.leave(1)
    registry = world.registry
    assert (registry.jobs.by_name, registry.jobs.by_number) == ({}, {})
    assert (registry.jobs.quarantine.jobs, registry.jobs.quarantine.retries) == ({}, {})
    assert world.driver.bound == {}
    assert registry.pool.largest_free == 32


def test_a_failing_member_of_one_job_is_nothing_to_another() -> None:
    world = World()
    world.join_all(spec("a"))
    world.join_all(spec("b"))
    world.wait(80, beating=(0, 1), job="b")
    assert list(world.registry.jobs.by_name) == ["b"]
    assert world.job("b").state is JobState.RUNNING
    assert all(isinstance(e, ev.MemberJoined | ev.EpochStarted) for e in world.events_of["b"])
    assert world.driver.bound[0, 2].lease == world.job("b").leases[0]


def test_the_slots_of_an_ended_job_are_used_by_the_next() -> None:
    world = World(RecordingDriver(slots=64))
    world.join_all(spec("a"))
    world.join_all(spec("b"))
    world.leave(0, "a", end=True)
    epoch = world.join_all(spec("c"))
    assert epoch.bindings[0].lease.base == 0


# ---------------------------------------------------------------------------------------- a switch that fails


def test_a_job_that_the_switch_cannot_bind_ends_alone_and_says_why() -> None:
    world = World()
    world.driver.bind_error, world.driver.bind_error_job = "table full", 2
    world.join_all(spec("a"))
    tickets = [world.join(rank, spec("b")) for rank in range(2)]
    for ticket in tickets:
        assert world.errors[ticket].code is Code.INTERNAL
        assert "job 'b' ended, as the switch could not be set up for it: table full" in world.errors[ticket].text
    assert list(world.registry.jobs.by_name) == ["a"]
    assert world.slots_leased == 32
    assert world.driver.calls[-1] == "unbind 0 2"  # what was bound of it is dropped


def test_slots_that_the_switch_fails_to_drop_stay_in_quarantine_until_it_has() -> None:
    world = World(RecordingDriver(slots=64))
    world.driver.unbind_error = "timeout"
    world.join_all(spec("a"))
    world.leave(0, "a", end=True)
    assert world.registry.jobs.quarantine.slots() == 32
    world.join_all(spec("b"))
    with pytest.raises(ControlError, match="no room"):
        world.join(0, spec("c"))
    world.driver.unbind_error = ""
    world.wait(1, beating=(0, 1), job="b")
    assert world.registry.jobs.quarantine.slots() == 0
    assert world.join_all(spec("c")).bindings[0].lease.base == 0


def test_the_switch_is_asked_ever_more_seldom_to_drop_what_it_fails_to_drop() -> None:
    world = World()
    world.driver.unbind_error = "timeout"
    world.join_all()
    world.leave(0, end=True)
    world.driver.calls.clear()
    world.wait(7.5)
    assert len(world.driver.calls) == 3  # after 1, 3 and 7 seconds
    world.wait(1000)
    assert 15 < len(world.driver.calls) < 25


def test_an_order_that_fails_when_an_earlier_one_has_dropped_the_job_changes_nothing() -> None:
    world = World()
    world.join_all()
    world.leave(0, end=True)
    assert not world.registry.jobs.by_number
    world.registry.jobs.quarantine.failed(world.now, 1)
    assert world.registry.jobs.quarantine.slots() == 0
    world.wait(2)


def test_an_order_to_drop_a_job_that_nobody_answers_is_repeated_as_seldom() -> None:
    world = World()
    world.driver.unbind_error = "timeout"
    world.join_all()
    world.leave(0, end=True)
    world.slow = True
    world.wait(2.5)  # it is due after a second, and then after two more
    assert [type(order) for order in world.orders] == [ev.Unbind]
    world.wait(0.5)
    assert [type(order) for order in world.orders] == [ev.Unbind] * 2


@pytest.mark.parametrize("shards", [(), (Shard(("127.0.0.1", 1), 1),)])
def test_a_switch_on_which_no_job_could_run_is_refused(shards: tuple[Shard, ...]) -> None:
    with pytest.raises(ValueError, match="at least one shard, and two slots"):
        Registry(shards, LIMITS, Policy())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"heartbeat_limit_s": 0.1}, "^a heartbeat limit of 0.1 s: choose 0.2 to"),
        ({"rejoin_limit_s": -1.0}, "^a rejoin limit of -1 s: choose 0 to"),
        ({"heartbeat_limit_max_s": 1.0}, "^a longest heartbeat limit of 1 s: choose 10 s, which is usual, to"),
        ({"tick_interval_s": 0.0}, "intervals must be above 0"),
        ({"jobs_max": 65535}, "^at most 65535 jobs: choose 1 to 65534"),
        ({"stall_after_s": 0.0}, "intervals must be above 0"),
        ({"quota_watches": 0}, "a quota must be at least 1"),
        ({"rejoin_limit_max_s": 86401.0}, "^a longest rejoin limit of 86401 s: choose 60 s, which"),
        ({"watch_queue_max": 0}, "watch_queue_max"),
        ({"reads_max": 0}, "reads_max"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Policy(**wrong)  # type: ignore[arg-type]
