"""The way from a rank to a switch: the channel to its control service, and addresses."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import grpc

from inagg_host.config import Config, ConfigError

RECONNECT = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
"""gRPC's own waits grow to two minutes, and a switch that is back would not be noticed for so long."""

KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 60_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""A connection on which nothing passes any more is given up for a new one. Else TCP would go on with it, send again
less and less often, and not notice for minutes that the way is open again.

The keepalive's timeout is TCP_USER_TIMEOUT of the socket: the system ends the connection when the other machine has
acknowledged nothing for so long, of heartbeats, or of the pings of who waits for others to join. Systems acknowledge
for processes that are held, too, so none of them loses its connection. Ten seconds are as long as a switch waits for
heartbeats, if nobody has asked for another limit: before, sums go on, and a way that opens again costs nothing.

The timeout of pings is for a process that does not answer, which heartbeats notice sooner: it is long, so that none is
given up for it that was not before. A server ends connections with too many pings, which are to be 5 s apart
(`inagg_switch.service.server.OPTIONS`)."""


def channel(config: Config, address: str) -> grpc.Channel:
    """Raises `ConfigError` if a file of keys cannot be read."""
    options = (("grpc.enable_http_proxy", 0), *RECONNECT, *KEEPALIVE)
    if config.ca is None:
        return grpc.insecure_channel(address, options)

    def read(path: str | None) -> bytes | None:
        if path is None:
            return None
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}. See INAGG_CA, _CERTIFICATE and _KEY") from None

    credentials = grpc.ssl_channel_credentials(read(config.ca), read(config.key), read(config.certificate))
    return grpc.secure_channel(address, credentials, options)


def is_loopback(host: str) -> bool:
    """Whether what comes from the literal address ``host`` stays on this machine."""
    return ipaddress.ip_address(host).is_loopback


def split(switch: str) -> tuple[str, int]:
    host, _, port = switch.rpartition(":")
    return host.strip("[]"), int(port)


def resolve(host: str) -> str:
    """A host, which may be a name, as a literal address. Raises OSError."""
    return str(socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_DGRAM)[0][4][0])
