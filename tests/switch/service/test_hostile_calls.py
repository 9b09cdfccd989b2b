"""What strangers say to the control service: it is refused in one line, bounded, and nobody else notices."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tests.switch.service.serving import Serving, job_spec, join_request

from inagg_proto import SERVICE
from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.control.policy import Policy
from inagg_switch.service.control_client import ControlCallError


def raw(channel: grpc.Channel, call: str) -> Any:
    """A call of bytes. The stubs of grpc do not know that serializers may be left out."""
    make: Any = channel.unary_stream if call == "Watch" else channel.unary_unary
    return make(f"/{SERVICE}/{call}")


@pytest.mark.parametrize("call", ["Create", "Join", "Heartbeat", "Leave", "List", "Stats", "Why"])
def test_what_is_no_message_is_an_invalid_argument_and_no_traceback(
    switch: Serving, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    with grpc.insecure_channel(switch.server.address) as channel:
        method = raw(channel, call)
        with caplog.at_level(logging.WARNING), pytest.raises(grpc.RpcError, match=f"no {call}Request") as caught:
            method(b"\xff\xff\xff", timeout=5)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records


def test_a_watch_that_is_no_message_is_refused_alike(switch: Serving) -> None:
    with grpc.insecure_channel(switch.server.address) as channel:
        stream = raw(channel, "Watch")(b"\xff\xff\xff", timeout=5)
        with pytest.raises(grpc.RpcError, match="no WatchRequest"):
            next(stream)


@pytest.mark.parametrize("name", ["x" * 20_000, "\u4e00" * 5_000, "\U0001f600" * 5_000])
def test_an_error_fits_its_metadata_however_long_the_name_in_it_is(switch: Serving, name: str) -> None:
    with pytest.raises(ControlCallError, match="this switch has no job") as caught:
        switch.client.stats(name)
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
    assert len(caught.value.text) < 1100


def test_what_a_rank_says_does_nothing_to_terminals_and_logs(switch: Serving) -> None:
    reply = switch.client.join(join_request(0, job_spec(workers=1)))
    leave = pb.LeaveRequest(name="job", rank=0, member=100, end=True, reason="a\n[/x] \x1b[31mb\u202e")
    switch.client.leave(leave)
    assert reply.epoch == 1
    (ended,) = switch.client.list().ended
    assert ended.text == r"rank 0 ended job 'job': a\n[/x] \x1b[31mb\u202e"


def test_questions_in_progress_are_bounded_and_heartbeats_go_on(serve: Callable[..., Serving]) -> None:
    """By a client that asks and does not read: the switch must keep the answers until it does."""
    switch = serve(policy=Policy(reads_max=8))
    switch.client.join(join_request(0, job_spec(workers=1)))
    options = [("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(switch.server.address, options) as channel:
        ask = raw(channel, "Stats")
        futures = [ask.future(b"", timeout=20) for _ in range(200)]
        outcomes = [future.exception(20) for future in futures]
        switch.client.heartbeat(pb.HeartbeatRequest(name="job", rank=0, member=100))
    refused = [error for error in outcomes if error is not None]
    assert refused
    assert {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert len(refused) < len(futures)

    def over() -> bool:
        try:
            switch.client.stats()
        except ControlCallError:  # the switch hears after its client that the last one is over
            return False
        return True

    switch.until(over)


def test_heartbeats_are_answered_while_many_ask_in_a_loop(switch: Serving) -> None:
    switch.client.join(join_request(0, job_spec(workers=1)))
    with grpc.insecure_channel(switch.server.address) as channel:
        ask = raw(channel, "Stats")
        give_up_at = time.monotonic() + 60
        asking = [ask.future(b"") for _ in range(60)]
        asked = 0
        while asked < 600 and time.monotonic() < give_up_at:
            for i, future in enumerate(asking):
                if future.done():
                    asking[i] = ask.future(b"")
                    asked += 1
            switch.client.heartbeat(pb.HeartbeatRequest(name="job", rank=0, member=100))
    assert asked >= 600
    assert switch.driver.looks < asked / 4, "equal questions share answers"
