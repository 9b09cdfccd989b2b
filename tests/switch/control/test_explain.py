"""Why a job waits, in sentences."""

from __future__ import annotations

from tests.switch.control.world import World, resume, spec

from inagg_switch.control.explain import explain
from inagg_switch.control.stall_detector import Observation
from inagg_switch.driver import SlotWait
from inagg_switch.text import count_text, ranks_text, seconds_text


def why(world: World, *waits: SlotWait) -> list[str]:
    return list(explain(world.job(), world.now, len(waits), [(0, wait) for wait in waits]).text)


def test_a_job_that_waits_for_ranks_names_them() -> None:
    world = World()
    for rank in (0, 1, 5):
        world.join(rank, spec(workers=8))
    assert why(world) == ["The job waits for ranks 2-4, 6-7 of 8 to join."]


def test_ranks_of_a_job_that_ran_on_a_switch_before_are_to_join_again() -> None:
    world, job = World(), spec(workers=2)
    brings = resume(world.join_all(job), 40)
    world.restart()
    world.join(0, job, brings=brings)
    assert why(world)[0] == "The job waits for rank 1 of 2 to join again."


def test_a_job_that_is_being_set_up_says_so() -> None:
    world = World()
    world.slow = True
    world.join(0)
    world.join(1)
    assert why(world) == ["All 2 ranks have joined; the data planes are being set up."]


def test_a_job_that_waits_for_nothing_says_so() -> None:
    world = World()
    world.join_all()
    assert why(world)[0].startswith("Nothing waits")


def test_where_nothing_waits_ranks_of_which_nothing_has_come_are_named() -> None:
    world = World()
    world.join_all()
    said = why(world)[0]
    assert said.startswith("Nothing waits, and nothing of ranks 0-1 has come yet (")
    assert "`inagg doctor`" in said


def test_of_ranks_whose_datagrams_are_all_refused_no_firewall_is_suspected() -> None:
    world = World()
    world.join_all()
    world.registry.observe(world.now, 1, Observation((0, 0), (60, 60)))
    assert "no contribution of ranks 0-1 has come yet, though datagrams have, which were refused" in why(world)[0]


HEALTHY = "Nothing waits: all that came is summed; the ranks compute, or have finished."


def test_of_a_job_whose_sums_were_complete_no_firewall_is_suspected() -> None:
    world = World()
    world.join_all()
    world.registry.observe(world.now, 1, Observation((5, 5), (5, 5)))
    assert why(world) == [HEALTHY]


def rank_1_repeats(contributions: int) -> World:
    """Both ranks have contributed so much, and then rank 1 did again."""
    world = World()
    world.join_all()
    world.registry.observe(world.now, 1, Observation((contributions,) * 2, (contributions,) * 2))
    world.wait(1, beating=(0, 1))
    world.registry.observe(world.now, 1, Observation((contributions,) * 2, (contributions, contributions + 1)))
    return world


def test_a_rank_that_repeats_what_it_sent_before_any_result_can_have_come_may_not_get_them() -> None:
    said = why(rank_1_repeats(16))[0]
    assert "what the sums have already comes again from rank 1: the results may not arrive there (`inagg doct" in said


def test_of_a_rank_that_sent_more_than_its_window_and_so_has_had_results_no_firewall_is_suspected() -> None:
    assert why(rank_1_repeats(17))[0].endswith("comes again from rank 1: the results may not arrive there.")


def test_where_one_of_several_ranks_may_never_have_had_a_result_a_firewall_is_suspected() -> None:
    world = World()
    world.join_all()
    world.registry.observe(world.now, 1, Observation((16, 40), (16, 40)))
    world.wait(1, beating=(0, 1))
    world.registry.observe(world.now, 1, Observation((16, 40), (17, 41)))
    assert "comes again from ranks 0-1: the results may not arrive there (`inagg doctor`" in why(world)[0]


def test_what_a_rank_repeated_a_while_ago_is_forgotten() -> None:
    world = rank_1_repeats(16)
    world.wait(5, beating=(0, 1))
    assert why(world) == [HEALTHY]


def test_of_a_rank_of_which_not_one_datagram_has_come_it_is_said_what_tries_the_way() -> None:
    world = World()
    world.join_all()
    world.registry.observe(world.now, 1, Observation((5, 0), (5, 0)))
    (said,) = why(world, SlotWait(7, 2, (1,), 5.5))
    assert "its datagrams do not arrive (`inagg doctor` on a rank's host tries whether UDP passes" in said
    world.registry.observe(world.now, 1, Observation((5, 0), (5, 60)))
    assert "(see drops in `inagg top`)" in why(world, SlotWait(7, 2, (1,), 5.5))[0], "they arrive, and are refused"


