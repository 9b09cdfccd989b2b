"""A client of BF Runtime: subscription, program, writes, reads. Blocking calls, used by one thread at a time."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import grpc

from inagg_proto.bfruntime import SERVICE
from inagg_proto.bfruntime.v1 import bfruntime_pb2 as pb

from ...driver import DriverError

CONNECT_S: Final = 10.0
CALL_S: Final = 10.0
ALL_PIPES: Final = 0xFFFF
OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)


class WriteFailed(DriverError):
    """Some updates of a write failed; ``codes`` are the gRPC status codes of these."""

    def __init__(self, text: str, codes: Sequence[int]) -> None:
        super().__init__(text)
        self.codes = tuple(codes)


class Client:
    """A client of one device, bound to the program that runs on it, from the constructor to `close`.

    Methods raise `DriverError`.
    """

    def __init__(self, target: str, program: str, device: int = 0, client: int = 0) -> None:
        """``target``: host:port, of bf_switchd. ``client``: a number that no other client has."""
        self.target = target
        self.program = program
        self._device = device
        self._id = client
        self._requests: queue.SimpleQueue[pb.StreamMessageRequest | None] = queue.SimpleQueue()
        self._subscribed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ended: str | None = None
        self._closing = False
        self._end_read, self._end_write = os.pipe()
        self._channel = grpc.insecure_channel(target, options=OPTIONS)
        self._thread: threading.Thread | None = None
        try:
            self._connect()
            self._subscribe()
            self._unary(
                "SetForwardingPipelineConfig",
                pb.SetForwardingPipelineConfigRequest(
                    device_id=device,
                    client_id=client,
                    action=pb.SetForwardingPipelineConfigRequest.BIND,
                    config=[pb.ForwardingPipelineConfig(p4_name=program)],
                ),
                pb.SetForwardingPipelineConfigResponse,
            )
        except BaseException:
            self.close()
            raise

    # --- connection ---

    def _connect(self) -> None:
        try:
            grpc.channel_ready_future(self._channel).result(CONNECT_S)
        except grpc.FutureTimeoutError:
            raise DriverError(f"no BF Runtime server answers on {self.target}: is bf_switchd running there?") from None

    def _subscribe(self) -> None:
        call = self._channel.stream_stream(
            f"/{SERVICE}/StreamChannel",
            request_serializer=pb.StreamMessageRequest.SerializeToString,
            response_deserializer=pb.StreamMessageResponse.FromString,
        )
        subscribe = pb.Subscribe(device_id=self._device, notifications=pb.Subscribe.Notifications())
        self._requests.put(pb.StreamMessageRequest(client_id=self._id, subscribe=subscribe))
        responses = call(iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._follow, args=(responses,), name="inagg-bfruntime", daemon=True)
        self._thread.start()
        try:
            refusal = self._subscribed.get(timeout=CALL_S)
        except queue.Empty:
            raise DriverError(f"{self.target} does not answer to a subscription; restart bf_switchd") from None
        if refusal is not None:
            raise DriverError(refusal)

    def _follow(self, responses: Iterator[pb.StreamMessageResponse]) -> None:
        """Reads the stream to its end: whether we are a client, and whether the switch is there at all."""
        try:
            for response in responses:
                if response.WhichOneof("update") == "subscribe":
                    status = response.subscribe.status
                    refused = f"{self.target} does not take client {self._id}: {status.message or status.code}"
                    self._subscribed.put(refused if status.code else None)
            self._end("the switch ended the BF Runtime stream")
        except grpc.RpcError as error:
            self._end(_text(error))

    def _end(self, why: str) -> None:
        self._ended = why
        self._subscribed.put(f"{self.target}: {why}")
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

    def info(self) -> tuple[bytes, bytes]:
        """What the switch says of the program's tables, and of those that it has without one: JSON."""
        request = pb.GetForwardingPipelineConfigRequest(device_id=self._device, client_id=self._id)
        answer = self._unary("GetForwardingPipelineConfig", request, pb.GetForwardingPipelineConfigResponse)
        for config in answer.config:
            if config.p4_name == self.program:
                return config.bfruntime_info, answer.non_p4_config.bfruntime_info
        running = ", ".join(config.p4_name for config in answer.config) or "none"
        raise DriverError(f"{self.target} does not run the program {self.program} (it runs: {running})")

    def write(self, updates: Sequence[pb.Update]) -> None:
        """Do all updates, in order; those that fail do not keep the others from being done. Raises `WriteFailed`."""
        target = pb.TargetDevice(device_id=self._device, pipe_id=ALL_PIPES)
        request = pb.WriteRequest(target=target, client_id=self._id, updates=updates, p4_name=self.program)
        answer = self._unary("Write", request, pb.WriteResponse)
        failures = [error for error in answer.status if error.canonical_code]
        if failures:
            told = "; ".join(error.message or f"code {error.canonical_code}" for error in failures[:3])
            raise WriteFailed(f"{self.target} refused Write: {told}", [error.canonical_code for error in failures])

    def read(self, entities: Sequence[pb.Entity]) -> list[pb.Entity]:
        """What the switch has of these."""
        call = self._channel.unary_stream(
            f"/{SERVICE}/Read",
            request_serializer=pb.ReadRequest.SerializeToString,
            response_deserializer=pb.ReadResponse.FromString,
        )
        target = pb.TargetDevice(device_id=self._device, pipe_id=ALL_PIPES)
        request = pb.ReadRequest(target=target, client_id=self._id, entities=entities, p4_name=self.program)
        try:
            return [entity for response in call(request, timeout=CALL_S) for entity in response.entities]
        except grpc.RpcError as error:
            raise self._failed("Read", error) from None

    def _unary(self, name: str, request: Any, response: Any) -> Any:
        call = self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            return call(request, timeout=CALL_S)
        except grpc.RpcError as error:
            raise self._failed(name, error) from None

    def _failed(self, name: str, error: grpc.RpcError) -> DriverError:
        if self._ended is not None:
            return DriverError(f"{self.target} serves no more: {self._ended}")
        return DriverError(f"{self.target} refused {name}: {_text(error)}")


def _text(error: Any) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}, {error.details() or 'no details'}"
    return str(error)
