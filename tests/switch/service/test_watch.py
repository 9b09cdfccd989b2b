"""The call Watch, over real gRPC on loopback."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
import structlog
from tests.switch.service.serving import Call, Serving, job_spec

from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc
from inagg_switch.control.members import BROKEN_OFF_LIMIT_S
from inagg_switch.control.policy import Policy
from inagg_switch.driver import JobCounters, SlotWait
from inagg_switch.service.control_client import ControlCallError


def kinds(events: list[pb.Event]) -> list[str | None]:
    return [event.WhichOneof("event") for event in events]


def watchers(switch: Serving) -> int:
    """How many watch the first job."""
    assert switch.server.controller is not None
    return len(switch.server.controller.subscribers._by_job.get(1, ()))


def test_a_watch_begins_with_the_state_and_ends_with_the_job(switch: Serving) -> None:
    switch.client.create(job_spec())
    events: list[pb.Event] = []
    watch = Call(lambda: events.extend(switch.client.watch("job")))
    switch.until(lambda: watchers(switch) == 1)
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
    switch.until(lambda: watchers(switch) == 0)


def test_the_log_names_ranks_in_a_few_words(switch: Serving) -> None:
    """A list of each that is missing, for each that joins, are megabytes for a thousand."""
    with structlog.testing.capture_logs() as log:
        switch.join_all(job_spec(workers=5))
    missing = sorted(line["missing"] for line in log if line["event"] == "member_joined")
    assert len(missing) == 5
    assert missing[0] == "no rank"
    assert all(words.startswith("rank") and len(words) <= len("ranks 0-1, 3-4") for words in missing[1:])


def test_a_member_whose_watch_breaks_off_is_given_up_soon_and_one_that_ends_its_own_after_leaving_is_not(
    serve: Callable[..., Serving],
) -> None:
    serving = serve(policy=Policy(tick_interval_s=0.02))
    serving.join_all(job_spec(workers=3, heartbeat_limit_s=60, rejoin_limit_s=60))
    started = time.monotonic()
    stream = serving.client.watch("job")
    assert next(stream).HasField("state")
    with grpc.insecure_channel(serving.server.address) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        watches = [stub.Watch(pb.WatchRequest(name="job", rank=rank, member=100 + rank)) for rank in (1, 2)]
        for watch in watches:
            assert next(iter(watch)).HasField("state")
        serving.leave(2)
    events = [next(stream), next(stream)]
    assert kinds(events) == ["member_left", "member_failed"]
    assert events[1].member_failed.rank == 1
    assert "its connection broke off" in events[1].member_failed.text
    assert 2 < time.monotonic() - started < 30, "and not 60, the heartbeat limit"


def test_a_watch_tells_who_vanished_and_why_said_so_before(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(tick_interval_s=0.02, poll_interval_s=0.05, stall_after_s=0.1))
    serving.join_all(job_spec(workers=3, heartbeat_limit_s=1.6, rejoin_limit_s=0.2))
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
        if why is None and time.monotonic() - started > 1.0:
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
    assert 1.6 < failed.silent_s < 30
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
    assert watchers(switch) == 1
    stream.close()  # type: ignore[attr-defined]
    switch.until(lambda: watchers(switch) == 0)


def test_the_number_of_watchers_is_bounded(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(watchers_per_job_max=2))
    serving.client.create(job_spec())
    streams = [serving.client.watch("job") for _ in range(2)]
    for stream in streams:
        next(stream)
    with pytest.raises(ControlCallError, match="has 2 streams already") as caught:
        next(serving.client.watch("job"))
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def watch_as(stub: control_pb2_grpc.ControlStub, rank: int, member: int) -> Any:
    """The stream by which a process watches, as hosts do; the job's state is read."""
    stream: Any = stub.Watch(pb.WatchRequest(name="job", rank=rank, member=member))
    next(stream)
    return stream


def test_ranks_have_watches_of_their_own_however_many_they_are(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(watchers_per_job_max=1, watches_per_rank=1))
    serving.client.create(job_spec(workers=32))
    operator = serving.client.watch("job")
    next(operator)
    with grpc.insecure_channel(serving.server.address) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        streams = [watch_as(stub, rank, 100 + rank) for rank in range(32)]
        with pytest.raises(grpc.RpcError, match="has 32 streams already"):
            watch_as(stub, 0, 100)
        assert len([operator, *streams]) == 33  # open until here


@pytest.fixture
def hasty(serve: Callable[..., Serving]) -> Serving:
    """Two ranks run, and their heartbeats are a minute apart."""
    serving = serve(policy=Policy(tick_interval_s=0.02, watch_queue_max=8))
    serving.join_all(job_spec(workers=2, heartbeat_limit_s=60, rejoin_limit_s=60))
    return serving


def lives(serving: Serving) -> bool:
    """Whether rank 0 is still taken to be there, after more time than one may take whose connection broke off."""
    time.sleep(BROKEN_OFF_LIMIT_S + 0.3)
    return serving.client.list().jobs[0].state == pb.JOB_STATE_RUNNING


def test_a_rank_that_watches_again_has_come_back(hasty: Serving) -> None:
    with grpc.insecure_channel(hasty.server.address) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        watch_as(stub, 0, 100).cancel()
        hasty.until(lambda: watchers(hasty) == 0)
        watch = watch_as(stub, 0, 100)
        assert lives(hasty)
        watch.cancel()
        assert not lives(hasty)


def test_a_rank_that_watches_by_another_stream_has_not_broken_off(hasty: Serving) -> None:
    with grpc.insecure_channel(hasty.server.address) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        broken, watch = watch_as(stub, 0, 100), watch_as(stub, 0, 100)
        broken.cancel()
        hasty.until(lambda: watchers(hasty) == 1)
        assert lives(hasty)
        watch.cancel()


def test_a_rank_whose_stream_the_switch_has_ended_has_not_broken_off(hasty: Serving) -> None:
    controller = hasty.server.controller
    assert controller is not None

    async def flood() -> None:
        for _ in range(100):
            controller.subscribers.put(1, pb.Event())

    with grpc.insecure_channel(hasty.server.address) as channel:
        watch = watch_as(control_pb2_grpc.ControlStub(channel), 0, 100)
        hasty.loop.run(flood())
        with pytest.raises(grpc.RpcError, match="this watch lies 8 events behind"):
            list(itertools.islice(watch, 200))
        assert lives(hasty)


def test_a_watcher_that_does_not_read_is_ended_and_can_watch_again(serve: Callable[..., Serving]) -> None:
    serving = serve(policy=Policy(watch_queue_max=8))
    serving.client.create(job_spec(workers=32))
    stream = serving.client.watch("job")
    next(stream)
    controller = serving.server.controller
    assert controller is not None

    async def flood() -> None:
        for _ in range(100):
            controller.subscribers.put(1, pb.Event())

    serving.loop.run(flood())
    with pytest.raises(ControlCallError, match="this watch lies 8 events behind: watch again") as caught:
        list(itertools.islice(stream, 200))
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert next(serving.client.watch("job")).HasField("state")
