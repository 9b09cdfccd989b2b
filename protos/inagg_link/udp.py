"""A link over a UDP socket with the kernel's segmentation offload: one system call per batch, both ways.

What decided the shape, measured on loopback with 44 datagrams of 1472 bytes (one core of an AMD EPYC, Linux 6.18,
Python 3.11), in microseconds per call:

- send 3.9, of which 3.1 are paid by one byte just as well; receive 2.4 (1.4). One by one, the 44 cost 130 and
  46. A copy of these 64 KB is 0.8: the checksum is not computed on loopback, and nothing but the copy grows
  with the size.
- UDP_SEGMENT set on the socket (sendto) and not with each call (sendmsg with a control message) saves 0.3 per
  send; to change the size costs 0.35, and sizes change seldom. A connected socket saves another 0.35.
- sendmmsg and recvmmsg over prepared headers (ctypes) gain nothing at these sizes: 4.7 and 2.4.
- A batch in a small loop stays in the second level cache: 8 batches sent and then received cost 15 % more
  than 1, 64 cost 20 % more. So a `receive` drains at most half a megabyte.
- Linux's usual limit of 208 KiB for SO_RCVBUF holds 6 such batches; the kernel drops the rest. So we ask for
  much, and report what was granted.
- GSO sender to a receiver without GRO: 19 and 49; the sender gains even if the receiver cannot.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inagg_link import port as ports
from inagg_link import sockopt
from inagg_link.addresses import Address, canonical
from inagg_link.base import (
    MAX_BATCH_BYTES,
    MAX_BATCH_DATAGRAMS,
    Batch,
    Counters,
    Link,
    Traffic,
    count_datagrams,
    datagrams_per_call,
)

ANY: Address = ("127.0.0.1", 0)

ANCILLARY_BYTES = socket.CMSG_SPACE(4) * 2  # the one message that we ask for, and room to spare
BURST_CALLS = 1024
"""Most system calls of one `receive`, since datagrams that are discarded fill no buffer."""

TRUNCATED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)  # to compare with the enumeration costs a microsecond

_NO_ROOM = frozenset((errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM))
_ICMP = frozenset((errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EPROTO))
_REFUSED = _ICMP | {errno.EPERM, errno.EACCES, errno.ENETDOWN, errno.EMSGSIZE, errno.EINVAL, errno.EIO}
# How the kernel refuses to cut a batch (net/ipv4/udp.c, udp_send_skb): EIO where the route cannot compute
# checksums later (IPsec), EMSGSIZE (EINVAL in older kernels) where a segment would not fit the MTU: unlike
# plain datagrams, which IP fragments.
_OFFLOAD_REFUSED = frozenset((errno.EIO, errno.EINVAL, errno.EMSGSIZE))
_LIKE_NATIVE = sys.platform == "linux" and sys.byteorder == "little" and struct.calcsize("P") == 8


class SocketLink(Link):
    """A link whose descriptor is readable while there is something to receive."""

    def receive(self, timeout_s: float) -> list[Batch]:
        batches = self._drain()
        if not batches and timeout_s > 0.0 and sockopt.wait_readable(self.fileno(), timeout_s):
            batches = self._drain()
        return batches

    @abstractmethod
    def _drain(self) -> list[Batch]:
        """The batches that are there now, as `receive` returns them."""


class UdpLink(SocketLink):
    """A bound UDP socket, of IPv4 or IPv6 as the literal `address` says. Port 0 takes a free one: see `address`.

    `connect`: the one peer. Sends are faster, the kernel discards what others send, and ICMP errors are reported.
    `offload`: None uses UDP_SEGMENT and UDP_GRO where the kernel has them, True insists, False does without.
    `receive_buffer_bytes`, `send_buffer_bytes`: what to ask the kernel for. `granted_receive_buffer_bytes` and
    `granted_send_buffer_bytes` say what it gave, as it counts, which is twice what it was asked for. A full batch
    is charged 1.01 times its bytes, a lone datagram of 1472 bytes 1.6 times.
    `burst_bytes`: how much one `receive` returns at most, and one batch more.
    `interface`: `address` is a multicast group, joined on the interface that has this address.

    ValueError: a host is no literal address. OSError: cannot bind; with errno EOPNOTSUPP, no offload where it was
    insisted on.
    """

    def __init__(
        self,
        address: Address = ANY,
        *,
        connect: Address | None = None,
        offload: bool | None = None,
        receive_buffer_bytes: int = 32 << 20,
        send_buffer_bytes: int = 8 << 20,
        burst_bytes: int = 512 << 10,
        interface: str | None = None,
    ) -> None:
        self._peer = None if connect is None else canonical(connect)
        self._socket = sockopt.open_socket(address, self._peer, interface)
        try:
            self.gso = offload is not False and sockopt.enable(self._socket, sockopt.UDP_SEGMENT, 0)
            self.gro = offload is not False and sockopt.enable(self._socket, sockopt.UDP_GRO, 1)
            if offload and not (self.gso and self.gro):
                raise OSError(errno.EOPNOTSUPP, "this kernel has no UDP_SEGMENT or no UDP_GRO")
            self.granted_receive_buffer_bytes = sockopt.grow_buffer(
                self._socket, socket.SO_RCVBUF, sockopt.SO_RCVBUFFORCE, receive_buffer_bytes
            )
            self.granted_send_buffer_bytes = sockopt.grow_buffer(
                self._socket, socket.SO_SNDBUF, sockopt.SO_SNDBUFFORCE, send_buffer_bytes
            )
            self._address = self._name(self._socket.getsockname())
        except BaseException:
            self._socket.close()
            raise
        self._counters = Counters()
        # Each call may bring MAX_BATCH_BYTES: that much room is left behind the last place where one may start.
        self._burst_bytes = burst_bytes
        memory = bytearray(burst_bytes + MAX_BATCH_BYTES)
        self._view = memoryview(memory)
        self._buffer = np.frombuffer(memory, np.uint8)
        # bound methods: one attribute look-up less per call
        self._recvmsg_into: Callable[..., Any] = self._socket.recvmsg_into
        self._sendto: Callable[..., int] = self._socket.sendto
        self._send: Callable[..., int] = self._socket.send
        self._sizes: dict[bytes, int] = {}  # UDP_GRO control message -> the size that it says
        self._port = ports.make_port(self._socket.fileno())
        self._words: ports.Words = self._port.words
        self._size = 1  # size of the last batch sent, and the most bytes of such datagrams that one call takes
        self._batch_datagrams = sockopt.segments_most() if self.gso else MAX_BATCH_DATAGRAMS
        self._call_bytes = datagrams_per_call(1, self._batch_datagrams)
        self._plain_only: set[tuple[Address, int]] = set()  # (peer, size) whose route refused the offload

    def __repr__(self) -> str:
        to = "" if self._peer is None else f", connect={self._peer}"
        return f"UdpLink({self._address}{to}, gso={self.gso}, gro={self.gro})"

    @property
    def address(self) -> Address:
        return self._address

    @property
    def batch_datagrams(self) -> int:
        return self._batch_datagrams

    def port(self) -> ports.Port | None:
        """The port of the socket; None if it is connected, and where an offload is missing. A peer whose route refuses
        it gets datagrams one by one; the others do not notice."""
        if not (self.gso and self.gro and self._peer is None and _LIKE_NATIVE):
            return None
        self._port.sockets[ports.READY] = 1
        return self._port

    @property
    def counters(self) -> Counters:
        self._absorb()
        if self._socket.fileno() >= 0:
            self._counters.kernel_drops = sockopt.receive_drops(self._socket)
        return self._counters

    @property
    def traffic(self) -> Traffic:
        in_, bytes_in, _, out, bytes_out = self._words[ports.DATAGRAMS_IN : ports.CALLS_OUT].tolist()
        c = self._counters
        return c.datagrams_out + out, c.datagrams_in + in_, c.bytes_out + bytes_out, c.bytes_in + bytes_in

    def _absorb(self) -> None:
        """Add what a compiled loop has counted."""
        c, counted = self._counters, self._words[ports.DATAGRAMS_IN : ports.EMPTY + 1]
        in_, bytes_in, calls_in, out, bytes_out, calls_out, truncated, empty = counted.tolist()
        counted[:] = 0
        c.datagrams_in, c.bytes_in, c.calls_in = c.datagrams_in + in_, c.bytes_in + bytes_in, c.calls_in + calls_in
        c.datagrams_out, c.bytes_out = c.datagrams_out + out, c.bytes_out + bytes_out
        c.calls_out, c.truncated, c.empty = c.calls_out + calls_out, c.truncated + truncated, c.empty + empty
        c.send_refused += int(self._words[ports.UNSENT])
        c.send_blocked += int(self._words[ports.BLOCKED])
        self._words[ports.UNSENT] = self._words[ports.BLOCKED] = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def send_to_groups(self, hops: int) -> None:
        """Send to multicast groups by the interface that has this link's address, for so many hops. OSError: it
        cannot."""
        sockopt.send_to_groups(self._socket, self._address[0], hops)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._counters.kernel_drops = sockopt.receive_drops(self._socket)
        self._words[ports.FD] = self._port.sockets[ports.DESCRIPTOR] = -1  # the number may soon be another's
        self._socket.close()

    def send(self, batch: Batch) -> int:
        return self._transmit(batch.data, batch.size, batch.peer)

    def send_many(self, data: NDArray[np.uint8], size: int, peers: Sequence[Address]) -> int:
        accepted = 0
        for peer in peers:
            accepted += self._transmit(data, size, peer)
        return accepted

    # --- receiving ---

    def _drain(self) -> list[Batch]:
        """Read until nothing is left or the buffer is full.

        Each call appends to the buffer, so a run of datagrams of one size from one peer is one batch, however the
        kernel cut it; without GRO that is what makes batches at all.
        """
        batches: list[Batch] = []
        recvmsg_into, view, buffer, sizes = self._recvmsg_into, self._view, self._buffer, self._sizes
        burst_bytes = self._burst_bytes
        start = end = size = 0  # the open run: its bytes, the size of its datagrams
        peer: Address = ANY
        datagrams = calls = 0
        while end <= burst_bytes and calls < BURST_CALLS:
            calls += 1
            try:
                nbytes, ancillary, flags, source = recvmsg_into((view[end : end + MAX_BATCH_BYTES],), ANCILLARY_BYTES)
            except BlockingIOError:
                calls -= 1
                break
            except OSError as error:
                self.receive_failed(error.errno or 0)
                continue
            if flags & TRUNCATED or nbytes == 0:
                self._count_discarded(flags)
                continue
            if ancillary:  # nothing but UDP_GRO was asked for
                value = ancillary[0][2]
                received_size = sizes.get(value) or self._learn_size(value)
            else:
                received_size = nbytes
            if len(source) != 2:
                source = self._name(source)
            if received_size != size or source != peer:
                if start != end:
                    datagrams += (end - start) // size
                    batches.append(Batch(buffer[start:end], size, peer))
                start, size, peer = end, received_size, source
            end += nbytes
            if nbytes % received_size:
                datagrams += self._close_uneven(batches, start, end, size, peer)
                start, size = end, 0
        if start != end:
            datagrams += (end - start) // size
            batches.append(Batch(buffer[start:end], size, peer))
        counters = self._counters
        counters.calls_in += calls
        counters.datagrams_in += datagrams
        counters.bytes_in += end
        return batches

    def _close_uneven(self, batches: list[Batch], start: int, end: int, size: int, peer: Address) -> int:
        """End a run whose last datagram is shorter, as only the last of those that a kernel merged may be."""
        rest = (end - start) % size
        if end - rest > start:
            batches.append(Batch(self._buffer[start : end - rest], size, peer))
        batches.append(Batch(self._buffer[end - rest : end], rest, peer))
        return (end - start) // size + 1

    def _learn_size(self, value: bytes) -> int:
        """The segment size in a UDP_GRO control message; at most 2^16 of them, so what was seen is remembered."""
        size: int = struct.unpack("@i", value)[0]
        self._sizes[value] = size
        return size

    def _count_discarded(self, flags: int) -> None:
        if flags & TRUNCATED:
            self._counters.truncated += 1
        else:
            self._counters.empty += 1

    def receive_failed(self, number: int) -> None:
        if number not in _ICMP:
            raise OSError(number, os.strerror(number))
        self._count_error(number)
        self._counters.unreachable += 1

    def _name(self, source: tuple[Any, ...]) -> Address:
        """IPv6 has (host, port, flow, scope). Link-local addresses need the scope; it belongs to the host's name."""
        if len(source) == 4 and source[3]:
            return f"{source[0].partition('%')[0]}%{socket.if_indextoname(source[3])}", source[1]
        return source[0], source[1]

    # --- sending ---

    def _transmit(self, data: NDArray[np.uint8], size: int, peer: Address) -> int:
        nbytes = data.nbytes
        if size != self._size or nbytes % size:
            count_datagrams(data, size)
            self._size, self._call_bytes = size, datagrams_per_call(size, self._batch_datagrams) * size
        if self._peer is not None and peer != self._peer:
            raise ValueError(f"this link is connected to {self._peer} and cannot send to {peer}")
        offload = self.gso and (not self._plain_only or (peer, size) not in self._plain_only)
        step = self._call_bytes if offload else size
        retry = False  # was the offload refused, and the first plain datagram not sent yet?
        accepted = 0
        while accepted < nbytes:
            part = data if nbytes <= step else data[accepted : accepted + step]
            error = self._call(part, size if offload else 0, peer)
            if not error:
                accepted += part.nbytes
                if retry:  # so it was the offload
                    retry = False
                    self._remember_plain(peer, size)
            elif offload and error in _OFFLOAD_REFUSED:
                offload, step, retry = False, size, True
            else:
                self._count_unsent(error, (nbytes - accepted) // size)
                break
        self._counters.datagrams_out += accepted // size
        self._counters.bytes_out += accepted
        return accepted // size

    def _remember_plain(self, peer: Address, size: int) -> None:
        self._counters.offload_refused += 1
        if len(self._plain_only) >= ports.PLAINS_MOST:
            self._plain_only.clear()  # to forget costs one more refusal each
        self._plain_only.add((peer, size))
        for i, (host, of_size) in enumerate(self._plain_only):
            self._port.plain[i] = ports.register(self._port, host), of_size
        self._words[ports.PLAINS] = len(self._plain_only)

    def _call(self, data: NDArray[np.uint8], segment: int, peer: Address) -> int:
        """One system call; 0, or the errno by which it failed. A datagram socket takes all or nothing."""
        if segment != self._words[ports.SEGMENT]:
            self._socket.setsockopt(sockopt.SOL_UDP, sockopt.UDP_SEGMENT, segment)
            self._words[ports.SEGMENT] = segment
        for _ in range(2):
            self._counters.calls_out += 1
            try:
                if self._peer is None:
                    self._sendto(data, peer)
                else:
                    self._send(data)
                return 0
            except OSError as error:
                if error.errno not in _NO_ROOM and error.errno not in _REFUSED:
                    raise
                failure = error.errno
            self._count_error(failure)
            if failure != errno.ECONNREFUSED:
                break
            # An ICMP answer to an earlier send, reported once, in place of this send: which has not happened.
            self._counters.unreachable += 1
        return failure

    def _count_error(self, number: int) -> None:
        name = errno.errorcode.get(number, str(number))
        self._counters.errors[name] = self._counters.errors.get(name, 0) + 1

    def _count_unsent(self, number: int, datagrams: int) -> None:
        if number in _NO_ROOM:
            self._counters.send_blocked += datagrams
        else:
            self._counters.send_refused += datagrams
