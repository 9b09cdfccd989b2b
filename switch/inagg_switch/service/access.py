"""Access to a gRPC server: with TLS or without, and as whom."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from inagg_link.tls import TlsClient
from inagg_proto import NO_PROXY, SECRET_METADATA, bearer

from .security import SecurityError, check_files, check_secret, read, read_secrets

Options = Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Access:
    """Access to a switch. ``ca``: the authorities to trust (TLS); None: the system's.

    ``certificate`` and ``key`` show who calls (mutual TLS); ``server_name``: the name in the switch's certificate, if
    it is not the host of the address. ``secret_file`` has the secret in it, in the place of ``secret``.
    """

    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    secret: str | None = None
    secret_file: Path | None = None

    def now(self) -> OpenedAccess:
        """The access with what its files hold now. Raises `SecurityError` for files that cannot be used."""
        secret = self._secret()
        if secret is not None:
            check_secret(secret)
        if not self.tls:
            if self.ca or self.certificate or self.key or self.server_name:
                raise SecurityError("certificates are of no use without TLS: ask for it with --tls")
            return OpenedAccess(secret=secret)
        if (self.certificate is None) != (self.key is None):
            raise SecurityError("a client certificate needs its key: give both")
        check_files(self._client())
        ca, certificate, key = (
            read(path) if path is not None else None for path in (self.ca, self.certificate, self.key)
        )
        return OpenedAccess(True, ca, certificate, key, self.server_name, secret)

    def channel(self, address: str, options: Options = ()) -> grpc.Channel:
        """A channel to ``address``, with further ``options``. Raises `SecurityError` for files that cannot be used."""
        return self.now().channel(address, options)

    def aio_channel(self, address: str, options: Options = ()) -> grpc.aio.Channel:
        """The channel for asyncio."""
        return self.now().aio_channel(address, options)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of calls of one's own. Raises `SecurityError` if the file of the secret cannot be used."""
        return _metadata(self._secret())

    @contextmanager
    def as_client(self) -> Iterator[TlsClient | None]:
        """The client with TLS that has this access, by the files as they are now; None if it has no TLS."""
        yield self._client() if self.tls else None

    def _client(self) -> TlsClient:
        return TlsClient(self.ca, self.certificate, self.key, self.server_name)

    def _secret(self) -> str | None:
        return self.secret if self.secret_file is None else read_own_secret(self.secret_file)


@dataclass(frozen=True, slots=True)
class OpenedAccess:
    """An access with what its files held when they were read (`Access.now`); None: there was no such file."""

    tls: bool = False
    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    secret: str | None = field(default=None, repr=False)

    def channel(self, address: str, options: Options = ()) -> grpc.Channel:
        """A channel to ``address``, with further ``options``."""
        channel: grpc.Channel = self._channel(grpc, address, options)
        return channel

    def aio_channel(self, address: str, options: Options = ()) -> grpc.aio.Channel:
        """The channel for asyncio."""
        channel: grpc.aio.Channel = self._channel(grpc.aio, address, options)
        return channel

    def _channel(self, library: Any, address: str, options: Options) -> Any:
        if not self.tls:
            return library.insecure_channel(address, (*NO_PROXY, *options))
        credentials = grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)
        name = self.server_name
        own = (("grpc.ssl_target_name_override", name),) if name is not None else ()
        return library.secure_channel(address, credentials, (*NO_PROXY, *options, *own))

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of calls of one's own."""
        return _metadata(self.secret)

    @contextmanager
    def as_client(self) -> Iterator[TlsClient | None]:
        """The client with TLS that has this access; None if it has no TLS. Its files are there while this lasts. Raises
        OSError if they cannot be made."""
        if not self.tls:
            yield None
            return
        with _in_memory(self.ca) as ca, _in_memory(self.certificate) as certificate, _in_memory(self.key) as key:
            yield TlsClient(ca, certificate, key, self.server_name)


def _metadata(secret: str | None) -> tuple[tuple[str, str], ...]:
    return () if secret is None else ((SECRET_METADATA, bearer(secret)),)


@contextmanager
def _in_memory(content: bytes | None) -> Iterator[Path | None]:
    """A file with this content, None without: OpenSSL takes certificates and keys from files alone. It is on no
    disk, where a key would have to be guarded."""
    if content is None:
        yield None
        return
    with open(os.memfd_create("inagg"), "wb") as file:
        file.write(content)
        file.flush()
        yield Path(f"/proc/self/fd/{file.fileno()}")


def read_own_secret(path: Path) -> str:
    """The secret in a file that has one, with or without a name before it. Raises `SecurityError`."""
    found = [secret for secrets in read_secrets(path).values() for secret in secrets]
    if len(found) != 1:
        raise SecurityError(f"{path} has {len(found)} secrets: give a file with your own alone")
    return found[0]
