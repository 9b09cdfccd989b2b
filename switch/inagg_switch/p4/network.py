"""Network of a P4 switch: the hosts behind its ports, and the switch's own address.

A TOML file says it, since a P4 program has no ports of its own accord:

    [switch]
    address = "10.77.0.254"         # where workers send to
    mac = "02:00:0a:4d:00:fe"
    data_port = 47101               # UDP; this is the default
    loopback = [[68], [196]]        # Tofino: ports that come back, see `Network.loopback`

    [[host]]
    address = "10.77.0.1"
    mac = "02:00:0a:4d:00:01"
    port = 0                        # of the switch
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from inagg_wire.layout import DATA_PORT

PORT_MAX: Final = 510
"""bmv2 keeps port 511 to itself: it drops what is sent there."""
MAC: Final = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}")
MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
"""Text of msgspec on a missing field."""
TABLES: Final = {"switch": "[switch]", "host": "[[host]]"}
GROUP_BIT: Final = 1 << 40
"""Bit of an Ethernet address of many: multicast, broadcast (IEEE 802, 8.2.2)."""


class NetworkError(ValueError):
    """The description cannot be; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine behind a port of the switch."""

    address: str
    """IPv4."""
    mac: int
    """48 bits."""
    port: int


@dataclass(frozen=True, slots=True)
class Network:
    """The switch and its hosts."""

    address: str
    """IPv4 of the switch itself."""
    mac: int
    hosts: tuple[Host, ...]
    data_port: int = DATA_PORT
    """UDP."""
    loopback: tuple[tuple[int, ...], ...] = ()
    """Ports, in a switch that adds up a datagram in several passes, by which it comes to the second one, the third,
    and so on: what leaves by such a port comes in by it."""

    @property
    def ports(self) -> frozenset[int]:
        """Ports with a host."""
        return frozenset(host.port for host in self.hosts)

    def host(self, address: str) -> Host | None:
        """The host with an IPv4 address, None if there is none."""
        return next((host for host in self.hosts if host.address == address), None)


def number(address: str) -> int:
    """An IPv4 address as 32 bits."""
    return int(ipaddress.IPv4Address(address))


def mac_number(text: str) -> int:
    """``02:00:0a:4d:00:fe`` as 48 bits. Raises ValueError."""
    if not MAC.fullmatch(text):
        raise ValueError(f"{text!r} is no Ethernet address; write it like 02:00:0a:4d:00:fe")
    return int(text.replace(":", ""), 16)


def mac_text(mac: int) -> str:
    """48 bits as ``02:00:0a:4d:00:fe``."""
    return mac.to_bytes(6, "big").hex(":")


def read_network(path: Path) -> Network:
    """The network that a TOML file describes. Raises `NetworkError`."""
    try:
        description = tomllib.loads(path.read_text())
    except OSError as error:
        raise NetworkError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise NetworkError(f"{path} is no TOML: {error}") from None
    try:
        return network_from(description)
    except NetworkError as error:
        raise NetworkError(f"{path}: {error}") from None


class _Ipv4(str):
    """An IPv4 address of the file, as text."""


class _Mac(int):
    """An Ethernet address of the file, as a number."""


_Port = Annotated[int, msgspec.Meta(ge=0, le=PORT_MAX)]


class _Switch(msgspec.Struct, forbid_unknown_fields=True):
    address: _Ipv4
    mac: _Mac
    data_port: Annotated[int, msgspec.Meta(ge=1, le=0xFFFF)] = DATA_PORT
    loopback: tuple[tuple[_Port, ...], ...] = ()


class _Host(msgspec.Struct, forbid_unknown_fields=True):
    address: _Ipv4
    mac: _Mac
    port: _Port


class _File(msgspec.Struct, forbid_unknown_fields=True):
    switch: _Switch
    host: Annotated[tuple[_Host, ...], msgspec.Meta(min_length=1)]


def _address(kind: type, value: Any) -> Any:
    """Convert an address of the file. Raises ValueError, to which msgspec adds where it stands."""
    if kind is _Mac:
        mac = mac_number(str(value))
        if not mac or mac & GROUP_BIT:
            raise ValueError(f"{value!r} is the Ethernet address of no single machine")
        return _Mac(mac)
    try:
        address = ipaddress.IPv4Address(str(value))
    except ipaddress.AddressValueError:
        raise ValueError(f"{value!r} is no IPv4 address") from None
    # Nobody sends there from another machine, or answers from there: ranks would wait for results in vain.
    if address.is_unspecified or address.is_multicast or address.is_reserved:
        raise ValueError(f"{value!r} is the address of no machine in a network")
    return _Ipv4(address)


def network_from(description: Mapping[str, Any]) -> Network:
    """The network that ``description`` (a TOML document) says. Raises `NetworkError`."""
    try:
        file: Any = msgspec.convert(description, _File, dec_hook=_address)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        if missing := MISSING.fullmatch(what):
            name = missing[1] if where else TABLES[missing[1]]
            what = f"there is no {name} in it; see p4/README.md"
        raise NetworkError(f"{where.strip('.`') or 'the file'}: {what}") from None
    hosts = tuple(Host(host.address, host.mac, host.port) for host in file.host)
    loopback = file.switch.loopback
    network = Network(file.switch.address, file.switch.mac, hosts, file.switch.data_port, loopback)
    for name in ("address", "mac"):
        values = [getattr(network, name), *(getattr(host, name) for host in network.hosts)]
        if len(set(values)) < len(values):
            raise NetworkError(f"two of switch and hosts have the same {name}")
    for after, ports in enumerate(loopback):
        where = f"switch.loopback[{after}]"
        if not ports:
            raise NetworkError(f"{where}: name at least one port, or leave the pass out")
        if len(set(ports)) < len(ports):
            raise NetworkError(f"{where}: a port stands there twice")
        for host in hosts:
            if host.port in ports:
                raise NetworkError(
                    f"{where}: {host.address} is on port {host.port}; choose ports that no cable leaves by, as what "
                    "comes in by them is taken for the switch's own"
                )
    return network


def network_toml(network: Network) -> str:
    """The TOML document that `network_from` reads back."""
    loopback = f"loopback = {[list(ports) for ports in network.loopback]}\n" if network.loopback else ""
    parts = [
        f'[switch]\naddress = "{network.address}"\nmac = "{mac_text(network.mac)}"\n'
        f"data_port = {network.data_port}\n{loopback}"
    ]
    parts += [
        f'[[host]]\naddress = "{host.address}"\nmac = "{mac_text(host.mac)}"\nport = {host.port}\n'
        for host in network.hosts
    ]
    return "\n".join(parts)
