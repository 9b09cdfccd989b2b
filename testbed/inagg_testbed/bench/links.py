"""Facts for a benchmark over shaped links: what a link can carry, and what an interface has carried."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Final

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


RUN_LIMIT_S: Final = 600.0
SLOWER: Final = 10
"""So many times what the bytes themselves take on a link may pass until they are given up: a ring carries them twice,
and others are there."""


def run_limit_s(link: LinkSpec | None, size: int, runs: int = 1) -> float:
    """Time after which ``runs`` all-reduces of ``size`` bytes, a worker's, over such links are given up; None: over
    loopback."""
    rate = link.bytes_per_s if link is not None else 0.0
    return max(RUN_LIMIT_S, SLOWER * runs * size / rate if rate else 0.0)


def interface_bytes(interface: str) -> tuple[int, int]:
    """Bytes that an interface of this process's network has sent and received, with headers (proc(5), net/dev)."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.strip().partition(":")
        if name == interface:
            fields = numbers.split()
            return int(fields[8]), int(fields[0])
    raise LookupError(f"no interface {interface}")


class WorkerBytes:
    """Counter of what one worker has sent and received with Gloo. To be made in its process when its group of Gloo is
    there, and before anything else has connections."""

    def __init__(self, node: Node) -> None:
        self._interface = node.interface if node.namespace is not None else None
        self._connections = _tcp_connections()

    def count(self) -> tuple[int, int]:
        """Bytes so far, sent and received: those of its own interface, with headers; over the loopback, which everybody
        on the machine uses, the payload of its own connections."""
        if self._interface is not None:
            return interface_bytes(self._interface)
        counts = [tcp_bytes(descriptor) for descriptor in self._connections]
        return sum(sent for sent, _ in counts), sum(received for _, received in counts)


TCP_INFO_BYTES: Final = 208
"""Size of the kernel's struct tcp_info, as far as tcpi_bytes_sent: Linux 4.19 and newer have it."""
RECEIVED_AT, SENT_AT = 128, 200


def tcp_bytes(descriptor: int) -> tuple[int, int]:
    """Payload that a TCP connection has sent, also what was sent again, and received (tcp(7), TCP_INFO). Zeros where
    the kernel does not count them."""
    connection = socket.socket(fileno=descriptor)
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES).ljust(TCP_INFO_BYTES, b"\0")
    finally:
        connection.detach()  # it belongs to others
    (sent,), (received,) = struct.unpack_from("=Q", info, SENT_AT), struct.unpack_from("=Q", info, RECEIVED_AT)
    return sent, received


def _tcp_connections() -> list[int]:
    """Descriptors of this process's."""
    found = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            each = socket.socket(fileno=descriptor)
        except OSError:  # no socket, or the folder itself, which is closed by now
            continue
        if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
            found.append(descriptor)
        each.detach()
    return found
