"""A P4 switch beside the reference model and the fast switch: the same datagrams to all, and the same must come out.

The P4 switch is the interpreter or a real bmv2; either is a `Wire` with its driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from tests.p4.bmv2.switch import Frame
from tests.switch.aggregation.pair import Pair

from inagg_switch.binding import Address, Binding
from inagg_switch.driver import Counters, SlotWait
from inagg_switch.p4.network import Host, Network, mac_number
from inagg_switch.p4.p4_driver import P4Driver

from .frames import describe, from_switch, to_switch

SWITCH_MAC = mac_number("02:00:0a:4d:00:fe")
SWITCH_ADDRESS = "10.77.0.254"


class Wire(Protocol):
    """The ports of a switch."""

    def exchange(self, port: int, frame: bytes, expected: int) -> list[Frame]:
        """Send a frame into a port: all that leaves for it, in any order, which should be ``expected`` frames."""
        ...


def make_network(
    addresses: Sequence[str], first_port: int = 0, ports: int = 512, switch: str = SWITCH_ADDRESS
) -> Network:
    """A network with a host for each address, on ports that count from ``first_port``; with more hosts than ``ports``
    they share them."""
    hosts = [
        Host(address, mac_number("02:00:0a:4d:01:00") + place, first_port + place % ports)
        for place, address in enumerate(dict.fromkeys(addresses))
    ]
    return Network(switch, SWITCH_MAC, tuple(hosts))


class Rig:
    """Model, aggregator and a P4 switch."""

    def __init__(self, driver: P4Driver, wire: Wire) -> None:
        build = driver.build
        self.driver = driver
        self.network = driver.network
        self.wire = wire
        self.pair = Pair(build.slots, build.lanes, build.jobs)

    def bind(self, binding: Binding) -> None:
        self.pair.bind(binding)
        self.driver.bind(0, binding)

    def unbind(self, job: int) -> None:
        self.pair.unbind(job)
        self.driver.unbind(0, job)

    def receive(self, payload: bytes, source: Address) -> list[Any]:
        """One datagram to all; the model's outputs."""
        host = self.network.host(source[0])
        assert host is not None, f"no host has {source[0]}"
        outputs = self.pair.receive(payload, source) if payload else self.pair.model.receive(payload, source)
        wanted = []
        for output in outputs:
            for to in output.to:
                there = self.network.host(to[0])
                assert there is not None
                wanted.append(Frame(there.port, from_switch(self.network, there, to, output.data)))
        frame = to_switch(self.network, host, source, payload)
        found = self.wire.exchange(host.port, frame, len(wanted))
        assert sorted(found) == sorted(wanted), (
            f"for {payload.hex()} from {source}:\n  P4 sent {[(f.port, describe(f.data)) for f in found]}\n"
            f"  the model {[(f.port, describe(f.data)) for f in wanted]}"
        )
        return outputs

    def wrong_port(self, payload: bytes, source: Address, stranger: Address) -> None:
        """A datagram with the address of ``source`` comes in where ``stranger`` is. The model has no ports: it sees a
        stranger's datagram."""
        there = self.network.host(stranger[0])
        assert there is not None
        assert self.pair.receive(payload, stranger) == []
        assert self.wire.exchange(there.port, to_switch(self.network, there, source, payload), 0) == []

    def waits(self, job: int, limit: int = 9) -> tuple[int, list[SlotWait]]:
        """What the driver says of slots that wait, which it can."""
        told = self.driver.waiting(0, job, limit)
        assert told is not None
        return told

    def check_counters(self) -> None:
        """Every counter of the P4 switch is that of the model."""
        found, wanted = self.driver.counters(0), self.pair.model.counters
        assert comparable(found) == comparable(wanted)


def comparable(counters: Counters) -> dict[str, Any]:
    """What any switch counts alike; drops by name, without those that are 0."""
    fields = asdict(counters)
    for name in ("cpu_s", "send_refused", "kernel_drops", "link_drops", "not_captured", "faults"):
        del fields[name]
    fields["drops"] = {reason.label: count for reason, count in sorted(counters.drops.items()) if count}
    return fields
