"""A socket as compiled loops see it: numbers and buffers, no objects. `native` has the calls.

A loop that must enter Python for each batch pays more for that than for the system calls and the arithmetic (measured
for an all-reduce of 64 MiB between two workers: a third of all processor time). So links that are a plain socket, or
one with seeded losses, lend their socket to such a loop. Whatever is not the usual case, an error or an answer of the
network, the loop leaves to the link's own methods.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Collection, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from socket import if_nametoindex
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inagg_link.addresses import Address, canonical
from inagg_link.base import MAX_BATCH_BYTES
from inagg_link.processors import load_descriptor, processors
from inagg_wire.noise_keys import mix64

# Indices into `Port.words`. Counters are since the link was last asked for its own.
FD, SEGMENT, SIZE, ERRNO, PEER = range(5)
DATAGRAMS_IN, BYTES_IN, CALLS_IN, DATAGRAMS_OUT, BYTES_OUT, CALLS_OUT, TRUNCATED, EMPTY = range(5, 13)
FAULTY = 13
"""1 if datagrams have masks."""
MASK_AT = 14
"""The next fault mask, by direction (`SENDING`, `RECEIVING`)."""
MESSAGE = 16
"""struct msghdr (recvmsg(2)) of a 64-bit Linux: name, its length, iovec, their number, control, its length, flags."""
VECTOR, NAME, CONTROL, TO, CLOCK = 24, 26, 30, 36, 38
"""struct iovec, sockaddr of the sender, control message, sockaddr of the destination, struct timespec."""
HEARD = 40
"""Number of sockets to receive from."""
SECRET = 41
"""Secret that goes into the keys of IPv6 addresses (`key_of`)."""
PLAINS = 42
"""Number of rows of `Port.plain`."""
UNSENT = 43
"""Datagrams that the kernel did not take after it had taken others of their batch."""
LOAD, PROCESSORS, SPARE, LOOK_AT, PAUSE, TEXT = 44, 45, 46, 47, 48, 49
"""Words of `waiting.may_stay_awake`: the descriptor of `processors.LOAD`; how many processors there are; whether one is
to spare; when to look again, and after which pause, in ns; what was read."""
BLOCKED = 60
"""Datagrams for which the kernel had no room, and which a compiled loop gave up."""
WORDS = 61
CONTROL_BYTES = 8 * (TO - CONTROL)

DESCRIPTOR, READY, POLLED = range(3)
"""Rows of `Port.sockets`, by socket: its descriptor; 1 if something may have come there; struct pollfd (poll(2)), and
one more for what else is waited for."""
SOCKETS_MOST = 65
"""The link's own, and one for each shard of a switch that multicasts."""

PLAINS_MOST = 64

NAMES = 1 << 16
"""Rows of `Port.names`, a power of two."""
NAME_WORDS, NAME6_BYTES = 5, 28
"""Words of a row, the key, then struct sockaddr_in6; and bytes of the latter."""

SENDING, RECEIVING = 0, 1
MASKS_AHEAD = 16384
"""Fault masks of each direction that are drawn ahead."""
AF_INET, AF_INET6 = 2, 10
_SECRET: Final = secrets.randbits(64)
LOST, CORRUPTED, DUPLICATED, REORDERED = 1, 2, 4, 8
"""Bits of a fault mask."""


class Port(NamedTuple):
    """All that a compiled loop needs of a link; the link keeps it alive."""

    words: Any
    """int64: see the indices."""
    buffer: Any
    """uint8: where a batch is received."""
    scratch: Any
    """uint8: what is left of a batch to send, when some of it is lost on purpose."""
    masks: Any
    """uint8, (2, `MASKS_AHEAD`): what happens to the next datagrams of each direction; `FaultModel` draws them."""
    plain: Any
    """int64, (`PLAINS_MOST`, 2): to whom segmentation offload is refused (a tunnel, IPsec), and for datagrams of which
    size: those are sent one by one."""
    sockets: Any
    """int64, (3, `SOCKETS_MOST` + 1): those to be received from."""
    names: Any
    """int64, (`NAMES`, `NAME_WORDS`): IPv6 addresses to send to, by their keys, with linear probing; see `register`."""


