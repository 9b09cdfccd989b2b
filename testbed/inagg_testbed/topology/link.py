"""A shaped link: its rate, what a bucket and a queue of that rate must hold, and what it can carry.

The rate is that of Ethernet frames without preamble, frame check sequence and gap, as Linux counts them: of a train
that UDP_SEGMENT or TSO made, every datagram counts with its own headers (``qdisc_pkt_len_init`` in net/core/dev.c).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ETHERNET_HEADER_BYTES = 14
IPV4_HEADER_BYTES = 20
UDP_HEADER_BYTES = 8
HEADER_BYTES = ETHERNET_HEADER_BYTES + IPV4_HEADER_BYTES + UDP_HEADER_BYTES
"""Bytes of a datagram on a link beyond its payload."""

TRAIN_BYTES = 72 << 10
"""More than any train of segments has: 64 KiB of payload, and headers of 66 bytes (TCP) for each 1448 of them."""

BURST_S = 1e-3
"""How long the bucket lets a link make up for a timer that came late: on a busy machine that is about a millisecond."""

QUEUE_S = 16e-3
QUEUE_BYTES_LEAST = 1 << 20
"""Capacity of a queue: as the port of a switch does, a megabyte, more where that is not 16 ms. The default window of a
worker is 0.75 MB, so a lone job does not overrun it."""

UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]bit)(?:/s)?", re.IGNORECASE)

UNSHAPED = "none"
"""Namespaces whose links have no rate."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A worker's link, in each direction. ``rate_bits_per_s`` 0: as fast as the machine is."""

    rate_bits_per_s: float

    def __post_init__(self) -> None:
        if self.rate_bits_per_s and not 1e5 <= self.rate_bits_per_s <= 1e12:
            raise ValueError(f"a link of {self.rate_bits_per_s:g} bit/s: choose 100kbit to 1000gbit")

    @classmethod
    def parse(cls, text: str) -> LinkSpec:
        """From "1gbit", "100mbit", "2.5gbit" or "none". Raises ValueError."""
        if text.lower() == UNSHAPED:
            return cls(0.0)
        match = _RATE.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no rate of a link: give 100mbit, 1gbit, 2.5gbit, ..., or none")
        rate = float(match[1]) * UNITS[match[2].lower()]
        if not rate:
            raise ValueError(f"{text!r}: a link without a rate is none; over one of rate 0 nothing passes")
        return cls(rate)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        if not self.rate_bits_per_s:
            return UNSHAPED
        unit = max((unit for unit, bits in UNITS.items() if bits <= self.rate_bits_per_s), key=UNITS.__getitem__)
        return f"{self.rate_bits_per_s / UNITS[unit]:g}{unit}"

    @property
    def bytes_per_s(self) -> float:
        """The rate in bytes of Ethernet frames."""
        return self.rate_bits_per_s / 8

    @property
    def burst_bytes(self) -> int:
        """Bucket size: what may pass at once after a pause. A train of segments must fit, or the kernel cuts it."""
        return max(TRAIN_BYTES, round(self.bytes_per_s * BURST_S))

    @property
    def queue_bytes(self) -> int:
        """Bytes that may wait behind the bucket; more is dropped."""
        return max(QUEUE_BYTES_LEAST, round(self.bytes_per_s * QUEUE_S))

    def capacity(self, payload_bytes: int, seconds: float) -> float:
        """Datagrams of ``payload_bytes`` that pass in one direction in ``seconds``, a full bucket included.

        Infinite if there is no rate.
        """
        if not self.rate_bits_per_s:
            return float("inf")
        return (self.bytes_per_s * seconds + self.burst_bytes) / (payload_bytes + HEADER_BYTES)
