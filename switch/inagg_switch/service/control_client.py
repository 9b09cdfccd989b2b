"""A client of the control service for the command line: plain calls, typed replies, errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inagg_link.tls import TlsTrouble
from inagg_proto import GRPC_PREAMBLE, KEEPALIVE, LEAF_SAYS, RECONNECT, SERVICE, why_unlike
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc

from ..addresses import is_unix
from ..defaults import ADDRESS
from .access import Access
from .tls_trouble import find

CALL_TIMEOUT_S: Final = 10.0
"""Seconds that a call that waits for nobody may take."""

LOOK_S: Final = 2.0
"""Seconds to look what it is that answered otherwise than a switch."""

T = TypeVar("T")
CONNECTION_LOST = (
    "failed to connect",
    "connection",
    "socket",
    "handshake",
    "dns resolution",
    "end of tcp stream",
    "errors resolving",
    "verification check",
    "ping timeout",
    "keepalive",
)
"""Words of gRPC's own texts on a connection that failed; a switch's sentences contain none of them, but for those that
begin with `LEAF_SAYS`."""


class ControlCallError(Exception):
    """A call that failed: gRPC's code, and a sentence that says what to do."""

    def __init__(self, code: grpc.StatusCode, text: str, trouble: TlsTrouble | None = None) -> None:
        """``trouble``: what is wrong with TLS, if it is that. The text says so, but not what to do: that has other
        names for each who calls."""
        super().__init__(text)
        self.code = code
        self.text = text
        self.trouble = trouble

    @property
    def unreachable(self) -> bool:
        """Whether nobody answered, or what did cannot now."""
        return self.code is grpc.StatusCode.UNAVAILABLE

    @property
    def silent(self) -> bool:
        """Whether nobody answered, or not in time: as of a process that is stopped, or a machine that is cut off."""
        return self.unreachable or self.code is grpc.StatusCode.DEADLINE_EXCEEDED

    @property
    def hangs(self) -> bool:
        """Whether a process takes connections there, and says nothing."""
        late = self.code is grpc.StatusCode.DEADLINE_EXCEEDED
        return late or "settings frame" in self.text.lower()  # the first that HTTP/2 has a server say

    @property
    def broken(self) -> bool:
        """Whether the switch answers, and its data plane does not."""
        return self.code is grpc.StatusCode.INTERNAL

    @property
    def of_tree(self) -> bool:
        """Whether it is a switch of a tree that speaks of itself, or of another."""
        return self.text.startswith(LEAF_SAYS)

    @property
    def refused(self) -> bool:
        """Whether the caller has shown no secret or certificate, or a wrong one."""
        return self.code is grpc.StatusCode.UNAUTHENTICATED


class NotASwitch(ControlCallError):
    """Another gRPC service answers, and no switch."""


class UnlikeSwitch(ControlCallError):
    """A switch of another version answers."""


