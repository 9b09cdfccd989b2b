"""Who may call the control service: TLS, mutual TLS, the shared secret, and when none of it is needed."""

from __future__ import annotations

import hmac
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from inagg_proto import SECRET_METADATA, SERVICE, bearer

SECRET_CALLS: Final = frozenset(f"/{SERVICE}/{call}" for call in ("Create", "Join", "Heartbeat", "Leave"))
"""Calls that change something. The others (Watch, List, Stats, Why, health, reflection) tell no token, and are open
to whoever can connect; mutual TLS closes them too."""


class SecurityError(ValueError):
    """A server or client that cannot be set up as asked; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Security:
    """How a server is guarded. ``client_ca``: certificates of clients must be signed by one of these (mutual TLS).

    ``insecure_anywhere``: serve without TLS on addresses that other machines can reach. ``secret``: what callers of
    `SECRET_CALLS` must know.
    """

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    secret: str | None = None
    insecure_anywhere: bool = False

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise SecurityError("TLS needs both a certificate and its key: give --tls-cert and --tls-key")
        if self.client_ca is not None and self.certificate is None:
            raise SecurityError("mutual TLS needs a certificate of the switch too: give --tls-cert and --tls-key")
        if self.secret is not None:
            check_secret(self.secret)

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.certificate is not None

    def check_address(self, address: str) -> None:
        """Raises `SecurityError` if it is not safe to listen on ``address`` and nobody asked for that by name."""
        if not (self.tls or self.insecure_anywhere or is_local(address)):
            raise SecurityError(
                f"other machines could reach {address}, and without TLS they could read and forge what is said there: "
                "give --tls-cert and --tls-key, or listen on 127.0.0.1, or ask for it by name with --insecure"
            )

    def credentials(self) -> grpc.ServerCredentials | None:
        """What gRPC needs for TLS; None without it. Raises `SecurityError` for files that cannot be used."""
        if self.certificate is None or self.key is None:
            return None
        certificate, key = read(self.certificate), read(self.key)
        try:
            # gRPC says only that it cannot listen; OpenSSL says why.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except ssl.SSLError as error:
            raise SecurityError(f"{self.certificate} and {self.key} are no certificate and its key: {error}") from None
        ca = read_ca(self.client_ca) if self.client_ca is not None else None
        return grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=ca is not None)


def check_secret(secret: str) -> None:
    """Raises `SecurityError` unless ``secret`` can be sent as metadata: visible ASCII, no spaces."""
    if not secret or not all("!" <= character <= "~" for character in secret):
        raise SecurityError("a shared secret must be at least one visible ASCII character, without spaces")


def read(path: Path) -> bytes:
    """The bytes of a file. Raises `SecurityError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SecurityError(f"cannot read {path}: {error.strerror}") from None


def read_ca(path: Path) -> bytes:
    """Certificates of authorities in PEM. Raises `SecurityError` if there are none in the file."""
    data = read(path)
    try:
        ssl.create_default_context(cadata=data.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise SecurityError(f"{path} holds no certificates of authorities in PEM: {error}") from None
    return data


def is_local(address: str) -> bool:
    """Whether only this machine can reach ``address`` (``host:port``, ``[v6]:port`` or ``unix:...``)."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in its type stubs only


class SecretInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """Refuses calls of `SECRET_CALLS` that do not bring the shared secret."""

    def __init__(self, secret: str) -> None:
        self._wanted = bearer(secret).encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Called by gRPC for every call."""
        if handler_call_details.method not in SECRET_CALLS:
            return await continuation(handler_call_details)
        metadata = handler_call_details.invocation_metadata or ()
        given = [value for key, value in metadata if key == SECRET_METADATA]
        if not given:
            return _refusal("this switch wants a shared secret: give the one that it was started with")
        # All are compared, in constant time each: how long it takes says nothing of the secret.
        matches = [hmac.compare_digest(_bytes(value), self._wanted) for value in given]
        if not all(matches):
            return _refusal("the shared secret is wrong: give the one that this switch was started with")
        return await continuation(handler_call_details)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _refusal(text: str) -> Handler:
    async def refuse(_request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)

    return grpc.unary_unary_rpc_method_handler(refuse)
