"""The multicast groups to which results for all ranks of a job go, once.

Each job of a shard has a group of its own: the low 16 bits of its address are the job's number, the rest is the
switch's *prefix*; the port is the shard's own. So neither another job's results nor another switch's come to a rank.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from .binding import Address

AUTO, OFF = "auto", "off"
LOCAL: Final = {4: "239.255.0.0/16", 6: "ff11::8000:0/112"}
"""The prefix of a switch that serves its own machine alone, by IP version (RFC 2365: the IPv4 Local Scope; RFC 4291,
2.7: the Interface-Local Scope, which is for loopback; RFC 3307, 4.3: the top bit of identifiers that hosts choose)."""
EXAMPLE: Final = {4: "239.192.0.0/16", 6: "ff15::8000:0/112"}
JOB_BITS: Final = 16
RESERVED: Final = ipaddress.IPv4Network("224.0.0.0/16")
"""Groups of which 224.0.0.0/24 and 224.0.1.0/24 belong to protocols (RFC 5771, sections 4 and 5)."""
TRANSIENT: Final = 0x10
INTERFACE_LOCAL, GLOBAL, SCOPE = 1, 14, 0xF
"""Bits of the second byte of a group of IPv6 (RFC 4291, 2.7): a bit, that it is no well-known one; the scope, in
four."""


def parse_prefix(text: str) -> str:
    """A multicast prefix that leaves `JOB_BITS`, as it is usually written. Raises ValueError that says what to give."""
    version = 6 if ":" in text else 4
    try:
        network = ipaddress.IPv6Network(text) if version == 6 else ipaddress.IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is neither {AUTO!r} nor {OFF!r} nor a prefix ({error})") from None
    bits = network.max_prefixlen - JOB_BITS
    if not network.is_multicast or network.prefixlen != bits:
        what = f"{text} is no multicast prefix of {bits} bits, which leaves {JOB_BITS} for the number of the job"
    elif network == RESERVED or (version == 6 and not network.network_address.packed[1] & TRANSIENT):
        others = "224.0.0.1, all hosts of a network (RFC 5771)" if version == 4 else "ff02::1, all nodes (RFC 4291)"
        what = f"{text} has groups of other protocols, such as {others}"
    elif version == 6 and not INTERFACE_LOCAL < network.network_address.packed[1] & SCOPE <= GLOBAL:
        what = f"{text} has a scope that ends at this machine, or none at all (RFC 4291, 2.7)"
    else:
        return str(network)
    raise ValueError(f"{what}: give one such as {EXAMPLE[version]}")


def group_of(prefix: str, job: int, port: int) -> Address:
    """The group of a job on the shard at ``port``. Job 0 is none, so its group is free."""
    return str(ipaddress.ip_network(prefix)[job]), port
