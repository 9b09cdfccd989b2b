"""Addresses at which a switch listens and takes data, with checks of them."""

from __future__ import annotations

import ipaddress
import socket

from inagg_link.addresses import PORT_MAX, SettingsError, join_address, resolved, split_address
from inagg_link.sockopt import ends_of_way
from inagg_wire.layout import DATA_PORT

__all__ = [
    "NotYet", "SettingsError", "check_ports", "data_address", "is_here", "is_unix", "join_address", "literal",
    "resolved", "split_address", "why_not_bound", "with_port",
]  # fmt: skip


class NotYet(SettingsError):
    """Settings that may be right, though now something is missing, such as a name that nobody resolves: a service
    manager should try again."""


def with_port(text: str, default_port: int) -> str:
    """An address that has a port. Raises `SettingsError`."""
    return join_address(*_split(text, default_port))


def _split(text: str, default_port: int) -> tuple[str, int]:
    """The address of `with_port` as (host, port). A number alone, which a resolver takes for a host, is a port without
    one."""
    if text.isascii() and text.isdigit():
        raise SettingsError(f"{text}: give a host before the port, such as 127.0.0.1:{text}")
    return split_address(text, default_port)


def literal(host: str) -> str:
    """The first address of a host, since data planes bind to addresses and not to names. Raises `SettingsError`, and
    `NotYet` for a name that cannot be resolved now."""
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
        raise NotYet(f"{host}: {error.strerror}; give the address itself") from None


def why_not_bound(host: str, port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> OSError | None:
    """The error that keeps a server from having an address; None if nothing does."""
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
    """The address that the first shard binds to: as ``data`` says, and where it does not, the host of ``listen`` and
    the usual port. A switch whose control service takes any free port takes any free ones for data too. Raises
    `SettingsError`."""
    if is_unix(listen):
        control_host, control_port = "127.0.0.1", DATA_PORT
    else:
        control_host, control_port = split_address(listen)
    usual = DATA_PORT if control_port else 0
    if data is None:
        return literal(control_host), usual
    host, port = _split(data, usual)
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
