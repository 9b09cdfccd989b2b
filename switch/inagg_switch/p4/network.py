"""What is plugged in where: the hosts behind the ports of a P4 switch, and the switch's own address.

A TOML file says it, since a P4 program has no ports of its own accord:

    [switch]
    address = "10.77.0.254"         # where workers send to
    mac = "02:00:0a:4d:00:fe"
    data_port = 47101               # UDP; this is the default

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
from typing import Any, Final

from inagg_wire.layout import DATA_PORT

PORT_MAX: Final = 510
"""bmv2 keeps port 511 to itself: it drops what is sent there."""
MAC: Final = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}")


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
    """``02:00:0a:4d:00:fe`` as 48 bits. Raises `NetworkError`."""
    if not MAC.fullmatch(text):
        raise NetworkError(f"{text!r} is no Ethernet address; write it like 02:00:0a:4d:00:fe")
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


def network_from(description: Mapping[str, Any]) -> Network:
    """The network that ``description`` (a TOML document) says. Raises `NetworkError`."""
    _no_others(description, "the file", {"switch", "host"})
    switch, hosts = description.get("switch"), description.get("host")
    if not isinstance(switch, dict):
        raise NetworkError("a table [switch] with address and mac is missing")
    if not isinstance(hosts, list) or not hosts:
        raise NetworkError("a table [[host]] with address, mac and port for each host is missing")
    _no_others(switch, "[switch]", {"address", "mac", "data_port"})
    found = []
    for place, host in enumerate(hosts, 1):
        where = f"[[host]] number {place}"
        _no_others(host, where, {"address", "mac", "port"})
        found.append(Host(_address(host, where), _mac(host, where), _integer(host, where, "port", 0, PORT_MAX)))
    network = Network(
        address=_address(switch, "[switch]"),
        mac=_mac(switch, "[switch]"),
        hosts=tuple(found),
        data_port=_integer(
            switch | {"data_port": switch.get("data_port", DATA_PORT)}, "[switch]", "data_port", 1, 0xFFFF
        ),
    )
    for name in ("address", "mac"):
        values = [getattr(network, name), *(getattr(host, name) for host in network.hosts)]
        if len(set(values)) < len(values):
            raise NetworkError(f"two of switch and hosts have the same {name}")
    return network


def _no_others(table: Mapping[str, Any], where: str, names: set[str]) -> None:
    for name in table:
        if name not in names:
            raise NetworkError(f"{where} has {name!r}; it may have {', '.join(sorted(names))}")


def _address(table: Mapping[str, Any], where: str) -> str:
    try:
        return str(ipaddress.IPv4Address(str(table.get("address"))))
    except ValueError:
        raise NetworkError(f"{where}: address {table.get('address')!r} is no IPv4 address") from None


def _mac(table: Mapping[str, Any], where: str) -> int:
    try:
        return mac_number(str(table.get("mac")))
    except NetworkError as error:
        raise NetworkError(f"{where}: mac {error}") from None


def _integer(table: Mapping[str, Any], where: str, name: str, least: int, most: int) -> int:
    value = table.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise NetworkError(f"{where}: {name} {value!r} is no number from {least} to {most}")
    return value


def network_toml(network: Network) -> str:
    """The TOML document that `network_from` reads back."""
    parts = [
        f'[switch]\naddress = "{network.address}"\nmac = "{mac_text(network.mac)}"\ndata_port = {network.data_port}\n'
    ]
    parts += [
        f'[[host]]\naddress = "{host.address}"\nmac = "{mac_text(host.mac)}"\nport = {host.port}\n'
        for host in network.hosts
    ]
    return "\n".join(parts)
