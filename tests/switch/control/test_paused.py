"""A switch that did not run for a while, as on a machine that was stopped or moved: silence meanwhile is none."""

from __future__ import annotations

from tests.switch.control.world import World, resume

from inagg_switch.control import events as ev
from inagg_switch.control.states import JobState


def test_silence_while_the_switch_did_not_run_is_none() -> None:
    world = World()
    world.join_all()
    world.wait(9, beating=(0,))
    world.now += 60
    world.registry.paused(world.now, 60)
    world.wait(0.5, beating=(0,))
    assert world.job().state is JobState.RUNNING
    world.wait(1.0, beating=(0,))
    failed = world.last(ev.MemberFailed)
    assert isinstance(failed, ev.MemberFailed)
    assert (failed.rank, failed.silent_s) == (1, 10.5)


def test_who_may_still_come_back_has_the_time_for_which_the_switch_did_not_run_as_well() -> None:
    world = World()
    epoch = world.join_all()
    world.wait(11, beating=(0,))
    world.join(0, brings=resume(epoch, 0), timeout_s=1e9)
    world.now += 1000
    world.registry.paused(world.now, 1000)
    world.registry.tick(world.now)
    world.join(1, brings=resume(epoch, 0))
    assert world.job().state is JobState.RUNNING


def test_a_switch_that_is_always_a_little_late_finds_who_is_gone() -> None:
    world = World()
    world.join_all()
    for _ in range(10):
        world.registry.paused(world.now, 1.0)
        world.wait(1.5, beating=(0,))
    assert isinstance(world.last(ev.MemberFailed), ev.MemberFailed)
