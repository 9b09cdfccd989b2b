"""Access to a gRPC server: with TLS or without, and as whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from inagg_link.tls import TlsClient
from inagg_proto import NO_PROXY, SECRET_METADATA, bearer

from .security import SecurityError, check_files, check_secret, read


@dataclass(frozen=True, slots=True)
class Access:
    """Access to a switch. ``ca``: the authorities to trust (TLS); None: the system's.

    ``certificate`` and ``key`` show who calls (mutual TLS); ``server_name``: the name in the switch's certificate, if
    it is not the host of the address.
    """

    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    secret: str | None = None

    def channel(self, address: str, options: Sequence[tuple[str, int]] = ()) -> grpc.Channel:
        """A channel to ``address``, with further ``options``. Raises `SecurityError` for files that cannot be used."""
        channel: grpc.Channel = self._channel(grpc, address, options)
        return channel

    def aio_channel(self, address: str, options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Channel:
        """The channel for asyncio."""
        channel: grpc.aio.Channel = self._channel(grpc.aio, address, options)
        return channel

    def _channel(self, library: Any, address: str, options: Sequence[tuple[str, int]]) -> Any:
        credentials, own = self._credentials()
        if credentials is None:
            return library.insecure_channel(address, (*NO_PROXY, *options))
        return library.secure_channel(address, credentials, (*NO_PROXY, *options, *own))

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of calls of one's own."""
        return () if self.secret is None else ((SECRET_METADATA, bearer(self.secret)),)

    @property
    def tls_client(self) -> TlsClient:
        """The client with TLS that has this access."""
        return TlsClient(self.ca, self.certificate, self.key, self.server_name)

    def _credentials(self) -> tuple[grpc.ChannelCredentials | None, tuple[tuple[str, str], ...]]:
        if self.secret is not None:
            check_secret(self.secret)
        if not self.tls:
            if self.ca or self.certificate or self.key or self.server_name:
                raise SecurityError("certificates are of no use without TLS: ask for it with --tls")
            return None, ()
        if (self.certificate is None) != (self.key is None):
            raise SecurityError("a client certificate needs its key: give both")
        check_files(self.tls_client)
        credentials = grpc.ssl_channel_credentials(
            read(self.ca) if self.ca is not None else None,
            read(self.key) if self.key is not None else None,
            read(self.certificate) if self.certificate is not None else None,
        )
        name = self.server_name
        return credentials, (("grpc.ssl_target_name_override", name),) if name is not None else ()
