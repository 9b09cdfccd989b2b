"""Addresses as people write them, host and port, one of which may be left out; and what they stand for here."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from inagg_link.sockopt import ends_of_way
from inagg_wire.layout import DATA_PORT

PORT_MAX: Final = 0xFFFF


class SettingsError(ValueError):
    """Settings that cannot be; the text says what to change."""


def split_address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """``host``, ``host:port`` or ``[v6]:port`` as (host, port). Raises `SettingsError`."""
    host, colon, port_text = text.rpartition(":")
    if host.count(":") >= 2 and not host.startswith("[") and not _is_ipv6(text):
        raise SettingsError(f"{text}: give an IPv6 address in brackets, such as [{host}]:{port_text}")
    if not colon or (host.count(":") and not host.startswith("[")) or text.endswith("]"):
        host, port_text = text, ""  # no port, or an IPv6 address without brackets
    host = host.removeprefix("[").removesuffix("]")
    if port_text:
        if not port_text.isascii() or not port_text.isdigit() or int(port_text) > PORT_MAX:
            raise SettingsError(f"{text}: {port_text!r} is no port; give host:port, with a port from 0 to {PORT_MAX}")
        port = int(port_text)
    elif default_port is not None:
        port = default_port
    else:
        raise SettingsError(f"{text}: give host:port")
    if not host:
        raise SettingsError(f"{text}: give a host before the port, such as 127.0.0.1:{port}")
    return host, port


def _is_ipv6(text: str) -> bool:
    try:
        return bool(ipaddress.IPv6Address(text.partition("%")[0]))
    except ValueError:
        return False


def join_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def with_port(text: str, default_port: int) -> str:
    """An address that has a port. Raises `SettingsError`."""
    return join_address(*split_address(text, default_port))


def literal(host: str) -> str:
    """The first address of a host, since data planes bind to addresses and not to names. Raises `SettingsError`."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    else:
        if address.version == 6 and address.is_link_local:
            raise SettingsError(f"{host} means something on one link alone: give --data an address that all know")
        return str(address)
    try:
        return resolved(host)
    except OSError as error:
        raise SettingsError(f"{host}: {error.strerror}; give the address itself") from None


def resolved(host: str) -> str:
    """The first literal address of a host. Raises OSError."""
    return str(socket.getaddrinfo(host.partition("%")[0], None, type=socket.SOCK_DGRAM)[0][4][0])


def why_not_bound(host: str, port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> OSError | None:
    """Why a server could not have an address; None if it could."""
    try:
        family, *_, name = socket.getaddrinfo(host, port, type=kind)[0]
        with socket.socket(family, kind) as probe:
            if kind == socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: what has ended is free
            probe.bind(name)
    except OSError as error:
        return error
    return None


def is_unix(address: str) -> bool:
    """Whether an address of the control service is that of a Unix socket, as gRPC has them, and not host:port."""
    return address.startswith(("unix:", "unix-abstract:"))


def data_address(listen: str, data: str | None) -> tuple[str, int]:
    """Where the first shard binds to: as ``data`` says, and where it does not, the host of ``listen`` and the usual
    port. A switch whose control service takes any free port takes any free ones for data too. Raises `SettingsError`.
    """
    if is_unix(listen):
        control_host, control_port = "127.0.0.1", DATA_PORT
    else:
        control_host, control_port = split_address(listen)
    usual = DATA_PORT if control_port else 0
    if data is None:
        return literal(control_host), usual
    host, port = split_address(data, usual)
    return literal(host), port


def is_here(address: str) -> bool:
    """Whether host:port, which may be a name, is of this machine: then datagrams can come to it from loopback. True
    where that is not known yet. Raises `SettingsError`."""
    host, port = split_address(address)
    try:
        own, there = ends_of_way(host, port)
    except OSError:
        return True
    return own == there or ipaddress.ip_address(own).is_loopback


def check_ports(port: int, shards: int) -> None:
    """Raises `SettingsError` if there are not enough ports from ``port`` on."""
    if port and port + shards - 1 > PORT_MAX:
        raise SettingsError(f"{shards} shards take the ports from {port} on, and they end at {PORT_MAX}")
