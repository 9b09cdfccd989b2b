"""Addresses as people write them, host and port, one of which may be left out; and what they stand for here."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final

Address = tuple[str, int]
"""(host, port). The host is a literal IPv4 or IPv6 address as `canonical` writes it, never a name to look up."""

PORT_MAX: Final = 0xFFFF


class SettingsError(ValueError):
    """Settings that cannot be; the text says what to change."""


def canonical(address: Address) -> Address:
    """The address as links write and compare it. ValueError: the host is no literal address, or no such port."""
    host, port = address
    if not 0 <= port <= PORT_MAX:
        raise ValueError(f"a UDP port is 0..{PORT_MAX}, not {port}")
    return str(ipaddress.ip_address(host)), port


def split_address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """``host``, ``host:port`` or ``[v6]:port`` as (host, port). Raises `SettingsError`."""
    host, colon, port_text = text.rpartition(":")
    if host.count(":") >= 2 and not host.startswith("[") and not _is_ipv6(text):
        raise SettingsError(f"{text}: give an IPv6 address in brackets, such as [{host}]:{port_text}")
    if not colon or (host.count(":") and not host.startswith("[")) or text.endswith("]"):
        host, port_text = text, ""  # no port, or an IPv6 address without brackets
    host = host.removeprefix("[").removesuffix("]")
    if re.search(r"[\s/]", host):
        raise SettingsError(f"{text}: {host!r} is no host; give host:port alone, such as 127.0.0.1:47100")
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


def resolved(host: str) -> str:
    """The first literal address of a host. Raises OSError."""
    return str(socket.getaddrinfo(host.partition("%")[0], None, type=socket.SOCK_DGRAM)[0][4][0])
