"""What the tests of real sockets share: offload or not, numbered datagrams, collecting them, failing calls."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from inagg_link.base import Batch, Link
from inagg_link.udp import UdpLink
from inagg_switch.multicast_groups import LOCAL, group_of

PATIENCE_S = 5.0


def offloads() -> bool:
    with UdpLink() as link:
        return link.gso and link.gro


OFFLOADS = offloads()
needs_offload = pytest.mark.skipif(not OFFLOADS, reason="this kernel has no UDP_SEGMENT or no UDP_GRO")
both_ways = pytest.mark.parametrize("offload", [pytest.param(True, marks=needs_offload), False])
every_pair = pytest.mark.parametrize(
    ("sender_offload", "receiver_offload"),
    [pytest.param(a, b, marks=needs_offload if a or b else ()) for a in (True, False) for b in (True, False)],
)


def carries_groups6() -> bool:
    try:
        with UdpLink(("::1", 0)) as link:
            link.send_to_groups(1)
            return link.send(Batch(np.zeros(1, np.uint8), 1, group_of(LOCAL[6], 0, link.address[1]))) == 1
    except OSError:  # no IPv6
        return False


needs_groups6 = pytest.mark.skipif(
    not carries_groups6(),
    reason=f"::1 has no route for groups; tests/switch/e2e/test_multicast6_routed.py makes it: local {LOCAL[6]} dev lo",
)


def collect(link: Link, count: int) -> list[Batch]:
    """Copies of what arrives, until there are `count` datagrams."""
    batches: list[Batch] = []
    end_s = time.monotonic() + PATIENCE_S
    while sum(map(len, batches)) < count and time.monotonic() < end_s:
        batches += [batch.copy() for batch in link.receive(0.2)]
    return batches


def rows(batches: list[Batch]) -> list[bytes]:
    return [row.tobytes() for batch in batches for row in batch.datagrams]


def numbered(count: int, size: int, first: int = 0) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Datagrams of `size` bytes that start with their number."""
    data = np.zeros((count, size), np.uint8)
    data[:, :4] = np.arange(first, first + count, dtype=">u4").view(np.uint8).reshape(count, 4)
    return data.reshape(-1)


def fail_after(link: UdpLink, calls: int, number: int) -> None:
    """Make all system calls to send fail with errno `number` after so many that work."""
    send = link._sendto
    count = itertools.count()

    def sendto(data: object, peer: object) -> int:
        if next(count) >= calls:
            raise OSError(number, "simulated")
        return send(data, peer)

    link._sendto = sendto