def test_of_slots_that_nobody_can_look_into_nothing_is_claimed() -> None:
    world = World()
    world.join_all()
    world.registry.observe(world.now, 1, Observation((5, 0), (5, 0)))
    world.wait(6, beating=(0, 1))
    unknown, counts = explain(world.job(), world.now, None, []).text
    assert "whether any wait, and for whom, is not known" in unknown
    assert counts.startswith("Contributions so far: rank 0 5, the last 6.0 s ago; rank 1 0.")


def test_slots_that_wait_name_the_rank_that_computes() -> None:
    world = World()
    world.join_all()
    world.registry.observe(world.now, 1, Observation((5, 4), (5, 4)))
    world.wait(6, beating=(0, 1))
    assert why(world, SlotWait(7, 2, (1,), 5.5), SlotWait(8, 2, (1,), 5.0)) == [
        "2 slots of the 2 that wait miss rank 1, the oldest for 5.5 s; the switch last took a contribution of it 6.0 s "
        "ago. It heart-beats, so its process lives: it computes, waits for something else, or its datagrams do not "
        "arrive (see drops in `inagg top`)."
    ]


def test_while_ranks_are_waited_for_the_way_between_switches_is_not_suspected() -> None:
    world = World()
    world.join_all()
    unanswered = {"a": 3}
    waits = [(0, SlotWait(7, 2, (1,), 5.5))]
    assert "went up" in explain(world.job(), world.now, 3, [], unanswered).text[0]
    assert "went up" not in " ".join(explain(world.job(), world.now, 4, waits, unanswered).text)


def test_slots_that_wait_have_the_refusals_that_grow_beside_them() -> None:
    world = World()
    world.join_all()
    refusals = ["In the last 9.0 s the switch refused 40 datagrams."]
    waiting = explain(world.job(), world.now, 1, [(0, SlotWait(7, 2, (1,), 5.5))], refusals=refusals)
    assert waiting.text[-1:] == tuple(refusals)
    unknown = explain(world.job(), world.now, None, [], refusals=refusals)
    assert unknown.text[-1:] == tuple(refusals)
    assert refusals[0] not in explain(world.job(), world.now, 0, [], refusals=refusals).text


def test_a_window_that_the_switch_cannot_take_at_once_is_named() -> None:
    world = World()
    world.join_all(spec(window=64))
    waits = [(0, SlotWait(7, 2, (1,), 5.5))]
    (*_, told) = explain(world.job(), world.now, 1, waits, window=16).text
    assert "has a window of 64 blocks" in told
    assert "INAGG_WINDOW=16" in told
    assert "INAGG_WINDOW" not in " ".join(explain(world.job(), world.now, 1, waits, window=64).text)


def test_slots_that_wait_for_a_silent_rank_say_that_it_is_gone_before_the_limit_has_passed() -> None:
    world = World()
    world.join_all()
    world.wait(8, beating=(0,))
    text = why(world, SlotWait(7, 2, (1,), 7.5))
    assert "the switch has taken no contribution of it yet. Its heartbeats have stopped as well" in text[0]
    assert text[1] == "Rank 1 was last heard 8.0 s ago; after 10.0 s it counts as failed."


def test_slots_that_wait_for_a_rank_that_left_will_wait_for_ever() -> None:
    world = World()
    world.join_all()
    world.leave(1)
    assert "It has left the job, so these slots will wait for ever" in why(world, SlotWait(7, 2, (1,), 7.5))[0]


def test_the_rank_that_is_waited_for_longest_comes_first() -> None:
    world = World()
    world.join_all(spec(workers=3))
    ranks = explain(world.job(), world.now, 2, [(0, SlotWait(1, 1, (0, 2), 1.0)), (0, SlotWait(2, 1, (2,), 3.0))]).ranks
    assert [(wait.rank, wait.slots, wait.longest_s) for wait in ranks] == [(2, 2, 3.0), (0, 1, 1.0)]


def test_after_a_failure_one_reads_what_happened_who_is_awaited_and_how_long() -> None:
    world = World()
    epoch = world.join_all(spec(workers=3))
    world.wait(11, beating=(0, 2))
    world.join(0, spec(workers=3), brings=resume(epoch, 0))
    world.wait(20, beating=(0, 2))
    assert why(world) == [
        "The job waits for ranks 1-2 of 3 to join again.",
        "Epoch 1 ended: rank 1 of job 'job' fell silent.",
        "Silent for too long: rank 1; look whether those processes still run.",
        "Alive, but has not called Join yet: rank 2.",
        "The job ends in 39.5 s if they do not come.",
    ]


def test_words() -> None:
    assert ranks_text([]) == "no rank"
    assert ranks_text([4]) == "rank 4"
    assert ranks_text([3, 1, 2]) == "ranks 1-3"
    assert ranks_text([0, 2]) == "ranks 0, 2"
    assert [seconds_text(s) for s in (0.123, 1, 59.96, 61)] == ["0.12 s", "1.0 s", "60.0 s", "61 s"]
    assert [count_text(n, "slot") for n in (0, 1, 2)] == ["0 slots", "1 slot", "2 slots"]
