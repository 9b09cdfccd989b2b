"""The calls Heartbeat and Leave, over real gRPC on loopback."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import grpc
import pytest
from tests.switch.control.world import LIMITS, RecordingDriver
from tests.switch.service.serving import Serving, job_spec, resume

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.service.control_client import ControlCallError


def test_a_heartbeat_tells_epoch_and_state(switch: Serving) -> None:
    first = switch.join_all()[0]
    window = first.spec.window
    assert switch.beat(0) == pb.HeartbeatResponse(state=pb.JOB_STATE_RUNNING, epoch=1, credit=window)
    call = switch.join_later(1, resume=resume(first, 0))
    switch.waiting(1)
    assert switch.beat(0) == pb.HeartbeatResponse(state=pb.JOB_STATE_JOINING, epoch=1, credit=window)
    switch.leave(0, end=True, reason="enough")
    with pytest.raises(ControlCallError, match="rank 0 ended job 'job': enough") as caught:
        call.result()
    assert caught.value.code is grpc.StatusCode.ABORTED


def test_a_heartbeat_tells_how_much_room_is_left_when_another_job_has_come(serve: Callable[..., Serving]) -> None:
    serving = serve(RecordingDriver(limits=replace(LIMITS, receive_bytes=64 << 10)))
    (first, _) = serving.join_all(job_spec("a"))
    serving.join_all(job_spec("b"))
    assert 0 < serving.beat(0, "a").credit < first.credit


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


def test_a_job_that_begins_when_another_has_ended_has_the_same_slots(switch: Serving) -> None:
    """Noise depends on the slots: the same script run again, with its seed, then gives the same bits."""
    unbind, leases = switch.driver.unbind, []

    def slow(shard: int, job: int) -> None:
        time.sleep(0.05)
        unbind(shard, job)

    switch.driver.unbind = slow  # type: ignore[method-assign]
    for _ in range(3):
        leases.append([shard.lease for shard in switch.join_all()[0].shards])
        for rank in range(2):
            switch.leave(rank)
    assert leases == [leases[0]] * 3


def test_a_rank_can_leave_while_the_switch_does_not_drop_the_job(switch: Serving) -> None:
    switch.join_all()
    switch.driver.unbind_error = "no answer"
    switch.leave(0)
    assert switch.leave(1).ended
