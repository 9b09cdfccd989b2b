"""What a rack behind a Tofino switch would reach, from what workers and the software switch reach on this machine.

A block takes one datagram up and one down on every worker's link. Three things bound how many blocks there are in a
second, and the least of them counts:

    worker   a worker that has a core of its own handles so many datagrams as here in the time that it was busy, that
             is, neither waiting for the network nor for other ranks: the rest of what this machine does is not its own;
    link     its rate, by the bytes of a datagram on the wire, with preamble and gap;
    switch   a pipe takes a packet a clock cycle. A block of `PASS_LANES` lanes or fewer takes one pass from each
             worker; one of more takes as many passes as they fill, each of them a packet more to a pipe.

The windows must cover the round trip; those that a switch chooses do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WIRE_OVERHEAD_BYTES: Final = 7 + 1 + 14 + 20 + 8 + 4 + 12
"""Of a datagram on Ethernet (IEEE 802.3, RFC 791, RFC 768): preamble, delimiter, header, IPv4, UDP, checksum, gap."""
PASS_LANES: Final = 32
"""What `p4/tofino` adds in one pass."""
PIPE_PACKETS_PER_S: Final = 1.22e9
"""Of a pipe of Tofino 1, one in each cycle of its clock of 1.22 GHz."""
LINK_BITS_PER_S: Final = 100e9


@dataclass(frozen=True, slots=True)
class Rack:
    """The prediction: ``elements_per_s``, and of what it is the bound."""

    elements_per_s: float
    bound: str
    worker_elements_per_s: float
    link_elements_per_s: float
    switch_elements_per_s: float


def wire_bytes(payload_bytes: float, datagrams: float) -> float:
    """On the wire, of so many datagrams with so much UDP payload in all."""
    return payload_bytes + datagrams * WIRE_OVERHEAD_BYTES


def predict(
    workers: int, lanes: int, worker_elements_per_s: float, wire_bytes_per_element: float,
    link_bits_per_s: float = LINK_BITS_PER_S,
) -> Rack:  # fmt: skip
    """``worker_elements_per_s``: of one that is always busy. All ``workers`` are behind one pipe, as must be."""
    passes = -(-lanes // PASS_LANES)
    bounds = {
        "worker": worker_elements_per_s,
        "link": link_bits_per_s / 8 / wire_bytes_per_element,
        "switch": PIPE_PACKETS_PER_S / passes / workers * lanes,
    }
    bound = min(bounds, key=lambda name: bounds[name])
    return Rack(bounds[bound], bound, bounds["worker"], bounds["link"], bounds["switch"])


ASSUMPTIONS: Final = (
    f"rack: predicted for a Tofino 1, links of {LINK_BITS_PER_S / 1e9:.0f} Gbit/s, a core for each worker: the least "
    "of what a worker handles while it is busy (measured here), the link's rate by bytes on the wire, and "
    f"{PIPE_PACKETS_PER_S / 1e9:.2f} G packets/s of one pipe, where {PASS_LANES} lanes of a worker's block take a pass "
    "each. Of cards and drivers it knows nothing: here datagrams cross the loopback in batches."
)
