"""UDP sockets as Linux has them: the options that Python does not name, asked for at run time, never assumed.

Numbers are those of include/uapi/linux/udp.h and include/uapi/asm-generic/socket.h (x86, arm64, riscv, s390, ppc64).
"""

from __future__ import annotations

import errno
import ipaddress
import os
import select
import socket
import struct
import sys
from functools import lru_cache
from pathlib import Path

from inagg_link.addresses import Address, canonical

SOL_UDP = 17
UDP_SEGMENT = 103
"""Payload bytes after which the kernel cuts what one call sends (udp(7), Linux 4.18). 0: do not cut."""
SEGMENTS_LEAST = 64
"""UDP_MAX_SEGMENTS in every kernel that has UDP_SEGMENT (include/linux/udp.h)."""
SEGMENTS_MOST = 128
"""UDP_MAX_SEGMENTS from Linux 6.9 on. More than these we do not ask for."""
UDP_GRO = 104
"""Receive datagrams that arrived together as one buffer; a control message tells their size (Linux 5.0)."""
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
SO_MEMINFO = 55
SK_MEMINFO_DROPS = 8  # index into the nine 32 bit words of SO_MEMINFO (include/uapi/linux/sock_diag.h)
SK_MEMINFO_WORDS = 9

IP_MULTICAST_ALL = 49  # include/uapi/linux/in.h
IPV6_MULTICAST_ALL = 29  # include/uapi/linux/in6.h (Linux 4.20)
"""1, as sockets are made: datagrams of any group that anybody on this machine has joined."""

ADDRESSES_OF_IPV6 = Path("/proc/net/if_inet6")
"""File of own addresses: of each its 32 hexadecimal digits and, also in such, the index of its interface (Linux IPv6
HOWTO, 11.1.1). Python has no other way from the one to the other."""

WILDCARDS = frozenset(("0.0.0.0", "::"))
"""Hosts that stand for all addresses of a machine (ip(7), INADDR_ANY)."""

SELECT_DESCRIPTORS = 1024  # FD_SETSIZE: select(2) cannot watch a descriptor from here on


def open_socket(address: Address, connect: Address | None, interface: str | None = None) -> socket.socket:
    """A non-blocking UDP socket bound to `address` and, if given, connected to a peer.

    With `interface`, an address of this machine, `address` is a multicast group, which is joined on the interface that
    has it; any number of sockets may be bound to it.

    ValueError: a host is no literal address. OSError: the address is taken or not of this machine; no such group or
    interface.
    """
    host, _ = address = canonical(address)
    family = socket.AF_INET if ipaddress.ip_address(host).version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        if family == socket.AF_INET6:
            # else IPv4 peers appear as ::ffff:a.b.c.d, a second name for the same address
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if interface is None:
            sock.bind(address)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _bind_to_group(sock, address, interface)
        if connect is not None:
            sock.connect(connect)
        if interface is not None:  # last, so that nothing comes from others than the peer
            _join_group(sock, host, interface)
    except BaseException:
        sock.close()
        raise
    return sock


def _bind_to_group(sock: socket.socket, group: Address, interface: str) -> None:
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
        sock.bind(group)
    else:
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0)
        sock.bind((*group, 0, interface_index(interface)))


def _join_group(sock: socket.socket, host: str, interface: str) -> None:
    if sock.family == socket.AF_INET:
        request = socket.inet_aton(host) + socket.inet_aton(interface)  # struct ip_mreq
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
    else:
        request = ipaddress.IPv6Address(host).packed + struct.pack("@I", interface_index(interface))  # struct ipv6_mreq
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, request)


def send_to_groups(sock: socket.socket, interface: str, hops: int) -> None:
    """Have what goes to multicast groups leave by the interface with this address, of the socket's family, for so many
    hops.

    OSError: this machine has no such address.
    """
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, hops)
    else:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, interface_index(interface))
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, hops)


def interface_index(address: str) -> int:
    """The index of the interface with this IPv6 address (if_nametoindex(3)). 0, by which the kernel means any that has
    a route, for the unspecified address. OSError: no interface has it."""
    wanted = ipaddress.IPv6Address(address)
    if wanted.is_unspecified:
        return 0
    if wanted.scope_id is not None:
        return int(wanted.scope_id) if wanted.scope_id.isdigit() else socket.if_nametoindex(wanted.scope_id)
    for line in ADDRESSES_OF_IPV6.read_text().splitlines():
        digits, index, *_ = line.split()
        if digits == wanted.packed.hex():
            return int(index, 16)
    raise OSError(errno.ENODEV, f"{os.strerror(errno.ENODEV)}: no interface has {address}")


def ends_of_way(host: str, port: int) -> tuple[str, str]:
    """The way to a host, which may be a name: the literal addresses of this machine and of the host at which it begins
    and ends, as the kernel chooses them (RFC 6724). Sends nothing. OSError: no such name, or no way."""
    family, kind, _, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as sock:
        sock.connect(there)
        return str(sock.getsockname()[0]), str(there[0])


def is_own(host: str) -> bool:
    """Whether this machine has the literal address ``host``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((host, 0))
        except OSError:
            return False
    return True


def enable(sock: socket.socket, option: int, value: int) -> bool:
    """Set a UDP option; False where the kernel does not know it."""
    if sys.platform != "linux":  # the same number may mean something else there
        return False
    try:
        sock.setsockopt(SOL_UDP, option, value)
    except OSError as error:
        if error.errno in (errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EINVAL):
            return False
        raise
    return True


@lru_cache(1)
def segments_most() -> int:
    """Number of datagrams that the kernel cuts from what one call sends, found out by trying it once, on the
    loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.bind(("127.0.0.1", 0))
            sock.setsockopt(SOL_UDP, UDP_SEGMENT, 1)
            sock.sendto(bytes(SEGMENTS_MOST), sock.getsockname())
        except OSError:
            return SEGMENTS_LEAST
    return SEGMENTS_MOST


def grow_buffer(sock: socket.socket, option: int, forced_option: int, wanted_bytes: int) -> int:
    """Ask for a socket buffer; returns what was granted, as the kernel counts: twice what was asked for (socket(7)).

    The forced option passes the limit net.core.{r,w}mem_max, for those with CAP_NET_ADMIN; the others get at
    most the limit.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, forced_option, wanted_bytes)
    except OSError:
        sock.setsockopt(socket.SOL_SOCKET, option, wanted_bytes)
    return sock.getsockopt(socket.SOL_SOCKET, option)


def receive_drops(sock: socket.socket) -> int | None:
    """Buffers that the kernel dropped at this socket so far; None where it does not tell (before Linux 4.12).

    SO_MEMINFO and not SO_RXQ_OVFL: the control message of the latter comes only with the next buffer that
    does fit, so the last drops before a silence would never be seen; and this costs 0.4 us when somebody
    asks, and nothing per batch.
    """
    try:
        words = sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 4 * SK_MEMINFO_WORDS)
    except OSError:
        return None
    if len(words) < 4 * SK_MEMINFO_WORDS:
        return None
    drops: int = struct.unpack(f"@{SK_MEMINFO_WORDS}I", words)[SK_MEMINFO_DROPS]
    return drops


def wait_readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until the descriptor has something to read (or an error to report), at most `timeout_s`.

    select(2) waits to the microsecond; Python's poll and epoll round up to the next millisecond, ten round
    trips of a loopback.
    """
    if descriptor < SELECT_DESCRIPTORS:
        return bool(select.select((descriptor,), (), (), timeout_s)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000.0))
