"""System calls on a `Port`, compiled: batches in and out without a visit to Python, and without its lock.

It needs Numba, as `inagg_link.jit`. Functions of libc are found by their names when a loop is loaded, so loops
that use them can be cached.

Terms as in `udp`. Little-endian 64-bit Linux only, as Numba's other kernels here; `UdpLink.port` sees to it.
"""

from __future__ import annotations

import errno
import socket
from typing import Any

import numpy as np
from numba import types
from numba.core.types import ExternalFunction

from inagg_link import port as ports
from inagg_link.base import MAX_BATCH_BYTES
from inagg_link.jit import inline, jit
from inagg_link.sockopt import SOL_UDP, UDP_GRO, UDP_SEGMENT
from inagg_wire.noise_keys import MIX_1, MIX_2

Array = Any

_sendto: Any = ExternalFunction(
    "sendto", types.int64(types.int32, types.uintp, types.uintp, types.int32, types.uintp, types.uint32)
)
_recvmsg: Any = ExternalFunction("recvmsg", types.int64(types.int32, types.uintp, types.int32))
_setsockopt: Any = ExternalFunction(
    "setsockopt", types.int32(types.int32, types.int32, types.int32, types.uintp, types.uint32)
)
_memmove: Any = ExternalFunction("memmove", types.uintp(types.uintp, types.uintp, types.uint64))
_pointer: Any = types.CPointer
_first_row_of: Any = inline(ports.first_row_of)
_errno: Any = ExternalFunction("__errno_location", _pointer(types.int32)())

AGAIN, FAILED, DISCARDED, NO_FAULT_MASKS = -1, -2, -3, -4
"""Reasons why `receive` brought nothing: nothing is there; the call failed, see `ERRNO`; what came cannot be used, and
is counted; more masks must be drawn first (so, too, `send`)."""

EAGAIN, ENOBUFS, ENOMEM = errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM
MSG_DONTWAIT, MSG_DISCARD = int(socket.MSG_DONTWAIT), int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
MOST_DATAGRAMS = ports.MASKS_AHEAD // 4
"""A received batch of more, of a few bytes each, is none of ours: `MASKS_AHEAD` are there for so many."""


@jit
def receive(port: Any) -> Any:
    """Receive a batch into ``port.buffer``; how many bytes, or why none (`AGAIN` and so on).

    The size of its datagrams, of which the last may be shorter, is in `SIZE`, who sent them in `PEER`
    (`inagg_link.port.key_of`). Those that are to be lost are taken out.
    A socket where nothing was is looked at again when `wait` has seen something there.
    """
    sockets = port.sockets
    for i in range(port.words[ports.HEARD]):
        if sockets[ports.READY, i] != 0:
            got = receive_from(port, sockets[ports.DESCRIPTOR, i])
            if got != AGAIN:
                return got
            sockets[ports.READY, i] = 0
    return AGAIN


@jit
def receive_from(port: Any, descriptor: int) -> Any:
    """`receive`, of one socket."""
    words, data = port.words, port.buffer
    if words[ports.FAULTY] and words[ports.MASK_AT + ports.RECEIVING] + MOST_DATAGRAMS > ports.MASKS_AHEAD:
        return NO_FAULT_MASKS
    words[ports.MESSAGE + 1] = 8 * (ports.CONTROL - ports.NAME)
    words[ports.MESSAGE + 5], words[ports.MESSAGE + 6] = ports.CONTROL_BYTES, 0
    words[ports.VECTOR + 1] = MAX_BATCH_BYTES
    got = _recvmsg(np.int32(descriptor), words.ctypes.data + 8 * ports.MESSAGE, MSG_DONTWAIT)
    if got < 0:
        words[ports.ERRNO] = _errno()[0]
        return AGAIN if words[ports.ERRNO] == EAGAIN else FAILED
    words[ports.CALLS_IN] += 1
    if got == 0 or words[ports.MESSAGE + 6] & MSG_DISCARD:
        words[ports.EMPTY if got == 0 else ports.TRUNCATED] += 1
        return DISCARDED
    size = got
    # struct cmsghdr: length, level and type, then the number: cmsg(3).
    if words[ports.MESSAGE + 5] >= 20 and words[ports.CONTROL + 1] == SOL_UDP | UDP_GRO << 32:
        size = words[ports.CONTROL + 2] & 0xFFFFFFFF
    count = (got + size - 1) // size
    words[ports.DATAGRAMS_IN] += count
    words[ports.BYTES_IN] += got
    words[ports.SIZE], words[ports.PEER] = size, key_of_name(words)
    if words[ports.FAULTY]:
        if count > MOST_DATAGRAMS:
            words[ports.TRUNCATED] += 1
            return DISCARDED
        got = survivors(port, data, got, size, ports.RECEIVING, data)
        if got == 0:
            return DISCARDED
    return got


@jit
def key_of_name(words: Any) -> Any:
    """`inagg_link.port.key_of` the sender."""
    if words[ports.NAME] & 0xFFFF == ports.AF_INET:
        return words[ports.NAME]
    x = mixed(np.uint64(words[ports.SECRET]) ^ np.uint64(words[ports.NAME] & 0xFFFFFFFF))  # without flow information
    x = mixed(x ^ np.uint64(words[ports.NAME + 1]))
    x = mixed(x ^ np.uint64(words[ports.NAME + 2]))
    x = mixed(x ^ np.uint64(words[ports.NAME + 3] & 0xFFFFFFFF))
    return np.int64(x & np.uint64(0xFFFFFFFFFFFF0000)) | ports.AF_INET6