def make_port(descriptor: int) -> Port:
    """A port for a non-blocking UDP socket on which `UDP_GRO` is set and `UDP_SEGMENT` is 0."""
    words, buffer = np.zeros(WORDS, np.int64), np.zeros(MAX_BATCH_BYTES, np.uint8)
    words[FD], words[SECRET] = descriptor, _signed(_SECRET)
    words[LOAD], words[PROCESSORS] = load_descriptor(), processors()
    at = words.ctypes.data
    words[MESSAGE + 0] = at + 8 * NAME
    words[MESSAGE + 2], words[MESSAGE + 3] = at + 8 * VECTOR, 1
    words[MESSAGE + 4] = at + 8 * CONTROL
    words[VECTOR] = buffer.ctypes.data
    scratch, masks = np.zeros(MAX_BATCH_BYTES, np.uint8), np.zeros((2, MASKS_AHEAD), np.uint8)
    names = np.zeros((NAMES, NAME_WORDS), np.int64)  # memory is taken when it is written
    plain = np.zeros((PLAINS_MOST, 2), np.int64)
    port = Port(words, buffer, scratch, masks, plain, np.zeros((3, SOCKETS_MOST + 1), np.int64), names)
    hear(port, [descriptor])
    return port


def hear(port: Port, descriptors: Sequence[int]) -> None:
    """Receive from these sockets, all as `make_port` says, those that come first before the others."""
    port.words[HEARD] = len(descriptors)
    port.sockets[DESCRIPTOR, : len(descriptors)] = descriptors
    port.sockets[READY] = 1


def register(port: Port, address: Address) -> int:
    """The key of ``address``, to which compiled loops can send from now on. ValueError: no such address, or there are
    `NAMES` of IPv6 already."""
    key = key_of(address)
    if key & 0xFFFF == AF_INET6:
        at = first_row_of(key)
        for _ in range(NAMES):
            row = port.names[at]
            if row[0] in (0, key):
                row[0], row[1:] = key, np.frombuffer(_sockaddr_in6(address), np.int64)
                return key
            at = (at + 1) & (NAMES - 1)
        raise ValueError(f"a socket sends to {NAMES} addresses of IPv6 at most")
    return key


def register_only(port: Port, addresses: Collection[Address]) -> None:
    """`register` all of these, and forget other addresses of IPv6: who serves for years has many, few at a time."""
    if any(":" in host for host, _ in addresses):
        port.names[:, 0] = 0
    for address in addresses:
        register(port, address)


def first_row_of(key: int) -> int:
    """Row at which `Port.names` has a key, unless others were there first."""
    return (key >> 16) & (NAMES - 1)


@lru_cache(4096)
def key_of(address: Address) -> int:
    """An address and port as one word, of which the lowest 16 bits are the family.

    Of IPv4 that is the first eight bytes of its sockaddr_in (ip(7)), as the machine reads them. Of IPv6 it is 48 bits
    of a hash of its sockaddr_in6 with a secret of this process: who does not know that cannot make an address that has
    another's key. ValueError: no literal address, or no such port.
    """
    host, port = canonical(address)
    if ":" not in host:
        return int(np.frombuffer(_family(AF_INET) + port.to_bytes(2, "big") + IPv4Address(host).packed, np.int64)[0])
    x = _SECRET
    for word in np.frombuffer(_sockaddr_in6((host, port)), np.uint64).tolist():
        x = mix64(x ^ word)
    return _signed(x & ~0xFFFF | AF_INET6)


def _sockaddr_in6(address: Address) -> bytes:
    """Filled up to whole words (ipv6(7)); without flow information."""
    host, port = address
    host, _, zone = host.partition("%")
    scope = 0 if not zone else int(zone) if zone.isdigit() else if_nametoindex(zone)
    name = _family(AF_INET6) + port.to_bytes(2, "big") + bytes(4) + IPv6Address(host).packed
    return name + np.array([scope, 0], np.uint32).tobytes()


def address_of(key: int, port: Port | None = None) -> Address:
    """The address of a key of `key_of`; of IPv6, if it was `register`ed with ``port``. Raises KeyError if not."""
    raw = np.array([key], np.int64).tobytes()
    if key & 0xFFFF == AF_INET:
        return str(IPv4Address(raw[4:8])), int.from_bytes(raw[2:4], "big")
    found = np.zeros((0, NAME_WORDS), np.int64) if port is None else port.names[port.names[:, 0] == key]
    if not len(found):
        raise KeyError(f"{key} is the key of no address that is known")
    name = found[0, 1:].tobytes()
    scope = int.from_bytes(name[24:28], sys.byteorder)
    return str(IPv6Address(name[8:24])) + (f"%{scope}" if scope else ""), int.from_bytes(name[2:4], "big")


def _family(number: int) -> bytes:
    return np.array([number], np.uint16).tobytes()


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


Words = NDArray[np.int64]
