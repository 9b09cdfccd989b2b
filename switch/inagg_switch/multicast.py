"""Results that are for all ranks of a job, sent once, to a multicast group of IPv4.

Each job of a shard has a group of its own: the low 16 bits of its address are the job's number, the rest is the
switch's *prefix*; the port is the shard's own. So neither another job's results nor another switch's come to a rank.
"""

from __future__ import annotations

import ipaddress
from typing import Final

import numpy as np

from inagg_wire.link import Address, Batch, Group, GroupLink, UdpLink

from .driver import DriverError

AUTO, OFF = "auto", "off"
LOCAL: Final = "239.255.0.0/16"
"""The prefix of a switch that serves its own machine alone (RFC 2365: the IPv4 Local Scope)."""
PREFIX_BITS: Final = 16
LOCAL_HOPS, HOPS = 1, 32
"""How many routers a result may pass, less one: none, or as far as routers that carry the group let it."""
TEST_S: Final = 1.0
TEST_BYTES: Final = 64


def parse_prefix(text: str) -> str:
    """An IPv4 multicast prefix of 16 bits, as it is usually written. Raises ValueError that says what to give."""
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is neither {AUTO!r} nor {OFF!r} nor an IPv4 prefix ({error})") from None
    if not network.is_multicast or network.prefixlen != PREFIX_BITS:
        raise ValueError(
            f"{text} is no multicast prefix of {PREFIX_BITS} bits, which leaves {PREFIX_BITS} for the number of the "
            "job: give one such as 239.192.0.0/16"
        )
    return str(network)


def group_of(prefix: str, job: int, port: int) -> Address:
    """The group of a job on the shard at ``port``. Job 0 is none, so its group is free."""
    return str(ipaddress.IPv4Network(prefix)[job]), port


def open_groups(link: UdpLink, asked: str) -> str | None:
    """Have ``link``, a shard's socket, send to groups as is ``asked`` for: "auto", "off" or a prefix.

    The prefix; None if it is not to multicast: with "auto" that is so where workers may be elsewhere than on this
    machine, or where it does not work. Raises `DriverError` if a prefix was asked for and it does not work.
    """
    local = ipaddress.ip_address(link.address[0].partition("%")[0])
    if asked == OFF or (asked == AUTO and not (local.version == 4 and local.is_loopback)):
        return None
    prefix, hops = (LOCAL, LOCAL_HOPS) if asked == AUTO else (asked, HOPS)
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
    with GroupLink(UdpLink((link.address[0], 0))) as listener:
        listener.listen([Group(group, link.address)])
        link.send(Batch(sent, TEST_BYTES, group))
        came = listener.receive(TEST_S)
        return bool(came) and came[0].size == TEST_BYTES and np.array_equal(came[0].data, sent[: came[0].data.size])
