"""A client of BF Runtime: subscription, program, writes, reads. Blocking calls, used by one thread at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inagg_proto.bfruntime import SERVICE
from inagg_proto.bfruntime.v1 import bfruntime_pb2 as pb

from ...driver import DriverError
from ...service.access import Access
from ..grpc_stream import StreamClient

ALL_PIPES: Final = 0xFFFF
CLIENT: Final = 0
"""Our number, which no other client of the switch has."""


class Client(StreamClient):
    """A client of one device, bound to the program that runs on it, from the constructor to `close`.

    ``info``: what the switch says of the program's tables, and of those that it has without one, as JSON. Methods raise
    `DriverError`.
    """

    service = SERVICE
    protocol = "BF Runtime"
    error = pb.Error

    def __init__(self, target: str, program: str, device: int = 0, access: Access | None = None) -> None:
        """``target``: host:port, of bf_switchd."""
        super().__init__(target, access)
        self.program = program
        self._device = device
        subscribe = pb.Subscribe(device_id=device, notifications=pb.Subscribe.Notifications())
        try:
            self._open(
                pb.StreamMessageRequest(client_id=CLIENT, subscribe=subscribe),
                pb.StreamMessageResponse,
                "is bf_switchd running there?",
            )
            self.info = self._info()
            self._unary(
                "SetForwardingPipelineConfig",
                pb.SetForwardingPipelineConfigRequest(
                    device_id=device,
                    client_id=CLIENT,
                    action=pb.SetForwardingPipelineConfigRequest.BIND,
                    config=[pb.ForwardingPipelineConfig(p4_name=program)],
                ),
                pb.SetForwardingPipelineConfigResponse,
            )
        except BaseException:
            self.close()
            raise

    def _on_response(self, response: pb.StreamMessageResponse) -> None:
        if response.WhichOneof("update") == "subscribe":
            status = response.subscribe.status
            refused = (
                f"{self.target} does not take client {CLIENT}: {status.message or status.code}; if another control "
                "plane drives this switch, stop it"
            )
            self._outcome.put(refused if status.code else None)

    def _info(self) -> tuple[bytes, bytes]:
        request = pb.GetForwardingPipelineConfigRequest(device_id=self._device, client_id=CLIENT)
        answer = self._unary("GetForwardingPipelineConfig", request, pb.GetForwardingPipelineConfigResponse)
        for config in answer.config:
            if config.p4_name == self.program:
                return config.bfruntime_info, answer.non_p4_config.bfruntime_info
        running = ", ".join(config.p4_name for config in answer.config) or "none"
        raise DriverError(
            f"the switch on {self.target} runs no program {self.program!r} (it runs: {running}); start bf_switchd with "
            "ours, or say by which name it runs"
        )

    def write(self, updates: Sequence[pb.Update]) -> None:
        """Do all updates, in order; those that fail do not keep the others from being done. Raises `WriteFailed`."""
        target = pb.TargetDevice(device_id=self._device, pipe_id=ALL_PIPES)
        request = pb.WriteRequest(target=target, client_id=CLIENT, updates=updates, p4_name=self.program)
        answer = self._unary("Write", request, pb.WriteResponse)
        # Which of them failed stands in the answer, or, as P4Runtime has it, in the status of the call.
        failures = [(i, e.canonical_code, e.message) for i, e in enumerate(answer.status) if e.canonical_code]
        if failures:
            raise self._write_failed("Write", failures)

    def read(self, entities: Sequence[pb.Entity]) -> list[pb.Entity]:
        """Read these entities from the switch."""
        target = pb.TargetDevice(device_id=self._device, pipe_id=ALL_PIPES)
        request = pb.ReadRequest(target=target, client_id=CLIENT, entities=entities, p4_name=self.program)
        return self._read(request, pb.ReadResponse)
