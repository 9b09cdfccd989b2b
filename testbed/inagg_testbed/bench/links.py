"""What a benchmark over shaped links needs to know: what a link can carry, and what an interface has carried."""

from __future__ import annotations

from pathlib import Path

from inagg_wire.formats import JobFormat
from inagg_wire.layout import Op, datagram_bytes

from ..topology import LinkSpec, Node


def datagram_of(fmt: JobFormat, workers: int, lanes: int) -> int:
    """UDP payload of the larger of contribution and result: the direction that fills its link first."""
    encodings = fmt.encoding(Op.SUM), fmt.result_encoding(Op.SUM, workers)
    return max(datagram_bytes(encoding, lanes) for encoding in encodings)


def share_of_link(
    link: LinkSpec, fmt: JobFormat, workers: int, lanes: int, elements: int, seconds: float
) -> float | None:
    """Elements moved, as a share of those that fit through a worker's link in the time; None if it has no rate.

    What a link can carry is its rate, and a full bucket at the start, less the headers of Ethernet, IP, UDP and ours.
    """
    if not link.rate_bits_per_s:
        return None
    return elements / (link.capacity(datagram_of(fmt, workers, lanes), seconds) * lanes)


def interface_bytes(interface: str) -> tuple[int, int]:
    """Bytes that an interface of this process's network has sent and received, with headers (proc(5), net/dev)."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.strip().partition(":")
        if name == interface:
            fields = numbers.split()
            return int(fields[8]), int(fields[0])
    raise LookupError(f"no interface {interface}")


def worker_bytes(node: Node, workers: int) -> tuple[float, float]:
    """Bytes that one worker has sent and received: its own interface's, or its share of the loopback's."""
    sent, received = interface_bytes(node.interface)
    return (sent, received) if node.namespace is not None else (sent / workers, received / workers)
