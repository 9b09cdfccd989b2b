"""Common part of the clients of P4Runtime and BF Runtime: a stream that lasts as long as the client, and calls beside
it.

Both protocols begin with a message on a stream that says who we are. The switch takes us or not, and as long as the
stream goes on it is there. Blocking calls, used by one thread at a time.
"""

from __future__ import annotations

import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import grpc
from google.rpc import status_pb2

from ..driver import DriverError
from ..service.access import Access

T = TypeVar("T")

CONNECT_S: Final = 10.0
CALL_S: Final = 10.0
OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A switch that is starting is not there at the first try; by default gRPC waits a second before the next one.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


UPDATES_MAX: Final = 1000
"""Updates of one write, so that no call takes long."""
GONE: Final = grpc.StatusCode.NOT_FOUND.value[0]
"""Status of an update that deletes what is not there."""
STATUS_DETAILS: Final = "grpc-status-details-bin"


class WriteFailed(DriverError):
    """Some updates of a write failed; ``failures`` are (index, gRPC status code, text)."""

    def __init__(self, text: str, failures: Sequence[tuple[int, int, str]]) -> None:
        super().__init__(text)
        self.failures = tuple(failures)


class StreamClient(ABC):
    """A client of one switch, from `_open` to `close`. Methods raise `DriverError`."""

    service: str
    """Full name of the gRPC service."""
    protocol: str
    """Name of the protocol for people."""
    error: Any
    """The protocol's message for what became of an update."""

    def __init__(self, target: str, access: Access | None = None) -> None:
        """``target``: host:port. Raises `SecurityError` for files of ``access`` that cannot be used."""
        self.target = target
        self._channel = (access or Access()).channel(target, OPTIONS)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outcome: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """Answer of the switch to us: None if it takes us, or why not."""
        self._ended: str | None = None
        self._closing = False
        self._end_read, self._end_write = os.pipe()
        self._thread: threading.Thread | None = None

    # --- the stream ---

    @abstractmethod
    def _on_response(self, response: Any) -> None:
        """Take a message of the stream: on the stream's own thread."""

    def _open(self, request: Any, response: Any, advice: str) -> None:
        """Connect, send the first message, and wait to be taken. ``response``: the class of the stream's messages."""
        try:
            grpc.channel_ready_future(self._channel).result(CONNECT_S)
        except grpc.FutureTimeoutError:
            raise DriverError(f"no {self.protocol} server answers on {self.target}: {advice}") from None
        call = self._method(self._channel.stream_stream, "StreamChannel", request, response)
        self._requests.put(request)
        responses = call(iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._follow, args=(responses,), name="inagg-switch-stream", daemon=True)
        self._thread.start()
        try:
            refusal = self._outcome.get(timeout=CALL_S)
        except queue.Empty:
            raise DriverError(f"{self.target} does not say whether it takes us; restart the switch") from None
        if refusal is not None:
            raise DriverError(refusal)

    def _follow(self, responses: Iterator[Any]) -> None:
        """Reads the stream to its end: whether we are taken, and whether the switch is there at all."""
        try:
            for response in responses:
                self._on_response(response)
            self._end(f"the switch ended the {self.protocol} stream")
        except grpc.RpcError as error:
            self._outcome.put(self._refusal(error))
            self._end(_text(error))

    def _refusal(self, error: Any) -> str:
        """Sentence on a stream that ended with ``error`` before the switch took us."""
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return f"what answers on {self.target} does not speak {self.protocol}"
        return f"{self.target} ended the {self.protocol} stream: {_text(error)}"

    def _end(self, why: str) -> None:
        if self._ended is None:
            self._ended = why
            self._outcome.put(f"{self.target}: {why}")
            os.close(self._end_write)

    @property
    def sentinel(self) -> int:
        """Readable when the stream has ended."""
        return self._end_read

    def died(self) -> str | None:
        """See `plane.Plane.died`: as long as the stream goes on, the switch is there."""
        return None if self._closing or self._ended is None else self._serves_no_more()

    def _serves_no_more(self) -> str:
        return f"the switch on {self.target} serves no more ({self._ended})"

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

    def _method(self, kind: Callable[..., Any], name: str, request: Any, response: Any) -> Any:
        """A method of the service. ``kind``: of the channel, by what is a stream."""
        return kind(
            f"/{self.service}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )

    def _unary(self, name: str, request: Any, response: Any, timeout_s: float | None = None) -> Any:
        with self._calling(name):
            call = self._method(self._channel.unary_unary, name, request, response)
            return call(request, timeout=timeout_s or CALL_S)

    def _read(self, request: Any, response: Any) -> list[Any]:
        """All entities that the answers to a Read have."""
        with self._calling("Read"):
            call = self._method(self._channel.unary_stream, "Read", request, response)
            return [entity for answer in call(request, timeout=CALL_S) for entity in answer.entities]

    @contextmanager
    def _calling(self, name: str) -> Iterator[None]:
        """Errors of a call as `DriverError`. There are no calls after the stream's end: they would go to another switch
        that has come up at the same address, which knows nothing of what this one was told."""
        if self._ended is not None:
            raise DriverError(self._serves_no_more())
        try:
            yield
        except grpc.RpcError as error:
            raise self._failed(name, error) from None

    def _failed(self, name: str, error: Any) -> DriverError:
        if self._ended is not None:
            return DriverError(self._serves_no_more())
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            asks = "does the switch hang, or is the way to it cut?"
            return DriverError(f"the {self.protocol} server on {self.target} has not answered {name} in time: {asks}")
        failures = self._failures(error)
        if failures:
            return self._write_failed(name, failures)
        return DriverError(f"{self.target} refused {name}: {_text(error)}")

    def _write_failed(self, name: str, failures: Sequence[tuple[int, int, str]]) -> WriteFailed:
        told = "; ".join(f"update {index}: {text or grpc_code(code)}" for index, code, text in failures[:3])
        more = f" (and {len(failures) - 3} more)" if len(failures) > 3 else ""
        return WriteFailed(f"{self.target} refused {name}: {told}{more}", failures)

    def _failures(self, error: Any) -> list[tuple[int, int, str]]:
        """Updates of a write that failed: (index, code, text). A google.rpc.Status in the trailing metadata has one
        detail for each update (P4Runtime 1.4, section 12.3; bf_switchd does the same)."""
        metadata = error.trailing_metadata() if isinstance(error, grpc.Call) else None
        details = next((value for key, value in metadata or () if key == STATUS_DETAILS), None)
        if not isinstance(details, bytes):
            return []
        found = []
        for index, detail in enumerate(status_pb2.Status.FromString(details).details):
            one = self.error.FromString(detail.value)  # whatever its type URL says: that names the original's package
            if one.canonical_code != 0:
                found.append((index, one.canonical_code, one.message))
        return found


def batches(updates: Sequence[T]) -> Iterator[Sequence[T]]:
    """``updates``, as many at a time as one write takes."""
    yield from (updates[first : first + UPDATES_MAX] for first in range(0, len(updates), UPDATES_MAX))


def grpc_code(number: int) -> str:
    """The name of a gRPC status code."""
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    return names.get(number, f"status {number}")


def _text(error: Any) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}, {error.details() or 'no details'}"
    return str(error)
