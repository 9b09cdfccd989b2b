"""The P4 switch that `inagg switch --target` was asked to drive, and which options say something to which target."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..addresses import SettingsError, with_port
from ..p4 import BFRUNTIME_PORT, P4RUNTIME_PORT, THRIFT_PORT
from ..p4.builds import Build, build
from ..p4.network import Network, read_network
from ..service.access import Access
from .switch_options import switch


@dataclass(frozen=True, slots=True)
class Bmv2Settings:
    """A bmv2 switch to drive; addresses are host:port."""

    address: str
    """Address of its P4Runtime server."""
    thrift: str | None
    device: int
    program: Build
    network: Network
    access: Access


@dataclass(frozen=True, slots=True)
class TofinoSettings:
    """A Tofino switch to drive."""

    address: str
    """Address of its BF Runtime server, host:port."""
    device: int
    program: str | None
    """The name by which it runs our program; None: the usual one."""
    network: Network
    access: Access


SOFTWARE_ONLY: Final = (
    "data", "shards", "shard_restarts", "slots", "datagram_bytes", "offload", "multicast", "capture", "capture_limit",
    "record", "fault_seed", "loss", "duplicate", "reorder", "corrupt",
)  # fmt: skip
"""Options of the software switch alone."""
P4_ONLY: Final = ("device_id", "program", "network", "p4_tls", "p4_ca", "p4_cert", "p4_key", "p4_name")
"""Options of all P4 switches."""
OPTIONS_OF: Final[dict[str, tuple[str, ...]]] = {
    "software": SOFTWARE_ONLY,
    "bmv2": ("p4runtime", "thrift", *P4_ONLY),
    "tofino": ("bfrt", *P4_ONLY),
}
"""Options that not every target has."""


def p4_from(options: Mapping[str, Any]) -> Bmv2Settings | TofinoSettings | None:
    """The P4 switch that is asked for; None if it is the software switch. Raises ValueError."""
    target = options["target"]
    unset = switch.make_context("switch", []).params  # what options are if none is given
    for name in itertools.chain(*OPTIONS_OF.values()):
        if name not in OPTIONS_OF[target] and options[name] != unset[name]:
            raise SettingsError(f"--{name.replace('_', '-')} says nothing to --target {target}")
    if target == "software":
        return None
    if target == "bmv2" and options["program"] is None:
        raise SettingsError(f"--target {target} needs --program, to know which program to load")
    if options["network"] is None:
        raise SettingsError(f"--target {target} needs --network, to know what is plugged in where")
    device, network = options["device_id"], read_network(options["network"])
    names = {"ca": "p4_ca", "certificate": "p4_cert", "key": "p4_key", "server_name": "p4_name"}
    files = {field: options[name] for field, name in names.items()}
    access = Access(tls=options["p4_tls"] or any(files.values()), **files)
    if target == "tofino":
        address = with_port(options["bfrt"] or "127.0.0.1", BFRUNTIME_PORT)
        return TofinoSettings(address, device, options["program"], network, access)
    address = with_port(options["p4runtime"] or "127.0.0.1", P4RUNTIME_PORT)
    thrift = with_port(options["thrift"], THRIFT_PORT) if options["thrift"] is not None else None
    return Bmv2Settings(address, thrift, device, build(options["program"]), network, access)
