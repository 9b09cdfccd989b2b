"""Batches through a link's port, as a compiled loop moves them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from inagg_link import native
from inagg_link.addresses import Address
from inagg_link.base import Link, datagrams_per_call
from inagg_link.port import SIZE, Port, register
from inagg_link.udp import UdpLink


def lends() -> bool:
    with UdpLink() as link:
        return link.port() is not None


needs_port = pytest.mark.skipif(not lends(), reason="links lend their sockets on 64-bit Linux with offload only")


def port_of(link: Link) -> Port:
    """The link's port, ready for use."""
    port = link.port()
    assert port is not None
    return port


def send(link: Link, data: NDArray[np.uint8], size: int, peer: Address) -> int:
    """One call; what it says."""
    return int(native.send(port_of(link), data, data.size, size, register(port_of(link), peer)))


def send_all(link: Link, data: NDArray[np.uint8], size: int, peer: Address) -> None:
    """Calls for datagrams of any number; all of them work."""
    step = datagrams_per_call(size) * size
    for start in range(0, data.size, step):
        assert send(link, data[start : start + step], size, peer) == 0


def receive(link: Link) -> list[bytes]:
    """The datagrams of one call, which brings some."""
    port = port_of(link)
    got = int(native.receive(port))
    assert got > 0
    return cut(port, got)


def receive_all(link: Link) -> list[bytes]:
    """All that is there, but for what is discarded."""
    port, received = port_of(link), []
    while (got := int(native.receive(port))) != native.AGAIN:
        assert got > 0 or got == native.DISCARDED
        received += cut(port, got) if got > 0 else []
        port = port_of(link)  # draws masks
    return received


def cut(port: Port, length: int) -> list[bytes]:
    """What is in the port's buffer, datagram by datagram."""
    size = int(port.words[SIZE])
    return [port.buffer[start : min(start + size, length)].tobytes() for start in range(0, length, size)]
