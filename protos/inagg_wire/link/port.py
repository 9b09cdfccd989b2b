"""A socket as compiled loops see it: numbers and buffers, no objects. `native` has the calls.

A loop that must enter Python for each batch pays more for that than for the system calls and the arithmetic (measured
for an all-reduce of 64 MiB between two workers: a third of all processor time). So links that are a plain socket, or
one with seeded losses, lend their socket to such a loop. Whatever is not the usual case, an error or an answer of the
network, the loop leaves to the link's own methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inagg_wire.link.base import MAX_BATCH_BYTES, Address, canonical

# Indices into `Port.words`. Counters are since the link was last asked for its own.
FD, SEGMENT, SIZE, ERRNO, PEER = range(5)
DATAGRAMS_IN, BYTES_IN, CALLS_IN, DATAGRAMS_OUT, BYTES_OUT, CALLS_OUT, TRUNCATED, EMPTY = range(5, 13)
FATED = 13
"""1 if datagrams have fates."""
FATE_AT = 14
"""By direction (`SENDING`, `RECEIVING`): the next fate."""
MESSAGE = 16
"""struct msghdr (recvmsg(2)) of a 64-bit Linux: name, its length, iovec, their number, control, its length, flags."""
VECTOR, NAME, CONTROL, TO, CLOCK = 24, 26, 30, 36, 38
"""struct iovec, sockaddr of the sender, control message, sockaddr of the destination, struct timespec."""
HEARD = 40
"""How many sockets there are to be received from."""
WORDS = 48
CONTROL_BYTES = 8 * (TO - CONTROL)

DESCRIPTOR, READY, POLLED = range(3)
"""Rows of `Port.sockets`, by socket: its descriptor; 1 if something may have come there; struct pollfd (poll(2)), and
one more for what else is waited for."""
SOCKETS_MOST = 65
"""The link's own, and one for each shard of a switch that multicasts."""

SENDING, RECEIVING = 0, 1
FATES = 16384
"""Fates of each direction that are drawn ahead."""
LOST, CORRUPTED, DUPLICATED, REORDERED = 1, 2, 4, 8
"""Bits of a fate."""


class Port(NamedTuple):
    """What a compiled loop needs of a link; the link keeps it alive."""

    words: Any
    """int64: see the indices."""
    buffer: Any
    """uint8: where a batch is received."""
    scratch: Any
    """uint8: what is left of a batch to send, when some of it is lost on purpose."""
    fates: Any
    """uint8, (2, `FATES`): what happens to the next datagrams of each direction; `FaultModel` draws them."""
    sockets: Any
    """int64, (3, `SOCKETS_MOST` + 1): those to be received from."""


def make_port(descriptor: int) -> Port:
    """For a non-blocking UDP socket of IPv4 on which `UDP_GRO` is set and `UDP_SEGMENT` is 0."""
    words, buffer = np.zeros(WORDS, np.int64), np.zeros(MAX_BATCH_BYTES, np.uint8)
    words[FD] = descriptor
    at = words.ctypes.data
    words[MESSAGE + 0] = at + 8 * NAME
    words[MESSAGE + 2], words[MESSAGE + 3] = at + 8 * VECTOR, 1
    words[MESSAGE + 4] = at + 8 * CONTROL
    words[VECTOR] = buffer.ctypes.data
    scratch, fates = np.zeros(MAX_BATCH_BYTES, np.uint8), np.zeros((2, FATES), np.uint8)
    port = Port(words, buffer, scratch, fates, np.zeros((3, SOCKETS_MOST + 1), np.int64))
    hear(port, [descriptor])
    return port


def hear(port: Port, descriptors: Sequence[int]) -> None:
    """Receive from these sockets, all as `make_port` says, those that come first before the others."""
    port.words[HEARD] = len(descriptors)
    port.sockets[DESCRIPTOR, : len(descriptors)] = descriptors
    port.sockets[READY] = 1


@lru_cache(4096)
def key_of(address: Address) -> int:
    """An IPv4 address and port as one word: the first eight bytes of its sockaddr_in (ip(7)), as the machine reads
    them. ValueError: no IPv4 address, or no such port."""
    host, port = canonical(address)
    return int(np.frombuffer(_FAMILY + port.to_bytes(2, "big") + IPv4Address(host).packed, np.int64)[0])


def address_of(key: int) -> Address:
    """The other way."""
    raw = np.array([key], np.int64).tobytes()
    return str(IPv4Address(raw[4:8])), int.from_bytes(raw[2:4], "big")


_FAMILY = np.array([2], np.uint16).tobytes()  # AF_INET

Words = NDArray[np.int64]
