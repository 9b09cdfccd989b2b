"""A shard that was started again, and mistakes of our own: what they do to jobs, and to which."""

from __future__ import annotations

import pytest
from tests.switch.control.world import World, resume, spec

from inagg_switch.control import events as ev
from inagg_switch.control.events import Cause
from inagg_switch.control.refusals import Code, ControlError
from inagg_switch.control.stall_detector import Observation
from inagg_switch.control.states import JobState, MemberState
from inagg_switch.driver import SlotWait


@pytest.fixture
def world() -> World:
    return World()


def restart(world: World) -> None:
    world.driver.bound.clear()
    world.registry.shard_restarted(world.now, 0)
    world.pump()


def test_a_running_job_gets_a_new_epoch_with_its_slots_and_seed(world: World) -> None:
    epoch = world.join_all()
    restart(world)
    ended = world.last(ev.EpochEnded)
    assert isinstance(ended, ev.EpochEnded)
    assert (ended.cause, ended.rank) == (Cause.SWITCH_ERROR, None)
    assert ended.text == "shard 0 of the switch had to be started again"
    again = world.join_all(brings=resume(epoch, 40))
    assert again.epoch == epoch.epoch + 1
    assert (again.bindings[0].lease, again.bindings[0].seed) == (epoch.bindings[0].lease, epoch.bindings[0].seed)
    assert again.bindings[0].token != epoch.bindings[0].token
    assert len(world.driver.bound) == 1


def test_a_job_that_is_just_being_bound_is_bound_again(world: World) -> None:
    world.slow = True
    tickets = [world.join(rank) for rank in range(2)]
    assert world.job().state is JobState.BINDING
    first = world.orders.copy()
    world.orders.clear()  # the shard died over it
    restart(world)
    world.obey()
    assert world.job().state is JobState.RUNNING
    assert set(world.epochs) == set(tickets)
    assert world.driver.calls.count("bind 0 1") == 1
    assert isinstance(first[0], ev.Bind)
    world.registry.bound(world.now, 1, first[0].serial)  # a late answer to the old order changes nothing
    assert world.job().state is JobState.RUNNING


def test_a_job_that_nobody_waits_for_any_more_is_gone_when_the_shard_dies_that_was_told_of_it(world: World) -> None:
    world.slow = True
    tickets = []
    for rank in range(2):
        world.join(rank)
        tickets.append(world.last_ticket)
    for ticket in tickets:
        world.cancel(ticket)
    assert world.job().state is JobState.BINDING
    restart(world)
    assert not world.registry.jobs


def test_a_job_whose_ranks_do_not_come_back_ends_as_after_any_break(world: World) -> None:
    world.join_all(spec(rejoin_limit_s=5.0))
    restart(world)
    world.wait(20.0)
    assert not world.registry.jobs
    ended = world.last(ev.JobEnded)
    assert isinstance(ended, ev.JobEnded)
    assert "shard 0 of the switch had to be started again" in ended.text


def test_a_job_that_waits_for_its_ranks_does_not_notice(world: World) -> None:
    world.join(0)
    restart(world)
    world.join(1)
    assert world.job().state is JobState.RUNNING


def test_a_switch_that_drains_lets_jobs_go_on_that_ran_before_it_was_started(world: World) -> None:
    """Their end would be final for their ranks, which are just coming back."""
    epoch = world.join_all()
    brings = resume(epoch, 40)
    world.restart()
    first = world.join(0, brings=brings)
    world.join(0, spec("new"))
    world.registry.refuse_new(world.now)
    world.pump()
    assert [job.name for job in world.registry.jobs] == ["job"]
    world.join(1, brings=brings)
    assert first in world.epochs
    with pytest.raises(ControlError, match="takes no new jobs now") as caught:
        world.join(0, spec("late"))
    assert caught.value.code is Code.UNAVAILABLE


def test_a_rank_that_was_lost_with_the_switch_is_not_waited_for_as_one_that_never_came(world: World) -> None:
    """Here the switch does not know that the job has run; who brings what it had does."""
    job = spec(workers=3, rejoin_limit_s=10.0)
    brings = resume(world.join_all(job), 40)
    world.restart()
    tickets = [world.join(0, job, brings=brings)]
    world.wait(5.0)
    tickets.append(world.join(2, job, brings=brings))
    world.wait(34.4)
    assert not world.errors
    assert world.job().grace.ends_at == pytest.approx(world.now + 0.6)
    world.wait(1.0)
    assert not world.registry.jobs
    for ticket in tickets:
        assert world.errors[ticket].code is Code.ABORTED
        assert world.errors[ticket].text == (
            "job 'job' ended: rank 1 did not come back within 40.0 s; before that: the switch was started again, or "
            "has taken the place of another"
        )
    ended = world.last(ev.JobEnded)
    assert isinstance(ended, ev.JobEnded)
    assert ended.cause is Cause.NOT_REJOINED


