"""The calls that a worker makes, besides those of an operator."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.service.control_client import CALL_TIMEOUT_S, ControlClient


class MemberClient(ControlClient):
    """All raise `ControlCallError`."""

    def create(self, spec: pb.JobSpec, timeout_s: float = CALL_TIMEOUT_S) -> pb.CreateResponse:
        """Create a job, or find it created."""
        return self._call(self._stub.Create, pb.CreateRequest(spec=spec), timeout_s)

    def join(self, request: pb.JoinRequest, timeout_s: float | None = None) -> pb.JoinResponse:
        """Join a job, and wait for the other ranks; None: as long as the switch waits."""
        return self._call(self._stub.Join, request, timeout_s)

    def leave(self, request: pb.LeaveRequest) -> pb.LeaveResponse:
        """Leave a job, or end it."""
        return self._call(self._stub.Leave, request, CALL_TIMEOUT_S)

    def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Say that a member is alive."""
        return self._call(self._stub.Heartbeat, request, CALL_TIMEOUT_S)

    def watch(self, name: str) -> Iterator[pb.Event]:
        """What happens to a job, from its present state on. Close the iterator to stop watching."""
        stream = self._stub.Watch(pb.WatchRequest(name=name), metadata=self._metadata)
        try:
            yield from stream
        except grpc.RpcError as error:
            raise self._friendly(error) from None
        finally:
            stream.cancel()  # type: ignore[no-untyped-call]
