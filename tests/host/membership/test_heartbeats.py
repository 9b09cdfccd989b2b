"""What a switch tells a rank meanwhile: of how many blocks there is room, who has left, and that it answers no more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tests.switch.background import BackgroundServer
from tests.switch.control.world import LIMITS, RecordingDriver

from inagg_host.allreduce import AllReduce
from inagg_host.config import Config
from inagg_host.membership.session import HEARTBEATS_MISSED, UNREACHABLE, Loss, Session
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc
from inagg_switch.service.server import ControlServer
from inagg_wire.formats import job_format
from inagg_wire.layout import datagram_bytes

PATIENCE_S = 30.0
LANES, WINDOW = 1024, 64


def wait_for(what: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


# --- room ---


def test_a_rank_has_out_what_its_heartbeats_say_as_other_jobs_come_and_go() -> None:
    room = 20 * datagram_bytes(job_format("nat8").up, LANES)
    driver = RecordingDriver(limits=replace(LIMITS, receive_bytes=room))
    with BackgroundServer(ControlServer(driver, "127.0.0.1:0")) as server:
        options: dict[str, Any] = {
            "switch": server.address, "rank": 0, "workers": 1, "lanes": LANES, "window": WINDOW,
            "heartbeat_limit_s": 4.0,
        }  # fmt: skip
        with AllReduce(job="first", **options) as first:
            network = first._network
            assert network is not None
            shards = network.engine.state.shards
            assert shards["credit"].tolist() == [20]
            with AllReduce(job="second", **options):
                wait_for(lambda: shards["credit"].tolist() == [10])
            wait_for(lambda: shards["credit"].tolist() == [20])


# --- a switch that does not answer, though what it told its ranks to watch stays open ---


class Deaf(control_pb2_grpc.ControlServicer):
    """Answers heartbeats with ``codes``, one after the other (None: well), and then well; tells nothing of the job."""

    def __init__(self, codes: Sequence[grpc.StatusCode | None]) -> None:
        self._codes = list(codes)
        self.heartbeats = 0
        self.over = threading.Event()

    def Join(self, request: pb.JoinRequest, context: object) -> pb.JoinResponse:  # noqa: N802
        lease = pb.Lease(base=0, slots=2 * WINDOW, address=pb.Address(host="127.0.0.1", port=9))
        return pb.JoinResponse(
            job=1, epoch=1, token=1, spec=request.spec, shards=[pb.ShardEpoch(lease=lease)], heartbeat_interval_s=0.001
        )

    def Heartbeat(self, request: pb.HeartbeatRequest, context: grpc.ServicerContext) -> pb.HeartbeatResponse:  # noqa: N802
        place, self.heartbeats = self.heartbeats, self.heartbeats + 1
        code = self._codes[place] if place < len(self._codes) else None
        if code is not None:
            context.abort(code, "not now")
        return pb.HeartbeatResponse(state=pb.JOB_STATE_RUNNING, epoch=1)

    def Leave(self, request: pb.LeaveRequest, context: object) -> pb.LeaveResponse:  # noqa: N802
        return pb.LeaveResponse()

    def Watch(self, request: pb.WatchRequest, context: object) -> Iterator[pb.Event]:  # noqa: N802
        self.over.wait()
        return iter(())


def deaf(codes: Sequence[grpc.StatusCode | None]) -> Deaf:
    return Deaf(codes)  # type: ignore[abstract]  # nobody makes the other calls


@contextmanager
def joined(switch: Deaf) -> Iterator[list[tuple[int, Loss]]]:
    """A rank has joined by ``switch``. What it finds that it has lost, and after how many heartbeats."""
    pool = ThreadPoolExecutor(4)
    server = grpc.server(pool)
    control_pb2_grpc.add_ControlServicer_to_server(switch, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    losses: list[tuple[int, Loss]] = []
    config = Config(switch=f"127.0.0.1:{port}", rank=0, workers=1, lanes=LANES, window=WINDOW)

    def lost(loss: Loss) -> None:
        losses.append((switch.heartbeats, loss))

    try:
        with closing(Session(config, lost, lambda _: None, lambda: None, lambda: None)) as session:
            session.join(lambda: ("127.0.0.1", 5))
            yield losses
    finally:
        switch.over.set()
        server.stop(None).wait(PATIENCE_S)
        pool.shutdown()


@pytest.mark.parametrize("code", UNREACHABLE)
def test_a_switch_that_answers_no_heartbeat_counts_as_gone_after_some(code: grpc.StatusCode) -> None:
    with joined(deaf([code] * 100)) as losses:
        wait_for(lambda: len(losses) > 0)
    after, loss = losses[0]
    assert after == HEARTBEATS_MISSED
    assert "not now" in loss.cause
    assert not loss.final, "it may be there again"


def test_a_switch_that_answers_now_and_then_does_not_count_as_gone() -> None:
    codes = [*[grpc.StatusCode.UNAVAILABLE] * (HEARTBEATS_MISSED - 1), None] * 5
    switch = deaf(codes)
    with joined(switch) as losses:
        wait_for(lambda: switch.heartbeats > len(codes))
    assert losses == []


def test_a_switch_that_knows_the_rank_no_more_is_believed_at_once() -> None:
    with joined(deaf([grpc.StatusCode.FAILED_PRECONDITION] * 100)) as losses:
        wait_for(lambda: len(losses) > 0)
    assert losses[0][0] == 1


def test_heartbeats_come_as_often_as_the_switch_says() -> None:
    switch, began_s = deaf([]), time.monotonic()
    with joined(switch):
        wait_for(lambda: switch.heartbeats >= 20)
    assert time.monotonic() - began_s < 15, "a thousandth of a second, and not one"


# --- who has left ---


def test_a_rank_that_left_and_has_come_back_is_not_blamed_for_a_stall() -> None:
    losses: list[Loss] = []
    config = Config(switch="127.0.0.1:9", rank=0, workers=3)
    with closing(Session(config, losses.append, lambda _: None, lambda: None, lambda: None)) as session:
        for rank in (1, 2):
            session._hear(pb.Event(member_left=pb.MemberLeft(rank=rank)))
        session._hear(pb.Event(member_joined=pb.MemberJoined(rank=1)))
        session._hear(pb.Event(stalled=pb.Stalled(ranks=[1])))
        assert losses == []
        session._hear(pb.Event(stalled=pb.Stalled(ranks=[1, 2])))
    (loss,) = losses
    assert loss.cause.startswith("rank 2 has left the job")
    assert loss.final