@jit
def mixed(z: Any) -> Any:
    """`inagg_wire.noise_keys.mix64`."""
    z = np.uint64((z ^ (z >> np.uint64(30))) * np.uint64(MIX_1))
    z = np.uint64((z ^ (z >> np.uint64(27))) * np.uint64(MIX_2))
    return np.uint64(z ^ (z >> np.uint64(31)))


@jit
def name_at(port: Any, key: int) -> Any:
    """The address in memory of the IPv6 address that has a key; 0 if none was registered."""
    at = _first_row_of(key)
    while port.names[at, 0] != 0:
        if port.names[at, 0] == key:
            return port.names.ctypes.data + 8 * (at * ports.NAME_WORDS + 1)
        at = (at + 1) & (ports.NAMES - 1)
    return 0


@jit
def spared(port: Any, count: int) -> bool:
    """Whether none of the next ``count`` datagrams to send are lost."""
    masks, at = port.masks[ports.SENDING], port.words[ports.MASK_AT + ports.SENDING]
    all_of_them = 0
    for i in range(at, at + count):
        all_of_them |= masks[i]
    return all_of_them & (ports.LOST | ports.CORRUPTED) == 0


@jit
def survivors(port: Any, data: Array, length: int, size: int, direction: int, to: Array) -> Any:
    """Move what is not lost of the datagrams of ``size`` bytes in ``data``, ``length`` bytes, to the beginning of
    ``to``; how many bytes."""
    masks, at = port.masks[direction], port.words[ports.MASK_AT + direction]
    left = 0
    for start in range(0, length, size):
        end = min(start + size, length)
        if not masks[at] & (ports.LOST | ports.CORRUPTED):
            if left != start or direction == ports.SENDING:
                _memmove(to.ctypes.data + left, data.ctypes.data + start, end - start)
            left += end - start
        at += 1
    port.words[ports.MASK_AT + direction] = at
    return left


@jit
def send(port: Any, data: Array, length: int, size: int, peer: int) -> Any:
    """Send ``length`` bytes, datagrams of ``size`` bytes and no more than one call takes, to ``peer``
    (`inagg_link.port.key_of`). 0; or `FAILED`, for the reason in `ERRNO`, or `NO_FAULT_MASKS`: then nothing is sent."""
    words = port.words
    start = data.ctypes.data
    sent = length
    if words[ports.FAULTY]:
        if words[ports.MASK_AT + ports.SENDING] + length // size > ports.MASKS_AHEAD:
            return NO_FAULT_MASKS
        if spared(port, length // size):
            words[ports.MASK_AT + ports.SENDING] += length // size
        else:
            sent = survivors(port, data, length, size, ports.SENDING, port.scratch)
            start = port.scratch.ctypes.data
            if sent == 0:
                return 0
    fd = np.int32(words[ports.FD])
    plain = is_plain(port, peer, size)
    segment = 0 if plain else size
    if words[ports.SEGMENT] != segment:
        words[ports.TO] = segment
        if _setsockopt(fd, SOL_UDP, UDP_SEGMENT, words.ctypes.data + 8 * ports.TO, 4) < 0:
            words[ports.ERRNO] = _errno()[0]
            words[ports.MASK_AT + ports.SENDING] -= length // size * words[ports.FAULTY]
            return FAILED
        words[ports.SEGMENT] = segment
    words[ports.TO], words[ports.TO + 1] = peer, 0
    name, name_bytes = words.ctypes.data + 8 * ports.TO, 16
    if peer & 0xFFFF == ports.AF_INET6:
        name, name_bytes = name_at(port, peer), ports.NAME6_BYTES  # where there is none the kernel says EDESTADDRREQ
    step = size if plain else sent
    for at in range(0, sent, step):
        part = min(step, sent - at)
        words[ports.CALLS_OUT] += 1
        if _sendto(fd, start + at, part, MSG_DONTWAIT, name, name_bytes if name != 0 else 0) < 0:
            if at != 0:  # the rest is as lost on the way: to send it all again would send some of it twice
                words[ports.UNSENT] += (sent - at) // size
                return 0
            words[ports.ERRNO] = _errno()[0]
            words[ports.MASK_AT + ports.SENDING] -= length // size * words[ports.FAULTY]
            return FAILED
        words[ports.DATAGRAMS_OUT] += part // size
        words[ports.BYTES_OUT] += part
    return 0


@jit
def had_no_room(port: Any) -> bool:
    """Whether `send` has failed since the kernel has no room for what is to be sent."""
    return port.words[ports.ERRNO] in (EAGAIN, ENOBUFS, ENOMEM)


@jit
def is_plain(port: Any, peer: int, size: int) -> bool:
    """Whether datagrams of ``size`` bytes to ``peer`` go one by one."""
    found = False
    for i in range(port.words[ports.PLAINS]):
        found |= port.plain[i, 0] == peer and port.plain[i, 1] == size
    return found
