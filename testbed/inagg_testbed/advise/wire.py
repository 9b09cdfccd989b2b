"""Bytes that an all-reduce puts on a link. Headers count, as `topology.link` counts them (a real Ethernet has
24 bytes more for each frame: preamble, checksum and gap)."""

from __future__ import annotations

from inagg_wire.formats import JobFormat, job_format
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500, Encoding, Op, datagram_bytes

from ..bench.links import datagram_of
from ..topology.link import ETHERNET_HEADER_BYTES, HEADER_BYTES

GLOO = "gloo"
TCP_HEADERS_BYTES = ETHERNET_HEADER_BYTES + 20 + 32
"""Ethernet, IPv4, TCP with timestamps, as Linux sends it."""
TCP_PAYLOAD_BYTES = 1500 - 20 - 32


def bytes_per_element(system: str, workers: int) -> float:
    """Bytes that one worker's link carries for one element in its busier direction: of Gloo's ring of float32 (each
    rank sends and receives 2 (n - 1) / n of the tensor), or through the switch in the format ``system``."""
    if system == GLOO:
        share = 2 * (workers - 1) / workers
        return share * 4 * (TCP_PAYLOAD_BYTES + TCP_HEADERS_BYTES) / TCP_PAYLOAD_BYTES
    fmt = job_format(system)
    lanes = fmt.max_lanes(workers, UDP_PAYLOAD_BYTES_1500)
    values = (datagram_of(fmt, workers, lanes) + HEADER_BYTES) / lanes
    # one byte for each block of lanes in a MAX round before, twice if the scale is refined
    scale_lanes = fmt.scale_lanes(lanes)
    scales = (datagram_bytes(fmt.encoding(Op.MAX), scale_lanes) + HEADER_BYTES) / scale_lanes / lanes
    return values + scales * (2 if fmt.refined else 1)


def trunk_bytes(fmt: JobFormat, workers: int) -> float:
    """Bytes that the trunk between a leaf and its parent carries for one element in its busier direction, of a job with
    ``workers`` workers in all: partial sums go up, results come down, a block in `JobFormat.parts` datagrams each.

    Raises ValueError if no block can be cut so that its parts fit datagrams.
    """
    lanes = fmt.tree_lanes(workers, fmt.max_lanes(workers, UDP_PAYLOAD_BYTES_1500))
    parts = fmt.parts(workers, lanes) if lanes else None
    if parts is None:
        raise ValueError(f"{fmt.name} has no blocks for a tree of switches with {workers} workers")

    def of_block(encoding: Encoding, op: Op) -> int:
        return parts * (datagram_bytes(encoding, fmt.lanes_for(op, lanes) // parts) + HEADER_BYTES)

    up, down = (
        of_block(values, Op.SUM) / lanes
        + of_block(scales, Op.MAX) / fmt.scale_lanes(lanes) / lanes * (2 if fmt.refined else 1)
        for values, scales in (
            (fmt.partial(Op.SUM, workers), fmt.partial(Op.MAX, workers)),
            (fmt.result_encoding(Op.SUM, workers), fmt.result_encoding(Op.MAX, workers)),
        )
    )
    return max(up, down)
