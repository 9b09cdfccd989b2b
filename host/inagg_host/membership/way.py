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


def channel(config: Config, address: str) -> grpc.Channel:
    """Raises `ConfigError` if a file of keys cannot be read."""
    options = (("grpc.enable_http_proxy", 0), *RECONNECT)
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
