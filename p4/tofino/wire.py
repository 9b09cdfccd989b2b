"""What elements cost on the wire and in the switch, worked out from sizes: the table in p4/README.md.

    python p4/tofino/wire.py

Each packet is counted from its preamble to the gap after it. A worker sends a packet up for each that it gets down, and
the two are equally long, so what holds for one direction holds for both. Nothing here is measured: no packet has gone
through a Tofino (FIT.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from inagg_wire.layout import Encoding, datagram_bytes

PREAMBLE, ETHERNET, IPV4, UDP, CHECKSUM, GAP = 8, 14, 20, 8, 4, 12
FRAME: Final = PREAMBLE + ETHERNET + CHECKSUM + GAP
"""IEEE 802.3: what stands around a packet; the preamble with its delimiter."""

CARRY: Final = 4
"""Bytes in front of a frame between two passes: `carry_t` of packet.p4."""
CHUNK: Final = 32
"""Lanes of a pass."""

LINK_BITS: Final = 10**11
"""A port of Tofino 1, a second."""
PIPE_PORTS: Final = 16
PIPES: Final = 4
PIPE_LOOPBACK: Final = 1
"""Ports that a pipe has for loopback alone, each as fast as another one."""
PIPE_PACKETS: Final = 1_220_000_000
"""One a clock cycle, a second."""


@dataclass(frozen=True)
class Packet:
    """How a system's packets of one size look."""

    name: str
    elements: int
    wire_bytes: int
    passes: int | None = None
    """By which ours are added up."""


def ours(passes: int) -> Packet:
    lanes = passes * CHUNK
    size = FRAME + IPV4 + UDP + datagram_bytes(Encoding.NAT8, lanes)
    return Packet(f"`inagg`, {lanes} lanes", lanes, size, passes)


def switchml(elements: int) -> Packet:
    """Sapio et al., NSDI 2021, as its P4 program (p4lang/p4app-switchML, headers.p4) has it: a header of 8 bytes, an
    exponent of 2, and 32 bits an element."""
    return Packet(f"SwitchML-{elements}", elements, FRAME + IPV4 + UDP + 8 + 2 + 4 * elements)


def atp() -> Packet:
    """Lao et al., NSDI 2021, as its client (in-ATP/ATP, p4ml_struct.h) has it: no UDP, a header of 26 bytes, and 62
    elements of 32 bits."""
    return Packet("ATP", 62, FRAME + IPV4 + 26 + 4 * 62)


PACKETS: Final = (*(ours(passes) for passes in (1, 2, 3, 4)), switchml(64), switchml(256), atp())


def packets_per_s(packet: Packet) -> Fraction:
    """Of a worker whose link is full."""
    return Fraction(LINK_BITS, 8 * packet.wire_bytes)


def loopback_links(packet: Packet) -> Fraction:
    """How many links a pass after the first takes, for each worker whose link is full."""
    return Fraction(packet.wire_bytes + CARRY, packet.wire_bytes)


def workers_in_a_pipe(packet: Packet) -> int:
    """Whose links are full, if the other ports of their pipe are loopback ports, and all passes its own."""
    assert packet.passes is not None
    more = packet.passes - 1
    by_ports = (PIPE_PORTS + PIPE_LOOPBACK * bool(more)) / (1 + more * loopback_links(packet))
    by_packets = PIPE_PACKETS / (packets_per_s(packet) * packet.passes)
    return int(min(PIPE_PORTS, by_ports, by_packets))


def workers_with_chained_pipes(packet: Packet) -> int:
    """The same if each pass has a pipe of its own, whose ports are all loopback ports after the first."""
    assert packet.passes is not None
    if packet.passes > PIPES:
        return 0
    by_ports = PIPE_PORTS + PIPE_LOOPBACK if packet.passes > 1 else PIPE_PORTS
    by_packets = PIPE_PACKETS / packets_per_s(packet)
    return int(min(PIPE_PORTS, by_ports / loopback_links(packet), by_packets))


def row(packet: Packet) -> list[str]:
    rate = packets_per_s(packet)
    cells = [
        packet.name,
        f"{packet.wire_bytes / packet.elements:.2f}",
        f"{float(rate) / 1e6:.1f} M",
        f"{float(rate * packet.elements) / 1e9:.2f} G",
    ]
    if packet.passes is None:
        return [*cells, "", "", "", ""]
    recirculated = (packet.passes - 1) * loopback_links(packet) * LINK_BITS / 10**9
    return [
        *cells,
        str(packet.passes),
        f"{float(recirculated):.0f} Gbit/s" if recirculated else "none",
        str(workers_in_a_pipe(packet)),
        str(workers_with_chained_pipes(packet)),
    ]


COLUMNS: Final = (
    "packets of",
    "wire bytes an element",
    "packets/s",
    "elements/s",
    "passes",
    "recirculated",
    "workers, one pipe",
    "workers, a pipe for each pass",
)


def table() -> str:
    """As Markdown."""
    rows = [list(COLUMNS), ["---"] * len(COLUMNS), *(row(packet) for packet in PACKETS)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