def test_ranks_may_come_to_a_new_switch_as_late_as_they_try_to_reach_it(world: World) -> None:
    job = spec(rejoin_limit_s=0.0)
    brings = resume(world.join_all(job), 40)
    world.restart()
    first = world.join(0, job, brings=brings)
    world.wait(29.0)
    world.join(1, job, brings=brings)
    assert first in world.epochs
    assert world.job().grace.ends_at is None
    world.wait(60.0, beating=(0, 1))
    assert world.job().state is JobState.RUNNING


def test_a_job_ends_at_no_time_while_the_switch_is_told_of_it(world: World) -> None:
    job = spec(rejoin_limit_s=0.0)
    brings = resume(world.join_all(job), 40)
    world.restart()
    world.slow = True
    for rank in range(2):
        world.join(rank, job, brings=brings)
    world.wait(60.0)
    assert world.job().state is JobState.BINDING


def test_where_nobody_brings_anything_all_wait_as_long_as_they_said(world: World) -> None:
    job = spec(rejoin_limit_s=10.0)
    world.join(0, job)
    world.wait(200.0)
    assert world.job().grace.ends_at is None
    assert not world.errors


def test_who_gives_up_takes_along_that_the_job_has_run(world: World) -> None:
    job = spec(workers=3, rejoin_limit_s=10.0)
    brings = resume(world.join_all(job), 0)
    world.restart()
    world.join(0, job, brings=brings)
    gives_up = world.last_ticket
    world.join(1, job)  # a new process, which fits those that have no result yet
    world.wait(20.0)
    world.cancel(gives_up)
    assert world.job().grace.ends_at is None
    world.wait(60.0)
    assert world.job().roster.missing() == (0, 2)


def test_a_datagram_is_a_sign_of_life(world: World) -> None:
    """Of a worker whose heartbeats do not come through; also one that has been sent before, as by who waits."""
    world.join_all()
    for second in range(30):
        world.wait(1.0, beating=(0,))
        world.registry.observe(world.now, 1, Observation((5, 5), (100, 100 * second)))
    assert world.job().state is JobState.RUNNING
    world.wait(11.0, beating=(0,))
    assert world.job().roster.by_rank[1].state is MemberState.FAILED


def test_a_datagram_of_an_epoch_that_is_over_is_no_sign_of_life(world: World) -> None:
    world.join_all()
    restart(world)
    for second in range(11):
        world.wait(1.0, beating=(0,))
        world.registry.observe(world.now, 1, Observation((5, 5), (100, 100 * second)))
    assert world.job().roster.by_rank[1].state is MemberState.FAILED


def test_what_waits_in_slots_of_an_epoch_that_is_over_is_no_stall(world: World) -> None:
    world.join_all()
    restart(world)
    world.registry.observe(world.now, 1, Observation((5, 4), (5, 4), 1, ((0, SlotWait(7, 2, (1,), 60.0)),)))
    world.pump()
    assert not any(isinstance(event, ev.Stalled) for event in world.events)


class MistakeError(Exception):
    """Of ours."""


def broken(*_: object, **__: object) -> None:
    raise MistakeError


@pytest.mark.parametrize("method", ["tick", "observe", "switch_restarted"])
def test_a_mistake_of_ours_ends_one_job_and_is_told(world: World, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    world.join_all(spec("other"))
    world.join_all(spec("job"))
    monkeypatch.setattr(world.job(), method, broken)
    bugs = []
    {
        "tick": lambda: world.registry.tick(world.now),
        "observe": lambda: world.registry.observe(world.now, world.job().number, Observation((1, 1), (9, 9))),
        "switch_restarted": lambda: world.registry.shard_restarted(world.now, 0),
    }[method]()
    for output in (outputs := world.registry.drain()):
        if isinstance(output, ev.Bug):
            bugs.append((output.name, type(output.error)))
        if isinstance(output, ev.Unbind):
            world.registry.jobs.unbound(output.job)
    assert bugs == [("job", MistakeError)]
    assert [o.event.cause for o in outputs if isinstance(o, ev.Emit) and isinstance(o.event, ev.JobEnded)] == [
        Cause.SWITCH_ERROR
    ]
    assert [job.name for job in world.registry.jobs] == ["other"]


def test_a_mistake_of_ours_in_one_job_does_not_keep_others_from_being_drained(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        world.join(0, spec(name))
    monkeypatch.setattr(world.registry.jobs.by_name["bad"], "end", broken)
    world.registry.refuse_new(world.now)
    assert [output.name for output in world.registry.drain() if isinstance(output, ev.Bug)] == ["bad"]
    assert not world.registry.jobs


def test_who_called_is_told_of_a_mistake_of_ours(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.join_all()
    monkeypatch.setattr(world.job().roster, "heartbeat", broken)
    with pytest.raises(ControlError, match="a mistake in the switch's control plane") as caught:
        world.registry.heartbeat(world.now, "job", 0, 100)
    assert caught.value.code is Code.INTERNAL
    assert not world.registry.jobs
