"""Multicast groups that a shard sends to, where that works; which ones, `inagg_switch.multicast_groups` says."""

from __future__ import annotations

import ipaddress
from typing import Final

import numpy as np

from inagg_link.base import Batch
from inagg_link.groups import Group, GroupLink
from inagg_link.udp import UdpLink

from ..driver import DriverError
from ..multicast_groups import AUTO, LOCAL, OFF, group_of

LOCAL_HOPS, HOPS = 1, 32
"""Hop limits of results: they pass no router, or go as far as routers that carry the group let them."""
TEST_S: Final = 1.0
TEST_BYTES: Final = 64


def open_groups(link: UdpLink, asked: str) -> str | None:
    """Have ``link``, a shard's socket, send to groups as is ``asked`` for: "auto", "off" or a prefix.

    The prefix; None if it is not to multicast: with "auto" that is so where workers may be elsewhere than on this
    machine, or where it does not work. Raises `DriverError` if a prefix was asked for and it does not work.
    """
    local = ipaddress.ip_address(link.address[0].partition("%")[0])
    if asked == OFF or (asked == AUTO and not local.is_loopback):
        return None
    prefix, hops = (LOCAL[local.version], LOCAL_HOPS) if asked == AUTO else (asked, HOPS)
    try:
        link.send_to_groups(hops)
        if not heard(link, prefix):
            raise OSError(f"nothing comes back from the group {group_of(prefix, 0, 0)[0]}")
    except OSError as error:
        if asked == AUTO:
            return None
        raise DriverError(f"cannot multicast by {link.address[0]}: {error}; give --multicast off") from None
    return prefix


def heard(link: UdpLink, prefix: str) -> bool:
    """Whether what ``link`` sends to a group comes to who listens on this machine. Raises OSError."""
    group = group_of(prefix, 0, link.address[1])
    sent = np.arange(2 * TEST_BYTES, dtype=np.uint8)  # two datagrams, so a batch, where there are any
    with GroupLink(own := UdpLink((link.address[0], 0))) as listener:
        listener.listen([Group(group, link.address)])
        own.send_to_groups(LOCAL_HOPS)
        if not own.send(Batch(sent, TEST_BYTES, group)):  # no route: nothing to wait for, nor to count as the switch's
            return False
        link.send(Batch(sent, TEST_BYTES, group))
        came = listener.receive(TEST_S)
        return bool(came) and came[0].size == TEST_BYTES and np.array_equal(came[0].data, sent[: came[0].data.size])
