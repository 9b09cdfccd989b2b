"""A client of P4Runtime: arbitration, program, writes, reads. Blocking calls, used by one thread at a time."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import grpc

from inagg_proto.p4runtime import SERVICE
from inagg_proto.p4runtime.v1 import p4runtime_pb2 as pb

from ...driver import DriverError

CONNECT_S: Final = 10.0
CALL_S: Final = 10.0
PROGRAM_S: Final = 60.0
"""bmv2 reads a program of some MB when it is given one."""

STATUS_DETAILS: Final = "grpc-status-details-bin"
OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)


class WriteFailed(DriverError):
    """Some updates of a write failed; ``failures`` are (place, gRPC status code, text)."""

    def __init__(self, text: str, failures: Sequence[tuple[int, int, str]]) -> None:
        super().__init__(text)
        self.failures = tuple(failures)


class Client:
    """The primary client of one P4Runtime device, from the constructor to `close`. Methods raise `DriverError`."""

    def __init__(self, target: str, device: int = 0, election: int = 1) -> None:
        """``target``: host:port. ``election``: who has the largest number is primary."""
        self.target = target
        self._device = device
        self._election = pb.Uint128(high=0, low=election)
        self._requests: queue.SimpleQueue[pb.StreamMessageRequest | None] = queue.SimpleQueue()
        self._primary: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """What became of arbitration: None, or why we are not the primary client."""
        self._ended: str | None = None
        self._closing = False
        self._end_read, self._end_write = os.pipe()
        self._channel = grpc.insecure_channel(target, options=OPTIONS)
        self._thread: threading.Thread | None = None
        try:
            self._connect()
            self._arbitrate()
        except BaseException:
            self.close()
            raise

    # --- connection ---

    def _connect(self) -> None:
        try:
            grpc.channel_ready_future(self._channel).result(CONNECT_S)
        except grpc.FutureTimeoutError:
            raise DriverError(
                f"no P4Runtime server answers on {self.target}: is simple_switch_grpc running, and is this the address "
                "of its option --grpc-server-addr?"
            ) from None

    def _arbitrate(self) -> None:
        call = self._channel.stream_stream(
            f"/{SERVICE}/StreamChannel",
            request_serializer=pb.StreamMessageRequest.SerializeToString,
            response_deserializer=pb.StreamMessageResponse.FromString,
        )
        offer = pb.MasterArbitrationUpdate(device_id=self._device, election_id=self._election)
        self._requests.put(pb.StreamMessageRequest(arbitration=offer))
        responses = call(iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._follow, args=(responses,), name="inagg-p4runtime", daemon=True)
        self._thread.start()
        try:
            refusal = self._primary.get(timeout=CALL_S)
        except queue.Empty:
            raise DriverError(f"{self.target} does not answer to arbitration; restart the switch") from None
        if refusal is not None:
            raise DriverError(refusal)

    def _follow(self, responses: Iterator[pb.StreamMessageResponse]) -> None:
        """Reads the stream to its end: who is primary, and whether the switch is there at all."""
        try:
            for response in responses:
                if response.WhichOneof("update") == "arbitration":
                    self._on_arbitration(response.arbitration)
            self._end("the switch ended the P4Runtime stream")
        except grpc.RpcError as error:
            self._end(_text(error))

    def _on_arbitration(self, update: pb.MasterArbitrationUpdate) -> None:
        if update.status.code == 0:
            self._primary.put(None)
            return
        why = (
            f"another controller rules the switch on {self.target} (its election number is {update.election_id.low}); "
            "stop it, for a switch serves one control plane at a time"
        )
        self._primary.put(why)
        self._end(why)

    def _end(self, why: str) -> None:
        if self._ended is None:
            self._ended = why
            self._primary.put(f"{self.target}: {why}")
            os.close(self._end_write)

    @property
    def sentinel(self) -> int:
        """Readable when the stream has ended."""
        return self._end_read

    def ended(self) -> str | None:
        """Why the stream has ended; None if it goes on."""
        return None if self._closing else self._ended

    def close(self) -> None:
        """Hang up. No error if called twice."""
        if self._closing:
            return
        self._closing = True
        self._requests.put(None)
        self._channel.close()
        if self._thread is not None:
            self._thread.join()
        if self._ended is None:
            os.close(self._end_write)
        os.close(self._end_read)

    # --- calls ---

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
        self._unary("Write", request, pb.WriteResponse, CALL_S)

    def read(self, entities: Sequence[pb.Entity]) -> list[pb.Entity]:
        """What the switch has of these."""
        call = self._channel.unary_stream(
            f"/{SERVICE}/Read",
            request_serializer=pb.ReadRequest.SerializeToString,
            response_deserializer=pb.ReadResponse.FromString,
        )
        request = pb.ReadRequest(device_id=self._device, entities=entities)
        try:
            return [entity for response in call(request, timeout=CALL_S) for entity in response.entities]
        except grpc.RpcError as error:
            raise self._failed("Read", error) from None

    def _unary(self, name: str, request: Any, response: Any, timeout_s: float) -> None:
        call = self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            call(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._failed(name, error) from None

    def _failed(self, name: str, error: grpc.RpcError) -> DriverError:
        failures = _failures(error)
        if failures:
            told = "; ".join(f"update {place}: {text or grpc_code(code)}" for place, code, text in failures[:3])
            more = f" (and {len(failures) - 3} more)" if len(failures) > 3 else ""
            return WriteFailed(f"{self.target} refused {name}: {told}{more}", failures)
        if self._ended is not None:
            return DriverError(f"{self.target} serves no more: {self._ended}")
        return DriverError(f"{self.target} refused {name}: {_text(error)}")


def grpc_code(number: int) -> str:
    """The name of a gRPC status code."""
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    return names.get(number, f"status {number}")


def _text(error: Any) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}, {error.details() or 'no details'}"
    return str(error)


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
