"""The gRPC channel from a rank to the control service of a switch."""

from __future__ import annotations

import ctypes
import threading
from typing import Final

import grpc

from inagg_host.config import Config, ConfigError
from inagg_link.tls import OwnFileError, read_file
from inagg_proto import KEEPALIVE, NO_PROXY, RECONNECT

CLOSE_S: Final = 2.0
"""How long it is waited for that a channel closes, which takes milliseconds; after that it is left alone."""

_abandoned: list[grpc.Channel] = []


def open_channel(config: Config, address: str) -> grpc.Channel:
    """A channel to the control service at ``address``. Raises `ConfigError` if a file of keys cannot be read."""
    options = (*NO_PROXY, *RECONNECT, *KEEPALIVE)
    if config.ca is None:
        return grpc.insecure_channel(address, options)

    try:
        files = [None if path is None else read_file(path) for path in (config.ca, config.key, config.certificate)]
    except OwnFileError as error:
        raise ConfigError(f"{error}. See INAGG_CA, _CERTIFICATE and _KEY") from None
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*files), options)


def close_channel(channel: grpc.Channel) -> None:
    """Close it, in `CLOSE_S` at most: gRPC itself waits without limit until all calls have ended. No error if it was
    abandoned."""
    if channel in _abandoned:
        return
    closing = threading.Thread(target=channel.close, name="inagg-close", daemon=True)
    try:
        closing.start()
    except RuntimeError:  # no thread, or the interpreter ends
        channel.close()
    else:
        closing.join(CLOSE_S)


def abandon(channel: grpc.Channel) -> None:
    """Never close it. If gRPC could not start the thread of a call, this one never ends, nor does any that begins
    later."""
    _abandoned.append(channel)
    # Where the interpreter's end took it from the list, that would close it.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel))
