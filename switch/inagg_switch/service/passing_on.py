"""The control service of a switch that has a parent: it passes every call on, and says through whom it came.

So workers and operators talk to the switch that they reach, and there is one registry, at the root.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from inagg_proto import LEAF_SAYS, SECRET_METADATA, SERVICE
from inagg_proto.v1 import control_pb2

from .callers import brought, callers_passed_on
from .malformed import Handler
from .peers import own_host, peer_host
from .tree_messages import CALLERS_METADATA, HERE_METADATA, PEER_METADATA, SWITCH_METADATA
from .uplink_agent import UplinkAgent, connection_lost

KEPT: Final = frozenset((SWITCH_METADATA, PEER_METADATA, HERE_METADATA))
"""Metadata that the first switch adds to a call, and those above it pass on as they are."""
DATA_PLANES: Final = f"/{SERVICE}/DataPlanes"
Context = Any
Metadata = tuple[tuple[str, str | bytes], ...]


class PassingOn(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """All calls of the control service, as bytes, to the parent's."""

    def __init__(self, agent: UplinkAgent) -> None:
        """``agent``: that of this switch, which knows its parent."""
        self._agent, self._name = agent, agent.name
        service = control_pb2.DESCRIPTOR.services_by_name["Control"]
        self._streams = {f"/{SERVICE}/{method.name}": method for method in service.methods}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        path = handler_call_details.method
        method = self._streams.get(path)
        if method is None:
            return None
        if method.server_streaming:
            both = method.client_streaming

            async def stream(request: Any, context: Context) -> AsyncIterator[bytes]:
                with self._agent.uplink.used() as uplink:
                    to_parent: Any = uplink.channel.stream_stream if both else uplink.channel.unary_stream
                    call = to_parent(path, None, None)(
                        request, metadata=self._metadata(context), timeout=context.time_remaining()
                    )
                    async for reply in self._through(call, context):
                        yield reply

            made = grpc.stream_stream_rpc_method_handler if both else grpc.unary_stream_rpc_method_handler
            return made(stream)

        async def once(request: bytes, context: Context) -> bytes:
            metadata = self._metadata(context)
            if path == DATA_PLANES:
                metadata += self._here(request, context)
            with self._agent.uplink.used() as uplink:
                call = uplink.channel.unary_unary(path, None, None)(
                    request, metadata=metadata, timeout=context.time_remaining()
                )
                try:
                    reply: bytes = await call
                except grpc.aio.AioRpcError as error:
                    await self._abort(error, context)
                finally:
                    call.cancel()  # the caller may have gone
                return reply

        return grpc.unary_unary_rpc_method_handler(once)

    async def _through(self, call: Any, context: Context) -> AsyncIterator[bytes]:
        try:
            async for reply in call:
                yield reply
        except grpc.aio.AioRpcError as error:
            await self._abort(error, context)
        finally:
            call.cancel()

    def _here(self, request: bytes, context: Context) -> Metadata:
        """Metadata from the first switch that is asked where data goes: only its machine knows the way back."""
        if brought(context, SWITCH_METADATA):
            return ()
        try:
            asked = control_pb2.DataPlanesRequest.FromString(request)
        except DecodeError:
            return ()  # the root says what is wrong
        return ((HERE_METADATA, own_host(asked.host, asked.own or peer_host(context.peer()))),)

    def _metadata(self, context: Context) -> Metadata:
        """Metadata of a call that is passed on. Whether it was a switch that has said through which one the call came,
        the root sees by the names."""
        metadata = tuple((key, value) for key, value in context.invocation_metadata() or ())
        said = {SWITCH_METADATA: self._name, PEER_METADATA: context.peer()}
        if brought(context, SWITCH_METADATA):
            said |= {key: str(value) for key, value in reversed(metadata) if key in KEPT}
        said[CALLERS_METADATA] = callers_passed_on(context)
        return (*((key, value) for key, value in metadata if key == SECRET_METADATA), *said.items())

    async def _abort(self, error: grpc.aio.AioRpcError, context: Context) -> None:
        details, code = error.details() or "", error.code()
        if code is grpc.StatusCode.UNAVAILABLE and not error.initial_metadata():
            if connection_lost(details):
                why = self._agent.no_tls or details
                details = f"switch {self._name!r} does not reach its parent at {self._agent.parent}: {why}"
            elif (trouble := self._agent.trouble) is not None:  # the parent says that this switch has gone, not why
                own = trouble.startswith(LEAF_SAYS)
                details = trouble if own else f"switch {self._name!r} is not part of the tree: {trouble}"
        await context.abort(code, details, tuple(error.trailing_metadata() or ()))