class ControlClient:
    """Calls to one switch. A context manager; `close` otherwise. All calls raise `ControlCallError`."""

    def __init__(self, address: str = ADDRESS, access: Access | None = None) -> None:
        """Raises `SecurityError` for files that cannot be used."""
        self.address = address
        self._access = access or Access()
        self._troubles: dict[str, TlsTrouble] = {}  # by what gRPC says: it is looked at once for each
        self._channel = self._access.channel(address, (*RECONNECT, *KEEPALIVE))
        self._stub = control_pb2_grpc.ControlStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._metadata = self._access.metadata

    def data_planes(self, host: str = "", timeout_s: float = CALL_TIMEOUT_S) -> pb.DataPlanesResponse:
        """The data planes of a switch with which workers of this version work. ``host``: literal, that of `address`."""
        reply = self._call(self._stub.DataPlanes, pb.DataPlanesRequest(host=host), timeout_s)
        if (unlike := why_unlike(reply.protocol, f"the switch at {self.address}", "this command")) is not None:
            raise UnlikeSwitch(grpc.StatusCode.FAILED_PRECONDITION, unlike)
        return reply

    def list(self, timeout_s: float = CALL_TIMEOUT_S) -> pb.ListResponse:
        """The jobs, and those that ended lately."""
        return self._call(self._stub.List, pb.ListRequest(), timeout_s)

    def stats(self, name: str = "", timeout_s: float = CALL_TIMEOUT_S) -> pb.StatsResponse:
        """Counters of the switch and of one job or all."""
        return self._call(self._stub.Stats, pb.StatsRequest(name=name), timeout_s)

    def why(self, name: str, slots: int = 0, timeout_s: float = CALL_TIMEOUT_S) -> pb.WhyResponse:
        """The answer to what a job waits for; ``slots``: how many slots to list, 0 for the switch's choice."""
        return self._call(self._stub.Why, pb.WhyRequest(name=name, slots=slots), timeout_s)

    def evict(self, name: str, reason: str = "", timeout_s: float = CALL_TIMEOUT_S) -> None:
        """End a job that others run."""
        self._call(self._stub.Evict, pb.EvictRequest(name=name, reason=reason), timeout_s)

    def drain(self, *, off: bool = False) -> int:
        """Have the switch take no new jobs, or take them again; how many there are."""
        return self._call(self._stub.Drain, pb.DrainRequest(off=off), CALL_TIMEOUT_S).jobs

    def healthy(self, timeout_s: float = CALL_TIMEOUT_S) -> bool:
        """Whether the control service says that it serves."""
        try:
            reply = self._check(timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:  # such a service
                raise self._not_a_switch(error.code()) from None
            raise self._friendly(error) from None
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def _check(self, timeout_s: float) -> health_pb2.HealthCheckResponse:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        return self._health.Check(request, timeout=timeout_s, metadata=self._metadata)

    def _call(self, method: Callable[..., T], request: object, timeout_s: float | None) -> T:
        try:
            return method(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._friendly(error) from None

    def _friendly(self, error: grpc.RpcError) -> ControlCallError:
        # What a call raises is a grpc.Call too, which the type of the exception does not say.
        code, text = error.code(), error.details() or ""
        if text.startswith(LEAF_SAYS):
            text = GRPC_PREAMBLE.sub("", text)
        elif code is grpc.StatusCode.UNAVAILABLE and any(words in text.lower() for words in CONNECTION_LOST):
            if (trouble := self._tls_trouble(text)) is not None:
                return ControlCallError(code, f"cannot reach the switch at {self.address}: {trouble.what}", trouble)
            hint = (
                "does it serve TLS, with a certificate for that name from an authority you trust?"
                if self._access.tls
                else "is `inagg switch` running there, without TLS?"
            )
            text = f"cannot reach the switch at {self.address}: {hint} ({GRPC_PREAMBLE.sub('', text)})"
        elif code is grpc.StatusCode.UNIMPLEMENTED:
            return self._unknown_call()
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED and text == "Deadline Exceeded":
            text = f"the switch at {self.address} did not answer in time: is it overloaded, or stopped?"
        return ControlCallError(code, text)

    def _tls_trouble(self, said: str) -> TlsTrouble | None:
        """The trouble with TLS, where gRPC has ``said`` that it cannot connect: looked at once for each text."""
        if said in self._troubles:
            return self._troubles[said]
        found = None if is_unix(self.address) else find(self.address, self._access, said)
        if found is not None:
            self._troubles[said] = found
        return found

    def _unknown_call(self) -> ControlCallError:
        """The error for a call that the other side does not know: by the health service, where all switches name their
        own service."""
        code = grpc.StatusCode.UNIMPLEMENTED
        try:
            self._check(LOOK_S)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND):
                return self._not_a_switch(code)
            text = f"what listens at {self.address} is no inagg switch, or one of another version"
            return ControlCallError(code, text)
        text = f"the switch at {self.address} does not know this call, as it has an older inagg than this command"
        return UnlikeSwitch(code, f"{text}: install the same on both")

    def _not_a_switch(self, code: grpc.StatusCode) -> NotASwitch:
        return NotASwitch(code, f"what listens at {self.address} is no inagg switch, but another gRPC service")

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
