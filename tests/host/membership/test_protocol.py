"""A switch of another version is named as such, at once, and not taken for one that is away or that does wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_proto import PROTOCOL
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc


class Other(control_pb2_grpc.ControlServicer):
    """Says that it has the next protocol."""

    def DataPlanes(self, request: pb.DataPlanesRequest, context: object) -> pb.DataPlanesResponse:  # noqa: N802
        return pb.DataPlanesResponse(addresses=[pb.Address(host="127.0.0.1", port=9)], protocol=PROTOCOL + 1)


class Older(control_pb2_grpc.ControlServicer):
    """Says nothing of a protocol."""

    def DataPlanes(self, request: pb.DataPlanesRequest, context: object) -> pb.DataPlanesResponse:  # noqa: N802
        return pb.DataPlanesResponse(addresses=[pb.Address(host="127.0.0.1", port=9)])


class Oldest(control_pb2_grpc.ControlServicer):
    """Does not know the call."""


@pytest.mark.parametrize(("kind", "age"), [(Other, "a newer"), (Older, "an older"), (Oldest, "an older")])
def test_a_switch_of_another_protocol_is_an_error_that_says_what_to_do(
    kind: type[control_pb2_grpc.ControlServicer], age: str
) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    control_pb2_grpc.add_ControlServicer_to_server(kind(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with pytest.raises(
            AllReduceError, match=rf"switch at {address} has {age} inagg than this rank .*: install the same on both"
        ):
            AllReduce(switch=address, rank=0, workers=2, job="x")
    finally:
        server.stop(None)
