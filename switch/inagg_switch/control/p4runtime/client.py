"""A client of P4Runtime: arbitration, program, writes, reads. Blocking calls, used by one thread at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from inagg_proto.p4runtime import SERVICE
from inagg_proto.p4runtime.v1 import p4runtime_pb2 as pb

from ...driver import DriverError
from ..stream import StreamClient

PROGRAM_S: Final = 60.0
"""bmv2 reads a program of some MB when it is given one."""

STATUS_DETAILS: Final = "grpc-status-details-bin"


class WriteFailed(DriverError):
    """Some updates of a write failed; ``failures`` are (place, gRPC status code, text)."""

    def __init__(self, text: str, failures: Sequence[tuple[int, int, str]]) -> None:
        super().__init__(text)
        self.failures = tuple(failures)


class Client(StreamClient):
    """The primary client of one P4Runtime device, from the constructor to `close`. Methods raise `DriverError`."""

    service = SERVICE
    protocol = "P4Runtime"

    def __init__(self, target: str, device: int = 0, election: int = 1) -> None:
        """``target``: host:port. ``election``: who has the largest number is primary."""
        super().__init__(target)
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
        why = self._ruled_by_another(f"its election number is {update.election_id.low}")
        self._outcome.put(why)
        self._end(why)

    def _refusal(self, error: Any) -> str:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            return self._ruled_by_another(error.details() or "our election number is taken")  # section 5.3
        return super()._refusal(error)

    def _ruled_by_another(self, told: str) -> str:
        return (
            f"another controller rules the switch on {self.target} ({told}); stop it, for a switch serves one control "
            "plane at a time"
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
        """What the switch has of these."""
        return self._read(pb.ReadRequest(device_id=self._device, entities=entities), pb.ReadResponse)

    def _failed(self, name: str, error: grpc.RpcError) -> DriverError:
        failures = _failures(error)
        if failures:
            told = "; ".join(f"update {place}: {text or grpc_code(code)}" for place, code, text in failures[:3])
            more = f" (and {len(failures) - 3} more)" if len(failures) > 3 else ""
            return WriteFailed(f"{self.target} refused {name}: {told}{more}", failures)
        return super()._failed(name, error)


def grpc_code(number: int) -> str:
    """The name of a gRPC status code."""
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    return names.get(number, f"status {number}")


def _failures(error: Any) -> list[tuple[int, int, str]]:
    """Which updates of a write failed (section 12.3 of the specification): (place, code, text)."""
    metadata = error.trailing_metadata() if isinstance(error, grpc.Call) else None
    details = next((value for key, value in metadata or () if key == STATUS_DETAILS), None)
    if not isinstance(details, bytes):
        return []
    found = []
    for place, detail in enumerate(pb.Status.FromString(details).details):
        one = pb.Error.FromString(detail.value)  # whatever its type URL says: `p4.v1.Error` is not ours
        if one.canonical_code != 0:
            found.append((place, one.canonical_code, one.message))
    return found
