"""The way from a rank to a switch: the channel to its control service, and addresses."""

from __future__ import annotations

import ipaddress

import grpc

from inagg_host.config import Config, ConfigError
from inagg_link.tls import OwnFileError, read_file
from inagg_proto import KEEPALIVE, NO_PROXY, RECONNECT


def channel(config: Config, address: str) -> grpc.Channel:
    """Raises `ConfigError` if a file of keys cannot be read."""
    options = (*NO_PROXY, *RECONNECT, *KEEPALIVE)
    if config.ca is None:
        return grpc.insecure_channel(address, options)

    try:
        files = [None if path is None else read_file(path) for path in (config.ca, config.key, config.certificate)]
    except OwnFileError as error:
        raise ConfigError(f"{error}. See INAGG_CA, _CERTIFICATE and _KEY") from None
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*files), options)


def is_loopback(host: str) -> bool:
    """Whether what comes from the literal address ``host`` stays on this machine."""
    return ipaddress.ip_address(host).is_loopback
