"""Every call, over real gRPC on loopback."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable

import grpc
import pytest
from tests.switch.control.serving import Call, Serving, job_spec, join_request
from tests.switch.control.world import RecordingDriver

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.control.client import ControlCallError, ControlClient
from inagg_switch.control.policy import Policy
from inagg_switch.driver import JobCounters, SlotWait
from inagg_wire.errors import Reason


def resume(epoch: pb.JoinResponse, *next_blocks: int, reason: str = "") -> pb.Resume:
    shards = [
        pb.Position(base=shard.lease.base, slots=shard.lease.slots, next_block=block)
        for shard, block in zip(epoch.shards, next_blocks, strict=True)
    ]
    return pb.Resume(epoch=epoch.epoch, seed=epoch.spec.seed, shards=shards, reason=reason)


# ---------------------------------------------------------------------------------------- Create, Join


def test_create_tells_the_job_with_the_choices_of_the_switch(switch: Serving) -> None:
    reply = switch.client.create(job_spec(window=17))
    assert reply.created
    assert reply.job.spec.window == 32
    assert reply.job.spec.HasField("seed")
    assert reply.job.spec.heartbeat_limit_s == 10
    assert reply.job.state == pb.JOB_STATE_JOINING
    assert reply.job.ends_in_s == pytest.approx(300, abs=5)
    assert [lease.slots for lease in reply.job.leases] == [64]
    assert not switch.client.create(job_spec(window=17)).created


def test_create_with_other_parameters_is_refused(switch: Serving) -> None:
    switch.client.create(job_spec())
    with pytest.raises(ControlCallError, match="it has lanes 1448, and this call says 8") as caught:
        switch.client.create(job_spec(lanes=8))
    assert caught.value.code is grpc.StatusCode.ALREADY_EXISTS


def test_create_of_what_cannot_run_is_refused(switch: Serving) -> None:
    with pytest.raises(ControlCallError, match="no format 'nat7'; choose one of") as caught:
        switch.client.create(job_spec(format="nat7"))
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_create_of_what_does_not_fit_is_refused(switch: Serving) -> None:
    switch.client.create(job_spec("a", window=256))
    with pytest.raises(ControlCallError, match="the largest window that fits now is 256") as caught:
        switch.client.create(job_spec("b", window=512))
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_all_ranks_get_the_same_epoch(switch: Serving) -> None:
    replies = switch.join_all(job_spec(workers=32))
    assert len({reply.SerializeToString(deterministic=True) for reply in replies}) == 1
    epoch = replies[0]
    assert (epoch.job, epoch.epoch) == (1, 1)
    assert 0 < epoch.token < 1 << 32
    assert epoch.heartbeat_interval_s == 2.5
    lease = epoch.shards[0].lease
    assert (lease.address.host, lease.address.port) == ("127.0.0.1", 5000)
    assert (lease.base, lease.slots) == (0, 32)
    assert [port for _, port in switch.driver.bound[0, 1].workers] == [4000 + rank for rank in range(32)]


def test_an_empty_address_is_the_one_from_which_the_call_comes(switch: Serving) -> None:
    switch.client.join(join_request(0, job_spec(workers=1), addresses=[pb.Address(port=7)]))
    assert switch.driver.bound[0, 1].workers == (("127.0.0.1", 7),)


def test_a_rank_can_give_an_address_for_each_shard(serve: Callable[..., Serving]) -> None:
    serving = serve(RecordingDriver(shard_count=2))
    addresses = [pb.Address(host="::1", port=7), pb.Address(host="::ffff:10.0.0.9", port=8)]
    serving.client.join(join_request(0, job_spec(workers=1), addresses=addresses))
    assert serving.driver.bound[0, 1].workers == (("::1", 7),)
    assert serving.driver.bound[1, 1].workers == (("10.0.0.9", 8),)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"member": 0}, "member is 0"),
        ({"addresses": []}, "0 addresses: give one for all shards"),
        ({"addresses": [pb.Address(port=1)] * 3}, "3 addresses: give one for all shards or one for each"),
        ({"addresses": [pb.Address(host="worker-3", port=1)]}, "'worker-3' is no IP address"),
        ({"addresses": [pb.Address(host="0.0.0.0", port=1)]}, "datagrams cannot come from 0.0.0.0"),
        ({"addresses": [pb.Address(host="10.0.0.1")]}, "0 is no UDP port"),
        ({"addresses": [pb.Address(host="10.0.0.1", port=65536)]}, "65536 is no UDP port"),
        ({"resume": pb.Resume(epoch=1, shards=[pb.Position(base=3, slots=32)])}, "what is brought cannot be"),
        ({"resume": pb.Resume(epoch=1, shards=[pb.Position(slots=32, next_block=1 << 63)])}, "blocks end at"),
        ({"resume": pb.Resume(epoch=1, reason="x" * 201)}, "a reason of 201 characters"),
        ({"spec": pb.JobSpec()}, "'' is no name for a job"),
    ],
)
def test_a_wrong_join_is_refused_and_changes_nothing(switch: Serving, change: dict[str, object], words: str) -> None:
    with pytest.raises(ControlCallError) as caught:
        switch.client.join(join_request(0, **change))  # type: ignore[arg-type]
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in caught.value.text
    assert not switch.client.list().jobs


def test_a_join_that_names_no_job_is_refused(switch: Serving) -> None:
    with pytest.raises(ControlCallError, match="no job is named"):
        switch.client.join(pb.JoinRequest(member=1, addresses=[pb.Address(port=1)]))


def test_a_join_by_name_needs_a_job(switch: Serving) -> None:
    with pytest.raises(ControlCallError, match="this switch has no job 'job'") as caught:
        switch.client.join(join_request(0, name="job"))
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_who_waits_too_long_reads_who_is_missing_before_its_own_deadline(switch: Serving) -> None:
    with pytest.raises(ControlCallError, match=r"rank 0 waited 0\.\d+ s in job 'job' for ranks 1-3 of 4") as caught:
        switch.client.join(join_request(0, job_spec(workers=4)), timeout_s=0.6)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not switch.client.list().jobs


def test_a_join_that_is_cancelled_no_longer_waits(switch: Serving) -> None:
    with ControlClient(switch.server.address) as other:
        call = Call(lambda: other.join(join_request(0)))
        switch.waiting(0)
    with pytest.raises(ControlCallError):
        call.result()
    switch.until(lambda: not switch.client.list().jobs)


def test_another_process_cannot_be_the_same_rank(switch: Serving) -> None:
    first = switch.join_later(0)
    switch.waiting(0)
    with pytest.raises(ControlCallError, match="rank 0 of job 'job' is taken by another process") as caught:
        switch.client.join(join_request(0, member=666))
    assert caught.value.code is grpc.StatusCode.ALREADY_EXISTS
    switch.client.join(join_request(1))
    first.result()


def test_a_new_epoch_goes_on_from_the_smallest_block_with_another_token(switch: Serving) -> None:
    first = switch.join_all()[0]
    calls = [switch.join_later(rank, resume=resume(first, 7 + rank, reason="test")) for rank in range(2)]
    second = calls[0].result()
    assert second.epoch == 2
    assert second.shards[0].resume_block == 7
    assert second.shards[0].lease == first.shards[0].lease
    assert second.spec.seed == first.spec.seed
    assert second.token != first.token
    assert switch.job().last_epoch_end.endswith("asked for a new epoch: test")


def test_after_a_restart_of_the_switch_the_job_goes_on(serve: Callable[..., Serving]) -> None:
    before = serve()
    before.client.create(job_spec("other"))
    first = before.join_all()[0]
    before.stop()
    after = serve()
    second = after.join_all(resume=resume(first, 12))[0]
    assert second.epoch == 2
    assert second.shards[0].lease == first.shards[0].lease
    assert second.shards[0].lease.base == 32
    assert second.spec.seed == first.spec.seed


def test_a_driver_that_fails_fails_the_job_alone(switch: Serving) -> None:
    switch.join_all(job_spec("a"))
    switch.driver.bind_error, switch.driver.bind_error_job = "table full", 2
    with pytest.raises(ControlCallError, match="could not be set up for it: table full") as caught:
        switch.join_all(job_spec("b"))
    assert caught.value.code is grpc.StatusCode.INTERNAL
    assert [job.spec.name for job in switch.client.list().jobs] == ["a"]
    assert switch.job("a").state == pb.JOB_STATE_RUNNING


def test_a_driver_with_a_bug_fails_the_job_alone(switch: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(shard: int, binding: object) -> None:
        raise KeyError("no such key")

    monkeypatch.setattr(switch.driver, "bind", bug)
    with pytest.raises(ControlCallError, match="unexpected KeyError: 'no such key'"):
        switch.join_all()
    assert not switch.client.list().jobs


def test_a_hundred_jobs_one_after_another_leave_nothing_behind(serve: Callable[..., Serving]) -> None:
    serving = serve(RecordingDriver(slots=32))  # room for one
    descriptors = 0
    for number in range(100):
        if number == 10:  # gRPC has opened what it keeps
            descriptors = len(os.listdir("/proc/self/fd"))
        with_both = serving.join_all(job_spec(f"job{number}"))
        assert {reply.job for reply in with_both} == {number + 1}
        serving.leave(0, f"job{number}")
        assert serving.leave(1, f"job{number}").ended
    serving.until(lambda: not serving.driver.bound)
    assert serving.client.stats().shards[0].slots_leased == 0
    assert threading.active_count() < 20
    assert len(os.listdir("/proc/self/fd")) <= descriptors


# ---------------------------------------------------------------------------------------- Heartbeat, Leave


def test_a_heartbeat_tells_epoch_and_state(switch: Serving) -> None:
    first = switch.join_all()[0]
    assert switch.beat(0) == pb.HeartbeatResponse(state=pb.JOB_STATE_RUNNING, epoch=1)
    call = switch.join_later(1, resume=resume(first, 0))
    switch.waiting(1)
    assert switch.beat(0) == pb.HeartbeatResponse(state=pb.JOB_STATE_JOINING, epoch=1)
    switch.leave(0, end=True, reason="enough")
    with pytest.raises(ControlCallError, match="rank 0 ended job 'job': enough") as caught:
        call.result()
    assert caught.value.code is grpc.StatusCode.ABORTED


def test_a_heartbeat_for_an_unknown_job_is_told_to_join_again(switch: Serving) -> None:
    with pytest.raises(ControlCallError, match="this switch has no job 'job'") as caught:
        switch.beat(0)
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_a_heartbeat_with_a_wrong_member_is_refused(switch: Serving) -> None:
    switch.join_all()
    with pytest.raises(ControlCallError, match="another process is") as caught:
        switch.beat(0, member=5)
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION


def test_the_last_to_leave_ends_the_job(switch: Serving) -> None:
    switch.join_all()
    assert not switch.leave(0).ended
    assert switch.leave(1).ended
    ended = switch.client.list().ended[0]
    assert (ended.name, ended.job, ended.epoch, ended.cause) == ("job", 1, 1, pb.CAUSE_ALL_LEFT)


# ---------------------------------------------------------------------------------------- Watch


def kinds(events: list[pb.Event]) -> list[str | None]:
    return [event.WhichOneof("event") for event in events]


def test_a_watch_begins_with_the_state_and_ends_with_the_job(switch: Serving) -> None:
    switch.client.create(job_spec())
    events: list[pb.Event] = []
    watch = Call(lambda: events.extend(switch.client.watch("job")))
    switch.until(lambda: switch.server.engine and switch.server.engine.watchers.count(1))
    switch.join_all()
    switch.leave(0, reason="done")
    switch.leave(1)
    watch.result()
    assert kinds(events) == [
        "state",
        "member_joined",
        "member_joined",
        "epoch_started",
        "member_left",
        "member_left",
        "job_ended",
    ]
    assert events[0].state.spec.name == "job"
    assert events[4].member_left == pb.MemberLeft(rank=0, reason="done")
    assert events[6].job_ended.cause == pb.CAUSE_ALL_LEFT
    assert [e.at_s for e in events] == sorted(e.at_s for e in events)
    switch.until(lambda: switch.server.engine and switch.server.engine.watchers.count(1) == 0)


def test_a_watch_tells_who_vanished_and_why_said_so_before(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(tick_interval_s=0.02, poll_interval_s=0.05, stall_after_s=0.1))
    serving.join_all(job_spec(workers=3, heartbeat_limit_s=0.8, rejoin_limit_s=0.2))
    serving.driver.job_counters[1] = JobCounters([3, 2, 3], [0] * 3, [0] * 3, [0] * 3, [0] * 3, results=2)
    serving.driver.waits[1] = [SlotWait(slot=2, generation=1, missing=(1,), waiting_s=0.3)]
    stream = serving.client.watch("job")
    assert next(stream).HasField("state")
    started = time.monotonic()
    why = None
    events: list[pb.Event] = []
    watch = Call(lambda: events.extend(stream))
    while watch.is_alive():
        for rank in (0, 2):
            try:
                serving.beat(rank)
            except ControlCallError as error:
                if error.code is not grpc.StatusCode.NOT_FOUND:  # the job has ended
                    raise
        if why is None and time.monotonic() - started > 0.6:
            why = serving.client.why("job")
        time.sleep(0.05)
    watch.result()
    assert why is not None
    assert "miss rank 1" in why.text[0]
    assert "Its heartbeats have stopped as well" in why.text[0]
    assert [(wait.rank, wait.slots, wait.contributions) for wait in why.ranks] == [(1, 1, 2)]
    assert kinds(events) == ["stalled", "member_failed", "epoch_ended", "job_ended"]
    assert events[0].stalled.ranks == [1]
    failed = events[1].member_failed
    assert failed.rank == 1
    assert 0.8 < failed.silent_s < 1.5
    assert (failed.contributions, failed.slots_waiting) == (2, 1)
    assert events[2].epoch_ended.cause == pb.CAUSE_MEMBER_FAILED
    assert events[3].job_ended.cause == pb.CAUSE_NOT_REJOINED


def test_a_watch_of_what_is_not_there_is_refused(switch: Serving) -> None:
    with pytest.raises(ControlCallError, match="this switch has no job 'job'") as caught:
        next(switch.client.watch("job"))
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_a_broken_watch_is_resumed_from_the_present_state(switch: Serving) -> None:
    switch.client.create(job_spec())
    stream = switch.client.watch("job")
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    switch.join_all()
    first = next(switch.client.watch("job"))
    assert first.state.state == pb.JOB_STATE_RUNNING
    assert {member.state for member in first.state.members} == {pb.MEMBER_STATE_ACTIVE}


def test_a_watcher_that_goes_away_is_forgotten(switch: Serving) -> None:
    switch.client.create(job_spec())
    stream = switch.client.watch("job")
    next(stream)
    engine = switch.server.engine
    assert engine is not None
    assert engine.watchers.count(1) == 1
    stream.close()  # type: ignore[attr-defined]
    switch.until(lambda: engine.watchers.count(1) == 0)


def test_the_number_of_watchers_is_bounded(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(watchers_per_job_max=2))
    serving.client.create(job_spec())
    streams = [serving.client.watch("job") for _ in range(2)]
    for stream in streams:
        next(stream)
    with pytest.raises(ControlCallError, match="has 2 watchers already") as caught:
        next(serving.client.watch("job"))
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_watcher_that_does_not_read_is_ended_and_can_watch_again(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(watch_queue_max=8))
    serving.client.create(job_spec(workers=32))
    stream = serving.client.watch("job")
    next(stream)
    engine = serving.server.engine
    assert engine is not None

    async def flood() -> None:
        for _ in range(100):
            engine.watchers.put(1, pb.Event())

    serving.loop.run(flood())
    with pytest.raises(ControlCallError, match="this watcher lies 8 events behind: watch again") as caught:
        list(itertools.islice(stream, 200))
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert next(serving.client.watch("job")).HasField("state")


# ---------------------------------------------------------------------------------------- List, Stats, Why


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


def test_why_of_a_job_that_ended_says_how(switch: Serving) -> None:
    switch.join_all()
    switch.leave(1, end=True, reason="out of data")
    why = switch.client.why("job")
    assert not why.HasField("job")
    assert why.text == ["The job is over: rank 1 ended job 'job': out of data."]
