"""Callers of the control service, and who of them is refused.

A switch that has a parent passes calls on over its own connection, which shows its own certificate. So the first switch
that a caller reaches adds the name in the certificate that he showed it, and each one above adds that of whoever sent
it the call. The root believes operators alone, as all switches below have to be. A shared secret is passed on as it is,
and names its owner wherever he calls.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote, unquote

import grpc
import grpc.aio

from inagg_proto import SECRET_METADATA

from ..control.refusals import Code, ControlError
from .malformed import Handler
from .peers import peer_host
from .refusal_throttle import RefusalThrottle
from .refused_callers import NO_SECRET, WRONG_SECRET, RefusedCallers
from .security import Secrets, Security
from .tree_messages import CALLERS_METADATA, SWITCH_METADATA

HOW: Final = " (INAGG_SECRET, or --secret-file of the commands that ask a switch)"
OPEN_SERVICES: Final = ("grpc.health.v1.", "grpc.reflection.")
"""Services that want no secret: they tell nothing of jobs. Mutual TLS closes them too."""

Context = grpc.aio.ServicerContext[Any, Any]


def brought(context: Context, key: str) -> str | None:
    """Metadata that came with a call by that name, the first if there are several; None if nothing did."""
    return next((str(value) for name, value in context.invocation_metadata() or () if name == key), None)


def common_name(context: Context) -> str:
    """Common name of the certificate that the connection showed; empty if it showed none, or was not asked for one."""
    return next(iter(context.auth_context().get("x509_common_name", ())), b"").decode(errors="replace")


def callers_passed_on(context: Context) -> str:
    """Value of `CALLERS_METADATA` for a call that is passed on."""
    return ",".join(quote(name, safe="") for name in _names(context))


def _names(context: Context) -> list[str]:
    """The names in certificates: first that of who began a call, last that of who sent it to this switch. Whatever says
    that it came through a switch, of whatever name, is not by who sent it; an older switch does not tell by whom."""
    if brought(context, SWITCH_METADATA) is None:
        return [common_name(context)]
    return [*(unquote(name) for name in (brought(context, CALLERS_METADATA) or "").split(",")), common_name(context)]


class Callers:
    """Tells who calls a server that is guarded so."""

    def __init__(self, security: Security, secrets: Secrets) -> None:
        self._security, self._secrets = security, secrets

    def principal(self, context: Context) -> str:
        """The caller: the name of the secret that he brought, or else the one in the certificate that he showed to the
        switch that he reached; empty if he has no name."""
        name = self._of_secret(context)
        if name:
            return name
        first, *others = self._names(context)
        return first if self._security.operators.issuperset(others) else ""

    def throttled(self, context: Context) -> str:
        """Whose refusals are counted together: a principal's; of who has no name, those of the host that he calls from
        (where a switch below passes calls on, that of the switch)."""
        return self.principal(context) or peer_host(context.peer())

    def check_operator(self, context: Context) -> None:
        """Raises `ControlError` unless who calls is an operator, or nobody has a name."""
        who, operators = self.principal(context), self._security.operators
        if not self._security.named(self._secrets) or who in operators:
            return
        hint = ""
        if not who and brought(context, SWITCH_METADATA) is not None:
            hint = " (the switch that passes this on tells no name: it needs --client-ca, and this version of inagg)"
        raise ControlError(
            Code.PERMISSION_DENIED,
            f"{who!r} is no operator of this switch: call as {' or '.join(sorted(operators))}{hint}",
        )

    def check_way(self, context: Context) -> None:
        """Raises `ControlError` for a call that says it came through a switch if certificates name the callers and who
        sent it is none whom that is to be believed of. Where the secret says who calls, nothing hangs on it."""
        switch = brought(context, SWITCH_METADATA)
        if switch is None or self._security.client_ca is None or self._of_secret(context):
            return
        for name in self._names(context)[1:]:
            if name not in self._security.operators:
                raise ControlError(
                    Code.PERMISSION_DENIED,
                    f"a call says that it came through switch {switch!r}, and who sent it, {name!r}, is no operator: "
                    "the certificates of all switches of a tree are an operator's, and those between ask for them "
                    "(--client-ca)",
                )

    def _of_secret(self, context: Context) -> str:
        for key, value in context.invocation_metadata() or ():
            if key == SECRET_METADATA and (name := self._secrets.who(_bytes(value))):
                return name
        return ""

    def _names(self, context: Context) -> list[str]:
        if self._security.client_ca is None:  # whatever a switch below says of names, here they count for nothing
            return [""]
        return _names(context)


class SecretInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Refuses calls that do not bring the shared secret, but for those of `OPEN_SERVICES`."""

    def __init__(self, secrets: Secrets, callers: Callers, throttle: RefusalThrottle, refused: RefusedCallers) -> None:
        """``refused`` is told of each."""
        self._secrets, self._callers, self._throttle, self._refused = secrets, callers, throttle, refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method: str = handler_call_details.method
        if method.startswith(tuple(f"/{service}" for service in OPEN_SERVICES)):
            return await continuation(handler_call_details)
        metadata = handler_call_details.invocation_metadata or ()
        given = [value for key, value in metadata if key == SECRET_METADATA]
        if not given:
            text = f"this switch wants a shared secret: give the one that it was started with{HOW}"
            return self._refusal(method, NO_SECRET, text)
        if not all([self._secrets.who(_bytes(value)) is not None for value in given]):
            text = f"{WRONG_SECRET}: give the one that this switch was started with{HOW}"
            return self._refusal(method, WRONG_SECRET, text)
        return await continuation(handler_call_details)

    def _refusal(self, method: str, why: str, text: str) -> Handler:
        came_s = time.monotonic()

        async def refuse(_request: object, context: Context) -> None:
            peer = context.peer()
            # Before it waits: who gives up meanwhile has been refused, too.
            self._refused.add(method, peer_host(peer) or peer, why, time.monotonic() - came_s)
            await self._throttle.wait(self._callers.throttled(context))
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)

        return grpc.unary_unary_rpc_method_handler(refuse)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
