"""Rigs of the executed Tofino program: the driver that writes its entries, and the reference beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.p4.frames import to_switch
from tests.p4.rig import Rig, comparable, make_network

from inagg_switch.binding import Address
from inagg_switch.p4.counters import FRAME_OVERHEAD_BYTES as OVERHEAD_BYTES
from inagg_switch.p4.p4_driver import P4Driver
from inagg_switch.p4.program import TOFINO

from .chip import Chip

LOOPBACK = ((124, 125, 126), (125,), (127, 124))
"""Ports to the second, third and fourth pass; passes share some, and some share a pass."""


def tofino_rig(addresses: Sequence[str], lanes: int = 32) -> Rig:
    """A switch for jobs of up to so many lanes, with a host for each address."""
    passes = lanes // 32
    network = replace(make_network(addresses, ports=120), loopback=LOOPBACK[: passes - 1])
    chip = Chip(passes)
    return Rig(P4Driver(chip, chip.build, network, name="tofino", program=TOFINO, clear=chip.clear), chip)


def chip_of(rig: Rig) -> Chip:
    assert isinstance(rig.wire, Chip)
    return rig.wire


def alone(rig: Rig, data: bytes, source: Address) -> list[bytes]:
    """A datagram to the switch alone, not to the reference: the UDP payloads of what leaves."""
    host = rig.network.host(source[0])
    assert host is not None
    found = rig.wire.exchange(host.port, to_switch(rig.network, host, source, data), 0)
    return [frame.data[OVERHEAD_BYTES:] for frame in found]


def check_counters(rig: Rig) -> None:
    """Every counter is that of the reference, but for invalid codes, which this program does not count, and for the
    padding of datagrams that are shorter than any contribution, which it does."""
    found, wanted = comparable(rig.driver.counters(0)), comparable(rig.pair.model.counters)
    for counters in (found, wanted):
        for job in counters["jobs"].values():
            del job["invalid_codes"]
    assert found.pop("bytes_in") >= wanted.pop("bytes_in")
    assert found == wanted
