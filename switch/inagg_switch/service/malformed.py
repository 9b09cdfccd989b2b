"""Requests that are no messages: they are refused as any mistake of a caller, without a traceback in the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from inagg_proto import SERVICE

from ..control.refusals import Code, ControlError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in its type stubs only


@dataclass(frozen=True, slots=True)
class Malformed:
    """A stand-in for a request whose bytes are not those of its type."""

    what: str


def check_message(request: object) -> None:
    """Raises `ControlError` if ``request`` is `Malformed`."""
    if isinstance(request, Malformed):
        raise ControlError(Code.INVALID_ARGUMENT, f"what was sent is no {request.what}: it cannot be parsed")


class MalformedInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Lets calls of the control service begin with `Malformed` where gRPC would log a traceback and say UNKNOWN."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler: Any = await continuation(handler_call_details)
        name = handler_call_details.method
        if handler is None or not name.startswith(f"/{SERVICE}/") or handler.request_deserializer is None:
            return handler  # type: ignore[no-any-return]
        parse = handler.request_deserializer

        def parsed(data: bytes) -> object:
            try:
                return parse(data)
            except DecodeError:
                return Malformed(f"{name.rpartition('/')[2]}Request")

        return handler._replace(request_deserializer=parsed)  # type: ignore[no-any-return]
