"""A switch of a few lines for the session of a rank alone: it notes each call, and says well to it or what a test has
it say."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import grpc

from inagg_host.config import Config
from inagg_host.membership.session import Loss, Session
from inagg_proto import PROTOCOL, SECRET_METADATA
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc

PATIENCE_S = 30.0
LANES, WINDOW = 1024, 64
HERE = pb.Address(host="127.0.0.1", port=9)


class ScriptedSwitch(control_pb2_grpc.ControlServicer):
    """Answers at once. Tells those who watch what is in ``events``, and then nothing."""

    def __init__(self) -> None:
        self.epoch = 1
        """The one that the next join begins, and that heartbeats are told of."""
        self.state: pb.JobState.ValueType = pb.JOB_STATE_RUNNING
        """Heartbeats are told of it."""
        self.events: list[pb.Event] = []
        self.requests: dict[str, list[Any]] = defaultdict(list)
        """Which have come, by the name of the call."""
        self.secrets: dict[str, set[object]] = defaultdict(set)
        """Which were brought, by the name of the call; None: there was none."""
        self.limits_s: dict[str, float] = {}
        """How long the last of each may take, by the name of the call."""
        self.refusals: dict[str, list[grpc.StatusCode]] = defaultdict(list)
        """With which the next ones of each fail, by the name of the call."""
        self.credit = 0
        """Heartbeats are told of it."""
        self.over = threading.Event()

    def noted(self, call: str, request: Any, context: grpc.ServicerContext) -> None:
        """A call has come. It ends here where it is to fail."""
        self.limits_s[call] = context.time_remaining()
        self.requests[call].append(request)
        self.secrets[call].add(dict(context.invocation_metadata()).get(SECRET_METADATA))
        if self.refusals[call]:
            context.abort(self.refusals[call].pop(0), "not now")

    def DataPlanes(self, request: pb.DataPlanesRequest, context: grpc.ServicerContext) -> pb.DataPlanesResponse:  # noqa: N802
        self.noted("DataPlanes", request, context)
        return pb.DataPlanesResponse(addresses=[HERE], protocol=PROTOCOL)

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        self.noted("Join", request, context)
        spec = pb.JobSpec()
        spec.CopyFrom(request.spec)
        spec.lanes, spec.window = spec.lanes or LANES, spec.window or WINDOW
        shard = pb.ShardEpoch(lease=pb.Lease(base=0, slots=2 * spec.window, address=HERE))
        return pb.JoinResponse(
            job=1, epoch=self.epoch, token=1, spec=spec, shards=[shard], heartbeat_interval_s=0.001
        )  # fmt: skip

    def Heartbeat(self, request: pb.HeartbeatRequest, context: grpc.ServicerContext) -> pb.HeartbeatResponse:  # noqa: N802
        self.noted("Heartbeat", request, context)
        return pb.HeartbeatResponse(state=self.state, epoch=self.epoch, credit=self.credit)

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.Event]:  # noqa: N802
        self.noted("Watch", request, context)
        yield from self.events
        self.over.wait()

    def Stats(self, request: pb.StatsRequest, context: grpc.ServicerContext) -> pb.StatsResponse:  # noqa: N802
        self.noted("Stats", request, context)
        return pb.StatsResponse()

    def Why(self, request: pb.WhyRequest, context: grpc.ServicerContext) -> pb.WhyResponse:  # noqa: N802
        self.noted("Why", request, context)
        return pb.WhyResponse(text=["It waits."])

    def Leave(self, request: pb.LeaveRequest, context: grpc.ServicerContext) -> pb.LeaveResponse:  # noqa: N802
        self.noted("Leave", request, context)
        return pb.LeaveResponse()

    def _unknown(self, *arguments: Any, **named: Any) -> Any:
        """No rank makes the other calls."""
        raise NotImplementedError

    Create = List = Evict = Drain = Attach = _unknown


@contextmanager
def serving(switch: ScriptedSwitch) -> Iterator[str]:
    """``switch`` is served; its address."""
    pool = ThreadPoolExecutor(4)
    server = grpc.server(pool)
    control_pb2_grpc.add_ControlServicer_to_server(switch, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        switch.over.set()
        server.stop(None).wait(PATIENCE_S)
        pool.shutdown()


@contextmanager
def member(
    switch: ScriptedSwitch,
    lost: Callable[[Loss], None] = lambda _: None,
    credited: Callable[[int], None] = lambda _: None,
    stop: Callable[[], str | None] = lambda: None,
    round_trip_s: Callable[[], float | None] = lambda: None,
    **fields: Any,
) -> Iterator[Session]:
    """The session of a rank with the options ``fields`` that has not joined yet, and is closed at the end."""
    with serving(switch) as address:
        config = Config(**{"switch": address, "rank": 0, "workers": 1, **fields})
        with closing(Session(config, lost, credited, stop, round_trip_s)) as session:
            yield session


def join(session: Session) -> Any:
    """The epoch that begins."""
    return session.join(lambda: ("127.0.0.1", 5))
