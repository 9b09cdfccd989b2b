"""Rate that a rack behind a Tofino switch would reach, from what workers and the software switch reach on this machine.

A block takes one datagram up and one down on every worker's link. Three things bound how many blocks there are in a
second, and the least of them counts:

    worker   a worker that has a core of its own handles so many datagrams as here in the time that it was busy, that
             is, neither waiting for the network nor for other ranks: the rest of what this machine does is not its own;
    link     its rate, by the bytes of a datagram on the wire, with preamble and gap;
    switch   a pipe takes a packet a clock cycle, and ports in loopback bring datagrams of more than `PASS_LANES` lanes
             to their further passes, with the rate of a port each.

The windows must cover the round trip; those that a switch chooses do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inagg_switch.p4.tofino.tofino_program import CHUNK as PASS_LANES
from inagg_switch.p4.tofino.tofino_program import PASSES

WIRE_OVERHEAD_BYTES: Final = 7 + 1 + 14 + 20 + 8 + 4 + 12
"""Overhead of a datagram on Ethernet (IEEE 802.3, RFC 791, RFC 768): preamble, delimiter, header, IPv4, UDP, checksum
and gap."""
CARRY_BYTES: Final = 4
"""In front of a frame between two passes: `carry_t` of p4/tofino/packet.p4."""
LINK_BITS_PER_S: Final = 100e9
"""Rate of a port of Tofino 1."""
PIPE_PORTS: Final = 16
"""Ports of such a rate in a pipe."""
PIPE_LOOPBACK: Final = 1
"""Ports that a pipe has for loopback alone, each as fast as another one."""
PIPE_PACKETS_PER_S: Final = 1.22e9
"""Packets that a pipe of Tofino 1 takes, one in each cycle of its clock of 1.22 GHz."""


@dataclass(frozen=True, slots=True)
class Rack:
    """The prediction: ``elements_per_s``, and of what it is the bound."""

    elements_per_s: float
    bound: str


def wire_bytes(payload_bytes: float, datagrams: float) -> float:
    """On the wire, of so many datagrams with so much UDP payload in all."""
    return payload_bytes + datagrams * WIRE_OVERHEAD_BYTES


def pipe_packets_per_s(workers: int, passes: int, packet_bytes: float, *, chained: bool) -> float:
    """Packets a second that a switch takes from each of ``workers``, `PIPE_PORTS` at most, in one pipe, if they have
    ``packet_bytes`` on the wire. ``chained``: each pass has a pipe of its own, all of whose ports are in loopback; else
    all passes are in the workers' pipe, whose other ports are."""
    here = 1 if chained else passes
    bound = PIPE_PACKETS_PER_S / (workers * here)
    if passes > 1:
        ports, times = (PIPE_PORTS, 1) if chained else (PIPE_PORTS - workers, passes - 1)
        bits = 8 * (packet_bytes + CARRY_BYTES) * workers * times
        bound = min(bound, (ports + PIPE_LOOPBACK) * LINK_BITS_PER_S / bits)
    return bound


def predict(
    workers: int, lanes: int, worker_elements_per_s: float, wire_bytes_per_element: float,
    link_bits_per_s: float = LINK_BITS_PER_S,
) -> Rack | None:  # fmt: skip
    """``worker_elements_per_s``: of one that is always busy. None if the switch cannot: more workers than ports in a
    pipe, more lanes than passes add up."""
    passes = -(-lanes // PASS_LANES)
    if workers > PIPE_PORTS or passes > PASSES:
        return None
    size = wire_bytes_per_element * lanes
    bounds = {
        "worker": worker_elements_per_s,
        "link": link_bits_per_s / 8 / wire_bytes_per_element,
        "switch": lanes * max(pipe_packets_per_s(workers, passes, size, chained=way) for way in (False, True)),
    }
    bound = min(bounds, key=lambda name: bounds[name])
    return Rack(bounds[bound], bound)


ASSUMPTIONS: Final = (
    f"rack: predicted for a Tofino 1, links of {LINK_BITS_PER_S / 1e9:.0f} Gbit/s, a core for each worker: the least "
    "of what a worker handles while it is busy (measured here), the link's rate by bytes on the wire, and what the "
    f"switch takes: {PIPE_PACKETS_PER_S / 1e9:.2f} G packets/s of one pipe, where {PASS_LANES} lanes of a worker's "
    "block take a pass each, by way of ports in loopback. Empty where a Tofino cannot: more than "
    f"{PASS_LANES * PASSES} lanes, or {PIPE_PORTS} workers. Of cards and drivers it knows nothing: here datagrams "
    "cross the loopback in batches."
)
