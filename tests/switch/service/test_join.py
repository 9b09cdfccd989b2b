"""The calls Create and Join, over real gRPC on loopback."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import grpc
import pytest
from tests.switch.control.world import LIMITS, RecordingDriver
from tests.switch.service.member_client import MemberClient
from tests.switch.service.serving import Call, Serving, job_spec, join_request, resume

from inagg_proto import PROTOCOL
from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.control.members import JoinRequest
from inagg_switch.control.policy import Policy
from inagg_switch.control.refusals import Code, ControlError
from inagg_switch.control.topology import AttachedSwitch
from inagg_switch.driver import Shard
from inagg_switch.service.control_client import ControlCallError
from inagg_switch.service.controller import patience_s


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
    assert [port for _, port in switch.driver.bound[0, 1].children] == [4000 + rank for rank in range(32)]


def test_an_empty_address_is_the_one_from_which_the_call_comes(switch: Serving) -> None:
    switch.client.join(join_request(0, job_spec(workers=1), addresses=[pb.Address(port=7)]))
    assert switch.driver.bound[0, 1].children == (("127.0.0.1", 7),)


def test_a_rank_can_give_an_address_for_each_shard(serve: Callable[..., Serving]) -> None:
    serving = serve(RecordingDriver(shard_count=2))
    addresses = [pb.Address(host="::1", port=7), pb.Address(host="::ffff:10.0.0.9", port=8)]
    serving.client.join(join_request(0, job_spec(workers=1), addresses=addresses))
    assert serving.driver.bound[0, 1].children == (("::1", 7),)
    assert serving.driver.bound[1, 1].children == (("10.0.0.9", 8),)


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


@pytest.mark.parametrize(("protocol", "age"), [(0, "an older"), (PROTOCOL + 1, "a newer")])
def test_a_rank_of_another_protocol_is_told_so(switch: Serving, protocol: int, age: str) -> None:
    with pytest.raises(ControlCallError, match=rf"rank 1 has {age} inagg than this switch \(protocol {protocol}, not"):
        switch.client.join(join_request(1, protocol=protocol))
    assert not switch.client.list().jobs


def test_a_join_that_names_no_job_is_refused(switch: Serving) -> None:
    with pytest.raises(ControlCallError, match="no job is named"):
        switch.client.join(pb.JoinRequest(protocol=PROTOCOL, member=1, addresses=[pb.Address(port=1)]))


def test_a_join_by_name_needs_a_job(switch: Serving) -> None:
    with pytest.raises(ControlCallError, match="this switch has no job 'job'") as caught:
        switch.client.join(join_request(0, name="job"))
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_who_waits_too_long_reads_who_is_missing_before_its_own_deadline(switch: Serving) -> None:
    with pytest.raises(ControlCallError, match=r"rank 0 waited 0\.\d+ s in job 'job' for ranks 1-3 of 4") as caught:
        switch.client.join(join_request(0, job_spec(workers=4)), timeout_s=0.6)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not switch.client.list().jobs


@pytest.mark.parametrize("timeout_s", [0.6, 30.0, 99.9, 100.0, 300.0, 1000.0, 9999.0, 70_000.0])
def test_who_waits_for_long_is_told_before_its_own_deadline_too(
    serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    """gRPC rounds deadlines up on their way: that of 300 s comes a second later here, that of 1000 s ten."""
    serving = serve(policy=Policy(join_timeout_s=1e6))
    controller = serving.server.controller
    assert controller is not None
    deadlines = []

    def join(now: float, _job: object, _request: object, deadline: float, _principal: str) -> None:
        deadlines.append(deadline - now)
        raise ControlError(Code.FAILED_PRECONDITION, "that was all")

    monkeypatch.setattr(controller.registry, "join", join)
    asked_s = time.monotonic()
    with pytest.raises(ControlCallError, match="that was all"):
        serving.client.join(join_request(0), timeout_s=timeout_s)
    took_s = time.monotonic() - asked_s
    (waits_s,) = deadlines
    assert waits_s < timeout_s - min(0.45, timeout_s / 2 - 0.01)
    assert waits_s > 0.98 * timeout_s - 0.6 - took_s


@pytest.mark.parametrize("time_left_s", [0.01, 0.5, 0.9])
def test_of_a_short_deadline_some_is_left_to_wait(time_left_s: float) -> None:
    assert time_left_s / 3 < patience_s(time_left_s, 3) < time_left_s


def test_of_calls_that_are_over_nothing_is_kept(switch: Serving) -> None:
    controller = switch.server.controller
    assert controller is not None
    switch.join_all()
    refused = switch.join_later(0, job_spec("b"))
    switch.waiting(0, name="b")
    switch.client.evict("b")
    with pytest.raises(ControlCallError, match="an operator of the switch ended job 'b'"):
        refused.result()
    switch.until(lambda: not controller._waiting)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_deadline_may_be_rounded_by_each_switch_that_a_call_passes(hops: int) -> None:
    for time_left_s in (100.0, 1000.0, 5e4):
        here_s = time_left_s * 1.01**hops
        assert patience_s(here_s, hops) < time_left_s - 0.45


def test_the_way_through_a_tree_of_switches_counts(switch: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = switch.server.controller
    assert controller is not None
    waits = []
    planes = (Shard(("127.0.0.1", 5555), 1024),)
    for name, parent in (("rack", ""), ("leaf", "rack")):
        controller.registry.topology.attach(AttachedSwitch(name, parent, planes, LIMITS))

    def join(now: float, _job: object, _request: object, deadline: float, _principal: str) -> None:
        waits.append(deadline - now)
        raise ControlError(Code.FAILED_PRECONDITION, "that was all")

    monkeypatch.setattr(controller.registry, "join", join)
    monkeypatch.setattr(controller, "now", lambda: 5.0)
    for name in ("", "rack", "leaf", "gone"):
        request = JoinRequest(0, 1, (("127.0.0.1", 4000),), None, switch=name)
        with pytest.raises(ControlError, match="that was all"):
            switch.loop.run(controller.join("job", request, 200.0, ""))
    assert waits == [pytest.approx(199.5 - 2.2 * hops) for hops in (1, 2, 3, 1)]


def test_a_join_that_is_cancelled_no_longer_waits(switch: Serving) -> None:
    with MemberClient(switch.server.address) as other:
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
    assert (first.shards[0].lease.base, second.shards[0].lease.base) == (32, 0)
    assert second.shards[0].lease.slots == first.shards[0].lease.slots
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
    descriptors = threads = 0
    for number in range(100):
        if number == 10:  # gRPC has opened what it keeps
            descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        with_both = serving.join_all(job_spec(f"job{number}"))
        assert {reply.job for reply in with_both} == {number + 1}
        serving.leave(0, f"job{number}")
        assert serving.leave(1, f"job{number}").ended
    serving.until(lambda: not serving.driver.bound)
    assert serving.client.stats().shards[0].slots_leased == 0
    assert threading.active_count() < threads + 20
    assert len(os.listdir("/proc/self/fd")) <= descriptors
