"""What elements cost on the wire and in the switch, worked out from sizes: the table in p4/README.md.

    python p4/tofino/wire.py

Each packet is counted from its preamble to the gap after it. A worker sends a packet up for each that it gets down, and
the two are equally long, so what holds for one direction holds for both. Nothing here is measured: no packet has gone
through a Tofino (FIT.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inagg_switch.p4.tofino.tofino_program import CHUNK, PASSES
from inagg_testbed.bench.rack import (
    CARRY_BYTES,
    LINK_BITS_PER_S,
    PIPE_PORTS,
    pipe_packets_per_s,
    wire_bytes,
)
from inagg_wire.layout import Encoding, datagram_bytes

UDP_BYTES: Final = 8


@dataclass(frozen=True)
class Packet:
    """How a system's packets of one size look."""

    name: str
    elements: int
    wire_bytes: int
    passes: int | None = None
    """By which ours are added up."""


def _on_the_wire(payload: int) -> int:
    """Bytes of a datagram with so much payload."""
    return int(wire_bytes(payload, 1))


def ours(passes: int) -> Packet:
    lanes = passes * CHUNK
    return Packet(f"`inagg`, {lanes} lanes", lanes, _on_the_wire(datagram_bytes(Encoding.NAT8, lanes)), passes)


def switchml(elements: int) -> Packet:
    """Sapio et al., NSDI 2021, as its P4 program (p4lang/p4app-switchML, headers.p4) has it: a header of 8 bytes, an
    exponent of 2, and 32 bits an element."""
    return Packet(f"SwitchML-{elements}", elements, _on_the_wire(8 + 2 + 4 * elements))


def atp() -> Packet:
    """Lao et al., NSDI 2021, as its client (in-ATP/ATP, p4ml_struct.h) has it: no UDP, a header of 26 bytes, and 62
    elements of 32 bits."""
    return Packet("ATP", 62, _on_the_wire(26 + 4 * 62) - UDP_BYTES)


PACKETS: Final = (*(ours(passes) for passes in range(1, PASSES + 1)), switchml(64), switchml(256), atp())


def packets_per_s(packet: Packet) -> float:
    """Of a worker whose link is full."""
    return LINK_BITS_PER_S / (8 * packet.wire_bytes)


def workers_with_full_links(packet: Packet, *, chained: bool) -> int:
    """How many can have them. ``chained``: see `pipe_packets_per_s`."""
    assert packet.passes is not None
    takes = (pipe_packets_per_s(n, packet.passes, packet.wire_bytes, chained=chained) for n in range(1, PIPE_PORTS + 1))
    return sum(bound >= packets_per_s(packet) for bound in takes)


def row(packet: Packet) -> list[str]:
    rate = packets_per_s(packet)
    cells = [
        packet.name,
        f"{packet.wire_bytes / packet.elements:.2f}",
        f"{rate / 1e6:.1f} M",
        f"{rate * packet.elements / 1e9:.2f} G",
    ]
    if packet.passes is None:
        return [*cells, "", "", "", ""]
    recirculated = (packet.passes - 1) * rate * 8 * (packet.wire_bytes + CARRY_BYTES) / 1e9
    return [
        *cells,
        str(packet.passes),
        f"{recirculated:.0f} Gbit/s" if recirculated else "none",
        str(workers_with_full_links(packet, chained=False)),
        str(workers_with_full_links(packet, chained=True)),
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
