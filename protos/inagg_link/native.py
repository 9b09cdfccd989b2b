"""System calls on a `Port`, compiled: batches in and out without a visit to Python, and without its lock.

It needs Numba, as `inagg_link.jit`. Functions of libc are found by their names when a loop is loaded, so loops
that use them can be cached.

Terms as in `udp`. Little-endian 64-bit Linux only, as Numba's other kernels here; `UdpLink.port` sees to it.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from typing import Any

import numpy as np
from numba import types
from numba.core.types import ExternalFunction

from inagg_link.base import MAX_BATCH_BYTES
from inagg_link.jit import inline, jit
from inagg_link.port import (
    AF_INET,
    AF_INET6,
    BYTES_IN,
    BYTES_OUT,
    CALLS_IN,
    CALLS_OUT,
    CLOCK,
    CONTROL,
    CONTROL_BYTES,
    CORRUPTED,
    DATAGRAMS_IN,
    DATAGRAMS_OUT,
    DESCRIPTOR,
    EMPTY,
    ERRNO,
    FAULTY,
    FD,
    HEARD,
    LOAD,
    LOOK_AT,
    LOST,
    MASK_AT,
    MASKS_AHEAD,
    MESSAGE,
    NAME,
    NAME6_BYTES,
    NAME_WORDS,
    NAMES,
    PAUSE,
    PEER,
    PLAINS,
    POLLED,
    PROCESSORS,
    READY,
    RECEIVING,
    SECRET,
    SEGMENT,
    SENDING,
    SIZE,
    SPARE,
    TEXT,
    TO,
    TRUNCATED,
    UNSENT,
    VECTOR,
    place_of,
)
from inagg_link.sockopt import SOL_UDP, UDP_GRO, UDP_SEGMENT
from inagg_wire.noise import MIX_1, MIX_2

Array = Any

_sendto: Any = ExternalFunction(
    "sendto", types.int64(types.int32, types.uintp, types.uintp, types.int32, types.uintp, types.uint32)
)
_recvmsg: Any = ExternalFunction("recvmsg", types.int64(types.int32, types.uintp, types.int32))
_setsockopt: Any = ExternalFunction(
    "setsockopt", types.int32(types.int32, types.int32, types.int32, types.uintp, types.uint32)
)
_ppoll: Any = ExternalFunction("ppoll", types.int32(types.uintp, types.uint64, types.uintp, types.uintp))
_memmove: Any = ExternalFunction("memmove", types.uintp(types.uintp, types.uintp, types.uint64))
_clock_gettime: Any = ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))
_pread: Any = ExternalFunction("pread", types.int64(types.int32, types.uintp, types.uint64, types.int64))
_sched_yield: Any = ExternalFunction("sched_yield", types.int32())
_read: Any = ExternalFunction("read", types.int64(types.int32, types.uintp, types.uint64))
_write: Any = ExternalFunction("write", types.int64(types.int32, types.uintp, types.uint64))
_pointer: Any = types.CPointer
_place_of: Any = inline(place_of)
_errno: Any = ExternalFunction("__errno_location", _pointer(types.int32)())

AGAIN, FAILED, DISCARDED, NO_FAULT_MASKS = -1, -2, -3, -4
"""Why `receive` brought nothing: nothing is there; the call failed, see `ERRNO`; what came cannot be used, and is
counted; more masks must be drawn first (so, too, `send`)."""

EAGAIN, ENOBUFS, ENOMEM = errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM
POLLIN, CLOCK_MONOTONIC = select.POLLIN, time.CLOCK_MONOTONIC
MSG_DONTWAIT, MSG_DISCARD = int(socket.MSG_DONTWAIT), int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
MOST_DATAGRAMS = MASKS_AHEAD // 4
"""A received batch of more, of a few bytes each, is none of ours: `MASKS_AHEAD` are there for so many."""

AWAKE_S = 0.0003
"""How long to stay awake when nothing has come, where there is a processor to spare: a few round trips. Who sleeps is
woken by the kernel, which takes as long as such a round trip: one worker and a switch that had a processor each, and
always stayed awake, summed 1 KiB in 0.09 ms, not 0.15, and 1 MiB in 0.26, not 0.37. Where none is to spare, others wait
meanwhile: two workers and a switch on two processors, always awake, took a quarter longer for 64 MiB."""
LOAD_EVERY_NS = 200_000
PAUSE_LEAST_NS, PAUSE_MOST_NS, PAUSE_PART = 1_000_000, 1_000_000_000, 64
SPACE, SLASH, ZERO = b" /0"


@jit
def clock(port: Any) -> Any:
    """Seconds, as time.monotonic."""
    words = port.words
    _clock_gettime(CLOCK_MONOTONIC, words.ctypes.data + 8 * CLOCK)
    return np.float64(words[CLOCK]) + np.float64(words[CLOCK + 1]) * 1e-9


@jit
def receive(port: Any) -> Any:
    """Receive a batch into ``port.buffer``; how many bytes, or why none (`AGAIN` and so on).

    The size of its datagrams, of which the last may be shorter, is in `SIZE`, who sent them in `PEER`
    (`inagg_link.port.key_of`). Those that are to be lost are taken out.
    A socket where nothing was is looked at again when `wait` has seen something there.
    """
    sockets = port.sockets
    for i in range(port.words[HEARD]):
        if sockets[READY, i] != 0:
            got = receive_from(port, sockets[DESCRIPTOR, i])
            if got != AGAIN:
                return got
            sockets[READY, i] = 0
    return AGAIN


@jit
def receive_from(port: Any, descriptor: int) -> Any:
    """`receive`, of one socket."""
    words, data = port.words, port.buffer
    if words[FAULTY] and words[MASK_AT + RECEIVING] + MOST_DATAGRAMS > MASKS_AHEAD:
        return NO_FAULT_MASKS
    words[MESSAGE + 1], words[MESSAGE + 5], words[MESSAGE + 6] = 8 * (CONTROL - NAME), CONTROL_BYTES, 0
    words[VECTOR + 1] = MAX_BATCH_BYTES
    got = _recvmsg(np.int32(descriptor), words.ctypes.data + 8 * MESSAGE, MSG_DONTWAIT)
    if got < 0:
        words[ERRNO] = _errno()[0]
        return AGAIN if words[ERRNO] == EAGAIN else FAILED
    words[CALLS_IN] += 1
    if got == 0 or words[MESSAGE + 6] & MSG_DISCARD:
        words[EMPTY if got == 0 else TRUNCATED] += 1
        return DISCARDED
    size = got
    # struct cmsghdr: length, level and type, then the number: cmsg(3).
    if words[MESSAGE + 5] >= 20 and words[CONTROL + 1] == SOL_UDP | UDP_GRO << 32:
        size = words[CONTROL + 2] & 0xFFFFFFFF
    count = (got + size - 1) // size
    words[DATAGRAMS_IN] += count
    words[BYTES_IN] += got
    words[SIZE], words[PEER] = size, key_of_name(words)
    if words[FAULTY]:
        if count > MOST_DATAGRAMS:
            words[TRUNCATED] += 1
            return DISCARDED
        got = survivors(port, data, got, size, RECEIVING, data)
        if got == 0:
            return DISCARDED
    return got


@jit
def key_of_name(words: Any) -> Any:
    """`inagg_link.port.key_of` the sender."""
    if words[NAME] & 0xFFFF == AF_INET:
        return words[NAME]
    x = mixed(np.uint64(words[SECRET]) ^ np.uint64(words[NAME] & 0xFFFFFFFF))  # without flow information
    x = mixed(x ^ np.uint64(words[NAME + 1]))
    x = mixed(x ^ np.uint64(words[NAME + 2]))
    x = mixed(x ^ np.uint64(words[NAME + 3] & 0xFFFFFFFF))
    return np.int64(x & np.uint64(0xFFFFFFFFFFFF0000)) | AF_INET6


@jit
def mixed(z: Any) -> Any:
    """`inagg_wire.noise.mix64`."""
    z = np.uint64((z ^ (z >> np.uint64(30))) * np.uint64(MIX_1))
    z = np.uint64((z ^ (z >> np.uint64(27))) * np.uint64(MIX_2))
    return np.uint64(z ^ (z >> np.uint64(31)))


@jit
def name_at(port: Any, key: int) -> Any:
    """The address in memory of the IPv6 address that has a key; 0 if none was registered."""
    at = _place_of(key)
    while port.names[at, 0] != 0:
        if port.names[at, 0] == key:
            return port.names.ctypes.data + 8 * (at * NAME_WORDS + 1)
        at = (at + 1) & (NAMES - 1)
    return 0


@jit
def spared(port: Any, count: int) -> bool:
    """Whether none of the next ``count`` datagrams to send are lost."""
    masks, at = port.masks[SENDING], port.words[MASK_AT + SENDING]
    all_of_them = 0
    for i in range(at, at + count):
        all_of_them |= masks[i]
    return all_of_them & (LOST | CORRUPTED) == 0


@jit
def survivors(port: Any, data: Array, length: int, size: int, direction: int, to: Array) -> Any:
    """Move what is not lost of the datagrams of ``size`` bytes in ``data``, ``length`` bytes, to the beginning of
    ``to``; how many bytes."""
    masks, at = port.masks[direction], port.words[MASK_AT + direction]
    left = 0
    for start in range(0, length, size):
        end = min(start + size, length)
        if not masks[at] & (LOST | CORRUPTED):
            if left != start or direction == SENDING:
                _memmove(to.ctypes.data + left, data.ctypes.data + start, end - start)
            left += end - start
        at += 1
    port.words[MASK_AT + direction] = at
    return left


@jit
def send(port: Any, data: Array, length: int, size: int, peer: int) -> Any:
    """Send ``length`` bytes, datagrams of ``size`` bytes and no more than one call takes, to ``peer``
    (`inagg_link.port.key_of`). 0; or `FAILED`, for the reason in `ERRNO`, or `NO_FAULT_MASKS`: then nothing is sent."""
    words = port.words
    start = data.ctypes.data
    sent = length
    if words[FAULTY]:
        if words[MASK_AT + SENDING] + length // size > MASKS_AHEAD:
            return NO_FAULT_MASKS
        if spared(port, length // size):
            words[MASK_AT + SENDING] += length // size
        else:
            sent = survivors(port, data, length, size, SENDING, port.scratch)
            start = port.scratch.ctypes.data
            if sent == 0:
                return 0
    fd = np.int32(words[FD])
    plain = is_plain(port, peer, size)
    segment = 0 if plain else size
    if words[SEGMENT] != segment:
        words[TO] = segment
        if _setsockopt(fd, SOL_UDP, UDP_SEGMENT, words.ctypes.data + 8 * TO, 4) < 0:
            words[ERRNO] = _errno()[0]
            words[MASK_AT + SENDING] -= length // size * words[FAULTY]
            return FAILED
        words[SEGMENT] = segment
    words[TO], words[TO + 1] = peer, 0
    name, name_bytes = words.ctypes.data + 8 * TO, 16
    if peer & 0xFFFF == AF_INET6:
        name, name_bytes = name_at(port, peer), NAME6_BYTES  # where there is none the kernel says EDESTADDRREQ
    step = size if plain else sent
    for at in range(0, sent, step):
        part = min(step, sent - at)
        words[CALLS_OUT] += 1
        if _sendto(fd, start + at, part, MSG_DONTWAIT, name, name_bytes if name != 0 else 0) < 0:
            if at != 0:  # the rest is as lost on the way: to send it all again would send some of it twice
                words[UNSENT] += (sent - at) // size
                return 0
            words[ERRNO] = _errno()[0]
            words[MASK_AT + SENDING] -= length // size * words[FAULTY]
            return FAILED
        words[DATAGRAMS_OUT] += part // size
        words[BYTES_OUT] += part
    return 0


@jit
def had_no_room(port: Any) -> bool:
    """Whether `send` has failed since the kernel has no room for what is to be sent."""
    return port.words[ERRNO] in (EAGAIN, ENOBUFS, ENOMEM)


@jit
def is_plain(port: Any, peer: int, size: int) -> bool:
    """Whether datagrams of ``size`` bytes to ``peer`` go one by one."""
    found = False
    for i in range(port.words[PLAINS]):
        found |= port.plain[i, 0] == peer and port.plain[i, 1] == size
    return found


@jit
def let_run() -> None:
    """Let others run who wait for this processor (sched_yield(2))."""
    _sched_yield()


@jit
def give_way(port: Any) -> None:
    """As `let_run`; then all sockets are to be looked at again."""
    let_run()
    port.sockets[READY, : port.words[HEARD]] = 1


@jit
def may_stay_awake(port: Any, now: float) -> bool:
    """Whether whoever has nothing to do may look again and again for a while (`AWAKE_S`), in place of sleeping: there
    is a processor to spare, since fewer threads run, or could, than the machine has processors.

    It looks for that every `LOAD_EVERY_NS`. If there is none, not before a pause, which is twice as long each time, and
    gets shorter as long as there is one.
    """
    words, at = port.words, np.int64(now * 1e9)
    if at >= words[LOOK_AT]:
        words[SPARE] = 0 < running(words) < words[PROCESSORS]
        if words[SPARE]:
            words[PAUSE] -= words[PAUSE] // PAUSE_PART
            words[LOOK_AT] = at + LOAD_EVERY_NS
        else:
            words[PAUSE] = min(max(2 * words[PAUSE], PAUSE_LEAST_NS), PAUSE_MOST_NS)
            words[LOOK_AT] = at + words[PAUSE]
    return bool(words[SPARE])


@jit
def running(words: Any) -> int:
    """How many threads of the machine run, or could: the fourth number of `processors.LOAD`. 0: it cannot be read."""
    text = words[TEXT:].view(np.uint8)
    size = _pread(np.int32(words[LOAD]), text.ctypes.data, len(text), 0)
    field, number = 0, 0
    for i in range(size):
        if text[i] == SPACE:
            field += 1
        elif text[i] == SLASH:
            break
        elif field == 3:
            number = 10 * number + text[i] - ZERO
    return number


@jit
def wait(port: Any, other: int, timeout_ns: int) -> Any:
    """Until something came, or the descriptor ``other`` has something to read, ``timeout_ns`` at most (if negative, for
    ever), or a signal came. Bit 0: something came; bit 1: ``other``."""
    words, sockets, count = port.words, port.sockets, port.words[HEARD]
    for i in range(count):
        sockets[POLLED, i] = sockets[DESCRIPTOR, i] | POLLIN << 32
    sockets[POLLED, count] = other | POLLIN << 32
    words[CLOCK], words[CLOCK + 1] = timeout_ns // 1000000000, timeout_ns % 1000000000
    timeout = words.ctypes.data + 8 * CLOCK if timeout_ns >= 0 else 0
    if _ppoll(sockets[POLLED].ctypes.data, count + 1, timeout, 0) <= 0:
        return 0
    came = 0
    for i in range(count):
        if sockets[POLLED, i] >> 48 != 0:
            sockets[READY, i], came = 1, 1
    return came | (2 if sockets[POLLED, count] >> 48 != 0 else 0)


@jit
def wait_for(port: Any, event: int) -> None:
    """Until an eventfd(2) is rung, or a signal came; whatever comes to the sockets."""
    port.sockets[POLLED, 0] = event | POLLIN << 32
    _ppoll(port.sockets[POLLED].ctypes.data, 1, 0, 0)


@jit
def ring(port: Any, event: int) -> None:
    """Add 1 to an eventfd(2)."""
    port.words[CLOCK] = 1
    _write(np.int32(event), port.words.ctypes.data + 8 * CLOCK, 8)


@jit
def silence(port: Any, event: int) -> None:
    """Set a non-blocking eventfd(2) to 0."""
    _read(np.int32(event), port.words.ctypes.data + 8 * CLOCK, 8)
