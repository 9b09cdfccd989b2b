"""The software switch that `inagg switch` was asked for, and what it is where the options leave that open."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping
from typing import Any

from inagg_link.faults import Faults
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500, UDP_PAYLOAD_BYTES_LOOPBACK

from ..addresses import SettingsError
from ..multicast_groups import AUTO, OFF, parse_prefix
from ..software.config import SoftwareConfig


def software_from(options: Mapping[str, Any], host: str, port: int) -> SoftwareConfig:
    """The software switch that is asked for, with data planes at the literal address ``host``, from UDP port ``port``
    on. Raises `SettingsError`."""
    datagram_bytes = options["datagram_bytes"] or usual_datagram_bytes(host)
    faults = faults_from(options)
    if faults is None and options["fault_seed"] is not None:
        raise SettingsError("--fault-seed has nothing to seed: give --loss, --duplicate, --reorder or --corrupt too")
    return SoftwareConfig(
        host=host,
        port=port,
        shards=options["shards"],
        slots=options["slots"] or usual_slots(datagram_bytes),
        datagram_bytes=datagram_bytes,
        offload=None if options["offload"] else False,
        multicast=multicast_from(options["multicast"], host, faults),
        faults=faults,
        fault_seed=secrets.randbits(32) if options["fault_seed"] is None else options["fault_seed"],
        capture=options["capture"],
        capture_bytes=round(options["capture_limit"] * 1e6),
        record=options["record"],
        log_format=options["log_format"],
        log_level=options["log_level"],
    )


def faults_from(options: Mapping[str, Any]) -> Faults | None:
    """The faults that are asked for, None if there are none."""
    probabilities = {
        "drop": options["loss"],
        "duplicate": options["duplicate"],
        "reorder": options["reorder"],
        "corrupt": options["corrupt"],
    }
    return Faults(**probabilities) if any(probabilities.values()) else None


def multicast_from(asked: str, host: str, faults: Faults | None) -> str:
    """`SoftwareConfig.multicast`, as ``asked`` for, of a switch whose data planes have the literal address ``host``.
    Raises `SettingsError`."""
    if asked in (AUTO, OFF):
        return asked
    try:
        prefix = parse_prefix(asked)
    except ValueError as error:
        raise SettingsError(f"--multicast: {error}") from None
    address, version = ipaddress.ip_address(host), ipaddress.ip_network(prefix).version
    if address.version != version or address.is_unspecified:
        raise SettingsError(
            f"--multicast {asked} needs an IPv{version} address of this switch's own in --data, not {host}"
        )
    if faults is not None:
        raise SettingsError(
            f"--multicast {asked} and faults do not go together: the copies of a result are to be harmed one by one"
        )
    return prefix


def usual_datagram_bytes(host: str) -> int:
    """The most UDP payload of a datagram, if nobody says, for a switch that workers reach at the literal address
    ``host``: more than Ethernet carries only where no datagram can leave the machine."""
    return UDP_PAYLOAD_BYTES_LOOPBACK if ipaddress.ip_address(host).is_loopback else UDP_PAYLOAD_BYTES_1500


def usual_slots(datagram_bytes: int) -> int:
    """Slots of a shard, if nobody says, a power of two: they take about the same memory whatever their size."""
    usual = SoftwareConfig()
    slots = min(usual.slots, usual.slots * usual.datagram_bytes // datagram_bytes)
    return 1 << (slots - 1).bit_length()
