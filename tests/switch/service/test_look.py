"""The calls List, Stats and Why, over real gRPC on loopback."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import grpc
import pytest
from tests.switch.control.world import RecordingDriver
from tests.switch.service.serving import Call, Serving, job_spec, join_request

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.control.events import ROOT, Emit, EpochStarted
from inagg_switch.control.policy import Policy
from inagg_switch.control.topology import AttachedSwitch
from inagg_switch.driver import JobCounters, SlotWait
from inagg_switch.service.control_client import ControlCallError
from inagg_switch.service.event_log import EVENTS_KEPT, EventLog
from inagg_wire.errors import Reason


def test_list_shows_every_rank_whether_or_not_it_has_joined(switch: Serving) -> None:
    call = Call(lambda: switch.client.join(join_request(1, job_spec(workers=3)), timeout_s=1))
    switch.waiting(1)
    job = switch.job()
    assert [member.state for member in job.members] == [
        pb.MEMBER_STATE_UNSPECIFIED,
        pb.MEMBER_STATE_WAITING,
        pb.MEMBER_STATE_UNSPECIFIED,
    ]
    assert job.members[1].addresses == [pb.Address(host="127.0.0.1", port=4001)]
    with pytest.raises(ControlCallError):
        call.result()


def test_list_tells_no_token(switch: Serving) -> None:
    epoch = switch.join_all()[0]
    assert str(epoch.token) not in str(switch.client.list()) + str(switch.client.stats())


def test_stats_has_counters_by_worker_and_by_reason(serve: Callable[..., Serving]) -> None:
    serving = serve(RecordingDriver(shard_count=2), policy=Policy(poll_interval_s=100))
    serving.join_all()
    counters = JobCounters([1, 2], [3, 4], [5, 6], [7, 8], [9, 10], results=11, invalid_codes=12)
    serving.driver.job_counters[1] = counters
    original = serving.driver.counters

    def with_drops(shard: int) -> object:
        snapshot = original(shard)
        snapshot.drops[Reason.WRONG_TOKEN] = 13 + shard
        return snapshot

    serving.driver.counters = with_drops  # type: ignore[assignment]
    serving.driver.waits[1] = [SlotWait(0, 1, (1,), 0.5)] * 3
    stats = serving.client.stats()
    assert stats.driver == "fake"
    assert [dict(shard.drops) for shard in stats.shards] == [{"wrong_token": 13}, {"wrong_token": 14}]
    assert [(shard.slots, shard.slots_leased) for shard in stats.shards] == [(1024, 32)] * 2
    assert stats.shards[1].address.port == 5001
    (job,) = stats.jobs
    assert job.workers[1] == pb.WorkerStats(
        rank=1, contributions=4, duplicates=8, resends=12, stale=16, bytes_in=20
    )  # both shards
    assert (job.results, job.invalid_codes, job.slots_waiting) == (22, 24, 3)
    assert stats.at_s > 0
    assert stats.uptime_s >= 0


def test_stats_of_one_job(switch: Serving) -> None:
    switch.join_all(job_spec("a"))
    switch.join_all(job_spec("b"))
    assert [job.job.spec.name for job in switch.client.stats("b").jobs] == ["b"]
    with pytest.raises(ControlCallError, match="no job 'c'"):
        switch.client.stats("c")


def test_stats_of_a_switch_that_does_not_answer_says_so(switch: Serving) -> None:
    switch.driver.look_error = "no reply"
    with pytest.raises(ControlCallError, match="the switch does not answer: no reply") as caught:
        switch.client.stats()
    assert caught.value.code is grpc.StatusCode.INTERNAL


def test_why_names_the_ranks_that_have_not_joined(switch: Serving) -> None:
    call = Call(lambda: switch.client.join(join_request(2, job_spec(workers=4)), timeout_s=1))
    switch.waiting(2)
    why = switch.client.why("job")
    assert why.text == ["The job waits for ranks 0-1, 3 of 4 to join."]
    assert why.missing == [0, 1, 3]
    with pytest.raises(ControlCallError):
        call.result()


def test_why_lists_the_slots_that_wait_longest(switch: Serving) -> None:
    switch.join_all()
    switch.driver.waits[1] = [SlotWait(slot, 2, (1,), 9.0 - slot) for slot in range(5)]
    why = switch.client.why("job", slots=2)
    assert why.slots_waiting == 5
    assert [(wait.shard, wait.slot, wait.generation, list(wait.missing), wait.waiting_s) for wait in why.slots] == [
        (0, 0, 2, [1], 9.0),
        (0, 1, 2, [1], 8.0),
    ]
    assert why.ranks[0].slots == 5
    with pytest.raises(ControlCallError, match="at most 1024 are listed"):
        switch.client.why("job", slots=1025)


def test_why_has_what_the_switch_shows_now_and_not_at_the_last_look(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(poll_interval_s=100))
    number = serving.join_all()[0].job
    serving.driver.job_counters[number] = JobCounters([5, 5], [0] * 2, [0] * 2, [0] * 2, [9, 9], results=5)
    assert serving.client.why("job").text[0].startswith("Nothing waits: all that came is summed")


def test_why_lists_as_many_slots_as_are_asked_for(switch: Serving) -> None:
    switch.join_all()
    switch.driver.waits[1] = [SlotWait(slot, 2, (1,), 5.0) for slot in range(400)]
    assert len(switch.client.why("job", slots=300).slots) == 300


def test_why_of_a_switch_that_does_not_tell_what_waits_claims_nothing(serve: Callable[..., Serving]) -> None:
    serving = serve(RecordingDriver(tells_slots=False))
    serving.join_all()
    assert "whether any wait, and for whom, is not known" in serving.client.why("job").text[0]


def test_why_has_the_refusals_that_grow(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(poll_interval_s=0.02))
    serving.join_all()
    original, looks = serving.driver.counters, itertools.count()

    def with_drops(shard: int) -> object:
        counters = original(shard)
        counters.drops[Reason.WRONG_OP] = next(looks)
        return counters

    serving.driver.counters = with_drops  # type: ignore[assignment]
    serving.driver.waits[1] = [SlotWait(7, 2, (1,), 5.0)]
    serving.until(lambda: "ranks do not call the same operations" in serving.client.why("job").text[-1])


def test_of_the_jobs_that_ended_the_latest_comes_first(switch: Serving) -> None:
    for name in ("a", "b"):
        switch.join_all(job_spec(name))
        switch.leave(0, name, end=True)
    assert [ended.name for ended in switch.client.list().ended] == ["b", "a"]


def test_why_of_a_job_that_ended_says_how(switch: Serving) -> None:
    switch.join_all()
    switch.leave(1, end=True, reason="out of data")
    why = switch.client.why("job")
    assert not why.HasField("job")
    assert why.text == ["The job is over: rank 1 ended job 'job': out of data."]


def test_stats_has_the_round_trips_that_heartbeats_tell(switch: Serving) -> None:
    switch.join_all()
    switch.beat(1, round_trip_s=0.002)
    (job,) = switch.client.stats().jobs
    assert [worker.HasField("round_trip_s") for worker in job.workers] == [False, True]
    assert job.workers[1].round_trip_s == 0.002


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_round_trip_that_cannot_be_is_refused(switch: Serving, seconds: float) -> None:
    switch.join_all()
    with pytest.raises(ControlCallError, match="no round-trip time"):
        switch.beat(1, round_trip_s=seconds)


def test_a_job_that_ended_leaves_what_it_was_and_did(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(poll_interval_s=100))
    serving.join_all()
    serving.driver.job_counters[1] = JobCounters([1, 2], [3, 4], [5, 6], [7, 8], [9, 10], results=11)
    serving.leave(1, end=True)
    (ended,) = serving.client.list().ended
    assert ended.spec.workers == 2
    assert ended.age_s >= 0
    assert ended.totals == pb.JobTotals(results=11, contributions=3, duplicates=7, resends=11, stale=15, bytes_in=19), (
        "counted when it ended, not when the switch was looked at last"
    )


def test_a_job_of_which_the_switch_does_not_tell_ends_without_totals(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(poll_interval_s=100))
    serving.join_all()
    serving.driver.look_error = "no reply"
    serving.leave(1, end=True)
    serving.until(lambda: "unbind 0 1" in serving.driver.calls)
    (ended,) = serving.client.list().ended
    assert not ended.HasField("totals")


def test_stats_has_the_tree(switch: Serving) -> None:
    controller = switch.server.controller
    assert controller is not None

    async def attach() -> None:
        registry = controller.registry
        registry.topology.attach(AttachedSwitch("rack0", ROOT, registry.shards, registry.topology.limits))
        registry.topology.attach(AttachedSwitch("row0", "rack0", registry.shards, registry.topology.limits))

    switch.loop.run(attach(), 5)
    tree = [(one.name, one.parent) for one in switch.client.stats().tree]
    assert tree == [("rack0", ""), ("row0", "rack0")]


def test_a_job_that_is_created_at_a_root_is_one_of_its_tree(switch: Serving) -> None:
    controller = switch.server.controller
    assert controller is not None

    async def attach() -> None:
        registry = controller.registry
        registry.topology.attach(AttachedSwitch("rack0", ROOT, registry.shards, registry.topology.limits))

    switch.loop.run(attach(), 5)
    with pytest.raises(ControlCallError, match="1448 lanes cannot be cut into parts for the way between switches"):
        switch.client.create(job_spec())
    switch.client.create(job_spec(workers=100, lanes=1440))


def test_events_keep_their_numbers_when_the_first_are_forgotten() -> None:
    log = EventLog()
    emits = [Emit(1, "job", float(at), EpochStarted(at)) for at in range(EVENTS_KEPT + 3)]
    for emit in emits:
        log.add(emit)
    assert log.after(log.last - 2) == [(log.last - 1, emits[-2]), (log.last, emits[-1])]
    assert log.after(0)[0] == (4, emits[3])


def test_events_of_all_jobs_are_kept_in_one_row(switch: Serving) -> None:
    switch.join_all(job_spec("a"))
    switch.join_all(job_spec("b"))
    controller = switch.server.controller
    assert controller is not None
    entries = controller.events.after(0)
    assert [number for number, _ in entries] == list(range(1, len(entries) + 1))
    assert [emit.name for _, emit in entries if isinstance(emit.event, EpochStarted)] == ["a", "b"]
    assert controller.events.after(entries[-2][0]) == entries[-1:]
