"""The multicast groups of IPv4 to which results for all ranks of a job go, once.

Each job of a shard has a group of its own: the low 16 bits of its address are the job's number, the rest is the
switch's *prefix*; the port is the shard's own. So neither another job's results nor another switch's come to a rank.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from .binding import Address

AUTO, OFF = "auto", "off"
LOCAL: Final = "239.255.0.0/16"
"""The prefix of a switch that serves its own machine alone (RFC 2365: the IPv4 Local Scope)."""
PREFIX_BITS: Final = 16
RESERVED: Final = ipaddress.IPv4Network("224.0.0.0/16")
"""Of which 224.0.0.0/24 and 224.0.1.0/24 belong to protocols (RFC 5771, sections 4 and 5)."""


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
    if network == RESERVED:
        raise ValueError(
            f"{text} has groups of other protocols, such as 224.0.0.1, all hosts of a network (RFC 5771): give one "
            "such as 239.192.0.0/16"
        )
    return str(network)


def group_of(prefix: str, job: int, port: int) -> Address:
    """The group of a job on the shard at ``port``. Job 0 is none, so its group is free."""
    return str(ipaddress.IPv4Network(prefix)[job]), port
