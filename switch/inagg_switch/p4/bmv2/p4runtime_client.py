"""A client of P4Runtime: arbitration, program, writes, reads. Blocking calls, used by one thread at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from inagg_proto.p4runtime import SERVICE
from inagg_proto.p4runtime.v1 import p4runtime_pb2 as pb

from ...service.access import Access
from ..grpc_stream import StreamClient

PROGRAM_S: Final = 60.0
"""bmv2 reads a program of some MB when it is given one."""


class Client(StreamClient):
    """The primary client of one P4Runtime device, from the constructor to `close`. Methods raise `DriverError`."""

    service = SERVICE
    protocol = "P4Runtime"
    error = pb.Error

    def __init__(self, target: str, device: int = 0, election: int = 1, access: Access | None = None) -> None:
        """``target``: host:port. ``election``: who has the largest number is primary."""
        super().__init__(target, access)
        self._device = device
        self._election = pb.Uint128(high=0, low=election)
        offer = pb.MasterArbitrationUpdate(device_id=device, election_id=self._election)
        try:
            self._open(
                pb.StreamMessageRequest(arbitration=offer),
                pb.StreamMessageResponse,
                "is simple_switch_grpc running, and is this the address of its option --grpc-server-addr?",
            )
        except BaseException:
            self.close()
            raise

    def _on_response(self, response: pb.StreamMessageResponse) -> None:
        if response.WhichOneof("update") == "arbitration":
            self._on_arbitration(response.arbitration)

    def _on_arbitration(self, update: pb.MasterArbitrationUpdate) -> None:
        if update.status.code == 0:
            self._outcome.put(None)
            return
        why = self._another_is_primary(f"its election number is {update.election_id.low}")
        self._outcome.put(why)
        self._end(why)

    def _refusal(self, error: Any) -> str:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            return self._another_is_primary(error.details() or "our election number is taken")  # section 5.3
        return super()._refusal(error)

    def _another_is_primary(self, told: str) -> str:
        return (
            f"another controller is the primary of the switch on {self.target} ({told}); stop it, for a switch serves "
            "one control plane at a time"
        )

    def set_program(self, info: pb.P4Info, config: bytes) -> None:
        """Have the switch run a program, with all its state fresh."""
        request = pb.SetForwardingPipelineConfigRequest(
            device_id=self._device,
            election_id=self._election,
            action=pb.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
            config=pb.ForwardingPipelineConfig(p4info=info, p4_device_config=config),
        )
        self._unary("SetForwardingPipelineConfig", request, pb.SetForwardingPipelineConfigResponse, PROGRAM_S)

    def write(self, updates: Sequence[pb.Update]) -> None:
        """Do all updates, in order; those that fail do not keep the others from being done. Raises `WriteFailed`."""
        request = pb.WriteRequest(device_id=self._device, election_id=self._election, updates=updates)
        self._unary("Write", request, pb.WriteResponse)

    def read(self, entities: Sequence[pb.Entity]) -> list[pb.Entity]:
        """Read these entities from the switch."""
        return self._read(pb.ReadRequest(device_id=self._device, entities=entities), pb.ReadResponse)
