"""Heartbeats, silence, leaving, and how jobs end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.switch.control.world import World, resume, spec

from inagg_switch.control import events as ev
from inagg_switch.control.job_texts import failed_text
from inagg_switch.control.refusals import Code, ControlError
from inagg_switch.control.stall_detector import Observation
from inagg_switch.control.states import JobState, MemberState
from inagg_switch.driver import SlotWait


def test_members_that_heartbeat_stay() -> None:
    world = World()
    world.join_all()
    world.wait(1000, beating=(0, 1))
    assert world.job().state is JobState.RUNNING
    assert not any(isinstance(event, ev.MemberFailed) for event in world.events)


def test_a_member_that_is_silent_for_longer_than_the_limit_ends_the_epoch() -> None:
    world = World()
    world.join_all(spec(workers=3))
    world.wait(10, beating=(0, 2))
    assert world.job().state is JobState.RUNNING
    world.wait(0.5, beating=(0, 2))
    failed, ended = world.events[-2:]
    assert isinstance(failed, ev.MemberFailed)
    assert failed.rank == 1
    assert failed.silent_s == 10.5
    assert ended == ev.EpochEnded(1, ev.Cause.MEMBER_FAILED, 1, "rank 1 of job 'job' fell silent")


def break_off(world: World, rank: int) -> None:
    """The connection by which a rank watches breaks off."""
    job = world.job()
    world.registry.break_off(world.now, job, rank, job.roster.by_rank[rank].request.member)


def test_a_member_whose_connection_breaks_off_is_given_up_after_two_seconds() -> None:
    world = World()
    world.join_all()
    world.wait(1, beating=(0, 1))
    break_off(world, 1)
    world.wait(2, beating=(0,))
    assert world.job().state is JobState.RUNNING
    world.wait(0.5, beating=(0,))
    failed = world.last(ev.MemberFailed)
    assert isinstance(failed, ev.MemberFailed)
    assert failed.rank == 1
    assert "its connection broke off, as that of a process does that ends" in failed.text
    assert world.job().roster.gone() == (1,)


def go_on_without(world: World, rank: int) -> tuple[int, ev.Epoch]:
    """The connection of a rank of three breaks off, and the others join again: the ticket of rank 0, the epoch."""
    epoch = world.join_all(spec(workers=3))
    world.wait(1, beating=(0, 1, 2))
    break_off(world, rank)
    world.wait(2.5, beating=(0, 2))
    ticket = world.join(0, spec(workers=3), brings=resume(epoch, 7), timeout_s=1e9)
    world.join(2, spec(workers=3), brings=resume(epoch, 7), timeout_s=1e9)
    return ticket, epoch


def test_the_others_wait_for_a_member_whose_process_seems_to_have_ended_two_seconds_more() -> None:
    world = World()
    ticket, _ = go_on_without(world, 1)
    world.wait(1.5)
    assert ticket not in world.errors
    world.wait(0.5)
    error = world.errors[ticket]
    assert error.code is Code.ABORTED
    assert error.text == (
        "job 'job' ended: the connection of rank 1 broke off, as that of a process does that ends, and nothing more "
        "came of it"
    )


def test_a_member_whose_process_only_seemed_to_have_ended_can_come_back() -> None:
    world = World()
    ticket, epoch = go_on_without(world, 1)
    world.wait(1.5)
    world.join(1, spec(workers=3), brings=resume(epoch, 7))
    assert ticket in world.epochs


def test_when_it_has_come_back_the_others_wait_for_one_that_is_silent_as_long_as_before() -> None:
    world = World()
    epoch = world.join_all(spec(workers=3))
    world.wait(7, beating=(0, 1))
    break_off(world, 1)
    world.wait(3.5, beating=(0,))
    assert world.job().roster.gone() == (1, 2)
    world.join(1, spec(workers=3), brings=resume(epoch, 7), timeout_s=1e9)
    ticket = world.join(0, spec(workers=3), brings=resume(epoch, 7), timeout_s=1e9)
    world.wait(58.5)  # the epoch ended a second before
    assert ticket not in world.errors
    world.wait(0.5)
    assert "rank 2 did not come back within 60 s" in world.errors[ticket].text


def test_a_connection_that_breaks_off_after_a_long_silence_is_no_sign_of_a_process_that_has_ended() -> None:
    world = World()
    epoch = world.join_all()
    world.wait(6, beating=(0,))
    break_off(world, 1)
    world.wait(2.5, beating=(0,))
    assert world.job().roster.gone() == (1,)
    ticket = world.join(0, brings=resume(epoch, 7), timeout_s=1e9)
    world.wait(50)
    assert ticket not in world.errors


def test_a_connection_that_breaks_off_while_its_rank_waits_to_join_says_nothing_of_it() -> None:
    world = World()
    world.join(0)
    break_off(world, 0)
    world.join(1)
    world.wait(2.5)
    assert world.job().state is JobState.RUNNING


def test_a_call_that_is_made_again_as_its_reply_was_lost_is_a_sign_of_life() -> None:
    world = World()
    world.join_all()
    world.wait(9, beating=(0,))
    world.join(1)
    world.wait(9, beating=(0,))
    assert world.job().state is JobState.RUNNING


def test_a_member_whose_connection_breaks_off_stays_if_it_is_heard_again() -> None:
    world = World()
    world.join_all()
    break_off(world, 1)
    world.wait(1, beating=(0, 1))
    world.wait(9, beating=(0,))
    assert world.job().state is JobState.RUNNING


def test_a_member_whose_connection_breaks_off_stays_while_it_sends() -> None:
    world = World()
    world.join_all()
    number = world.job().number
    break_off(world, 1)
    for second in range(5):
        world.wait(1, beating=(0,))
        world.registry.observe(world.now, number, Observation((50, 50 + second), (50, 50 + second), 0, ()))
    assert world.job().state is JobState.RUNNING
    world.wait(2.5, beating=(0,))
    assert world.job().roster.gone() == (1,)


def test_a_join_that_is_cancelled_is_a_sign_of_life() -> None:
    """Its process was there until then."""
    world = World()
    epoch = world.join_all(spec(workers=3))
    world.join(1, spec(workers=3), brings=resume(epoch, 7), timeout_s=1e9)
    ticket = world.last_ticket
    world.wait(30, beating=(0, 2))
    world.cancel(ticket)
    world.wait(10, beating=(0, 2))
    assert world.job().roster.gone() == ()
    world.wait(0.5, beating=(0, 2))
    assert world.job().roster.gone() == (1,)


def test_the_end_of_a_connection_of_who_has_left_or_is_a_stranger_changes_nothing() -> None:
    world = World()
    world.join_all(spec(workers=3))
    job = world.job()
    world.registry.leave(world.now, "job", 1, job.roster.by_rank[1].request.member)
    break_off(world, 1)
    world.registry.break_off(world.now, job, 2, 666)
    world.registry.break_off(world.now, job, 7, 666)
    world.wait(5, beating=(0, 2))
    assert not any(isinstance(event, ev.MemberFailed) for event in world.events)


def test_a_job_can_have_a_heartbeat_limit_of_its_own() -> None:
    world = World()
    world.join_all(spec(heartbeat_limit_s=1.0))
    world.wait(1.5, beating=(0,))
    assert world.job().roster.gone() == (1,)


def test_of_a_failed_member_one_is_told_what_the_switch_saw_last() -> None:
    world = World()
    world.join_all()
    number = world.job().number
    wait = SlotWait(slot=3, generation=9, missing=(1,), waiting_s=0.2)
    world.registry.observe(world.now, number, Observation((50, 40), (50, 40), 0, ()))
    world.wait(2, beating=(0,))
    world.registry.observe(world.now, number, Observation((56, 40), (56, 40), 2, ((0, wait), (0, wait))))
    world.wait(8.5, beating=(0,))
    failed = world.last(ev.MemberFailed)
    assert failed == ev.MemberFailed(
        1,
        10.5,
        40,
        10.5,
        2,
        "rank 1 of job 'job' has been silent for 10.5 s; the switch last took a contribution of it 10.5 s ago "
        "(40 contributions in all); 2 slots wait for it",
    )


def test_what_a_switch_that_has_gone_had_counted_of_a_failed_member_is_still_told() -> None:
    world = World()
    world.join_all()
    number = world.job().number
    world.registry.observe(world.now, number, Observation((50, 40), (50, 40)))
    world.registry.observe(world.now, number, Observation((56, 0), (56, 0)))
    world.wait(10.5, beating=(0,))
    failed = world.last(ev.MemberFailed)
    assert isinstance(failed, ev.MemberFailed)
    assert (failed.contributions, failed.last_contribution_s) == (40, 10.5)
    assert failed.text.endswith("last took a contribution of it 10.5 s ago (40 contributions in all)")


def test_one_slot_waits_and_two_wait() -> None:
    assert failed_text("job", 1, 10.0, 0, None, 1, False).endswith("; 1 slot waits for it")
    assert failed_text("job", 1, 10.0, 0, None, 2, False).endswith("; 2 slots wait for it")


def test_the_others_have_the_rejoin_limit_to_go_on_with_the_one_that_comes_back() -> None:
    world = World()
    epoch = world.join_all()
    world.wait(11, beating=(0,))
    ticket = world.join(0, brings=resume(epoch, 7), timeout_s=1e9)
    world.wait(59)
    world.join(1, brings=resume(epoch, 5))
    assert [binding.resume_block for binding in world.epochs[ticket].bindings] == [5]
    assert world.job().grace.ends_at is None


def test_a_job_whose_ranks_do_not_come_back_ends_and_who_waits_is_told() -> None:
    world = World()
    epoch = world.join_all()
    world.wait(11, beating=(0,))
    ticket = world.join(0, brings=resume(epoch, 7), timeout_s=1e9)
    world.wait(60)
    error = world.errors[ticket]
    assert error.code is Code.ABORTED
    assert "rank 1 did not come back within 60 s; before that: rank 1 of job 'job' fell silent" in error.text
    assert world.slots_leased == 0
    assert world.driver.bound == {}


@pytest.mark.parametrize("again", [False, True])
def test_a_job_that_somebody_has_ended_is_over_for_who_was_in_it_and_for_nobody_else(again: bool) -> None:
    """Such as a rank that has not heard of it yet, or whose first Join had no reply: a job of that name that it made
    would wait for the others."""
    world = World()
    epoch = world.join_all()
    world.leave(0, end=True, reason="enough")
    if again:
        for rank in range(2):
            world.join(rank, member=200 + rank)
    jobs = [job.number for job in world.registry.jobs]
    for job in (spec(), "job"):
        for brings in (resume(epoch, 7), None):
            with pytest.raises(ControlError, match=r"^rank 0 ended job 'job': enough$") as caught:
                world.join(1, job, brings=brings)
            assert caught.value.code is Code.ABORTED
    with pytest.raises(ControlError) as caught:
        world.beat(1)
    assert caught.value.code is (Code.FAILED_PRECONDITION if again else Code.ABORTED)
    assert [job.number for job in world.registry.jobs] == jobs
    if not again:
        world.join(1, member=201, brings=resume(epoch, 7))


def test_a_job_that_was_ended_here_and_has_gone_on_elsewhere_comes_back() -> None:
    world = World()
    epoch = world.join_all()
    world.registry.evict(world.now, "job", "")
    world.pump()
    later = replace(resume(epoch, 7), epoch=epoch.epoch + 1)
    assert world.join_all(brings=later).epoch == epoch.epoch + 2


def test_ranks_that_came_too_late_for_each_other_may_begin_anew_where_they_were() -> None:
    """Nobody has decided that the job is over, and who is back does not know of it."""
    world = World()
    epoch = world.join_all()
    world.wait(80)
    assert not world.registry.jobs
    assert world.join_all(brings=resume(epoch, 7)).epoch == epoch.epoch + 1


def test_ranks_that_heartbeat_may_take_their_time_to_join_again() -> None:
    world = World()
    epoch = world.join_all()
    world.join(0, brings=resume(epoch, 7), timeout_s=1e9)
    world.wait(500, beating=(1,))
    world.join(1, brings=resume(epoch, 7))
    assert len(world.epochs) == 4


def test_a_rank_between_epochs_that_falls_silent_is_told_too() -> None:
    world = World()
    epoch = world.join_all()
    world.join(0, brings=resume(epoch, 7))
    world.wait(11)
    assert isinstance(world.events[-1], ev.MemberFailed)
    assert world.job().grace.ends_at is not None


def test_a_rank_that_waits_needs_no_heartbeat() -> None:
    world = World()
    world.join(0)
    world.wait(200)
    assert world.job().roster.by_rank[0].state is MemberState.WAITING


def test_a_member_given_up_is_told_to_join_again_and_can() -> None:
    world = World()
    epoch = world.join_all()
    world.wait(11, beating=(0,))
    with pytest.raises(ControlError, match=r"rank 1 of job 'job' was silent for more than 10\.0 s") as caught:
        world.beat(1)
    assert caught.value.code is Code.FAILED_PRECONDITION
    world.join(1, brings=resume(epoch, 0))
    world.beat(1)


def test_a_stranger_cannot_heartbeat_for_a_rank() -> None:
    world = World()
    world.join_all()
    with pytest.raises(ControlError, match=r"this process is not rank 1 of job 'job' \(another process is\)"):
        world.registry.heartbeat(world.now, "job", 1, 666)


def test_of_two_jobs_of_one_name_a_late_heartbeat_is_told_how_the_second_ended() -> None:
    world = World()
    for member, reason in ((200, "first"), (100, "second")):
        for rank in range(2):
            world.join(rank, member=member + rank)
        world.registry.leave(world.now, "job", 0, member, end=True, reason=reason)
        world.pump()
    with pytest.raises(ControlError, match="rank 0 ended job 'job': second"):
        world.beat(1)


def test_a_late_heartbeat_of_a_rank_that_has_left_is_told_so() -> None:
    world = World()
    world.join_all()
    world.leave(1)
    with pytest.raises(ControlError, match="rank 1 of job 'job' has left: join again to take part"):
        world.beat(1)


def test_a_rank_that_leaves_does_not_disturb_the_others() -> None:
    world = World()
    world.join_all()
    world.leave(0, reason="done")
    assert world.events[-1] == ev.MemberLeft(0, "done")
    world.wait(100, beating=(1,))
    assert world.job().state is JobState.RUNNING


def test_when_all_have_left_the_job_ends_and_its_slots_come_back() -> None:
    world = World()
    world.join_all()
    world.leave(0)
    world.leave(0)  # again: nothing
    assert world.slots_leased == 32
    world.leave(1)
    assert world.events[-1] == ev.JobEnded(ev.Cause.ALL_LEFT, None, "all ranks have left job 'job'")
    assert world.slots_leased == 0
    assert world.driver.calls[-1] == "unbind 0 1"


def test_one_rank_can_end_the_job_for_all() -> None:
    world = World()
    epoch = world.join_all()
    ticket = world.join(0, brings=resume(epoch, 1))
    world.leave(1, end=True)
    assert world.errors[ticket].code is Code.ABORTED
    assert not world.registry.jobs.by_name


def test_a_rank_that_left_cannot_come_back_while_the_others_run() -> None:
    world = World()
    world.join_all()
    world.leave(0)
    with pytest.raises(ControlError, match="rank 0 has left job 'job', which still runs with rank 1"):
        world.join(0, member=666)


def test_a_rank_that_waits_can_leave() -> None:
    world = World()
    ticket = world.join(0)
    world.leave(0)
    assert world.errors[ticket].code is Code.ABORTED
    assert not world.registry.jobs.by_name


def test_a_name_can_be_used_again_after_the_end() -> None:
    world = World()
    world.join_all()
    world.leave(0, end=True)
    *_, ticket = [world.join(rank, spec(workers=3), member=200 + rank) for rank in range(3)]
    epoch = world.epochs[ticket]
    assert epoch.epoch == 1
    assert epoch.bindings[0].job == 2  # the number is not used again so soon


def test_a_stall_is_told_when_it_is_old_enough_then_ever_more_seldom_then_its_end() -> None:
    world = World()
    world.join_all()
    number = world.job().number
    world.events.clear()
    for second in range(1, 31):
        waits = ((0, SlotWait(0, 1, (1,), float(second))),)
        world.registry.observe(world.now, number, Observation((1, 0), (1, 0), 1, waits))
    for _ in range(2):
        world.registry.observe(world.now, number, Observation((1, 1), (1, 1), 0, ()))
    world.pump()
    assert world.events == [
        ev.Stalled(1, 5.0, (1,)),
        ev.Stalled(1, 10.0, (1,)),
        ev.Stalled(1, 20.0, (1,)),
        ev.Stalled(0, 0.0, ()),
    ]


def test_a_stall_for_a_rank_that_has_left_is_told_at_once() -> None:
    world = World()
    world.join_all(spec(workers=3))
    job = world.job()

    def look(waiting_s: float, *missing: int) -> list[ev.Stalled]:
        wait = SlotWait(slot=3, generation=9, missing=missing, waiting_s=waiting_s)
        before = len(world.events)
        world.registry.observe(world.now, job.number, Observation((9, 9, 9), (9, 9, 9), 1, ((0, wait),)))
        world.pump()
        return [event for event in world.events[before:] if isinstance(event, ev.Stalled)]

    assert look(1.0, 1) == []
    world.registry.leave(world.now, "job", 1, job.roster.by_rank[1].request.member, end=False, reason="")
    assert look(0.4, 1) == []  # what it has sent may be on its way
    assert look(0.6, 2) == []
    assert look(0.6, 1) == [ev.Stalled(1, 0.6, (1,))]
    assert look(1.6, 1) == []
    assert look(5.0, 1) == [ev.Stalled(1, 5.0, (1,))]


def test_a_job_that_has_run_does_not_end_when_new_processes_give_up() -> None:
    world = World()
    job = spec(rejoin_limit_s=60.0)
    world.join_all(job)
    world.wait(11)  # all have fallen silent
    for rank in range(2):
        world.join(rank, job, member=200 + rank)
        world.cancel(world.last_ticket)
    assert not world.job().roster.by_rank
    assert world.job().grace.ends_at is not None
