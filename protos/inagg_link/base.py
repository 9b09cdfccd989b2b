"""A link moves batches of equal datagrams between addresses, one system call per batch.

A system call per datagram costs more than all the arithmetic on the datagram (measured with 1472 bytes over
loopback, one core: 44 datagrams cost 130 us to send one by one and 4 us as one batch). So the unit here is
the `Batch`.

`udp` sends them over sockets. `fault_link` and `pcap` go around any link (`around`), so they stack:
`FaultLink(CaptureLink(UdpLink(...), "run.pcap"), Faults(drop=0.01), seed=7)`.

A link is used by one thread at a time; no method locks.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from inagg_link.addresses import Address
from inagg_link.sockopt import SEGMENTS_LEAST
from inagg_wire.layout import UDP_PAYLOAD_BYTES_BATCH, UDP_PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from inagg_link.port import Port

MAX_DATAGRAM_BYTES = UDP_PAYLOAD_BYTES_MAX
"""Most payload of a datagram over IPv4. IPv6 has 20 more, which we do not use."""

MAX_BATCH_DATAGRAMS = SEGMENTS_LEAST
"""Datagrams that one call sends on any kernel with UDP_SEGMENT; newer kernels send more: see `Link.batch_datagrams`."""

MAX_BATCH_BYTES = 65_535
"""Most bytes in a received batch: the kernel merges datagrams until the length of an IP packet, 16 bits, is full."""


@dataclass(slots=True, eq=False)
class Batch:
    """k datagrams of equal size, back to back.

    `data`: contiguous 1-D uint8 array of k * size bytes, often a view of a buffer that its owner will use
    again. Its first byte may lie at any address: received data promises no alignment.
    `size`: bytes per datagram, 1..MAX_DATAGRAM_BYTES.
    `peer`: the source of a received batch, the destination of one to send.

    The constructor checks nothing, since it stands on the hot path; `Link.send` checks.
    """

    data: NDArray[np.uint8]
    size: int
    peer: Address

    def __len__(self) -> int:
        """The number of datagrams, k."""
        return self.data.size // self.size

    def __repr__(self) -> str:
        return f"Batch({len(self)} x {self.size} bytes, peer={self.peer})"

    @property
    def datagrams(self) -> NDArray[np.uint8]:
        """The same bytes as an array of shape (k, size): one row is one datagram."""
        return self.data.reshape(-1, self.size)

    def copy(self) -> Batch:
        """The same batch in memory of its own, to keep beyond the next `receive`."""
        return Batch(self.data.copy(), self.size, self.peer)


@dataclass(slots=True)
class Counters:
    """Counters of a link since it was opened. Bytes are UDP payload. What is lost here is counted here."""

    datagrams_in: int = 0
    bytes_in: int = 0
    calls_in: int = 0
    """system calls that brought something"""
    datagrams_out: int = 0
    bytes_out: int = 0
    calls_out: int = 0
    """system calls to send, with those that failed"""
    send_blocked: int = 0
    """datagrams that the kernel had no room for (EAGAIN, ENOBUFS, ENOMEM)"""
    send_refused: int = 0
    """datagrams that the kernel refused for another cause (no route, firewall, too long for the path): see `errors`"""
    unreachable: int = 0
    """ICMP errors that came back: nobody listens there, or no way to get there"""
    offload_refused: int = 0
    """pairs of peer and size for which the route takes no batch in one call; they go datagram by datagram"""
    truncated: int = 0
    """received datagrams, or batches, that did not fit the buffer; discarded"""
    empty: int = 0
    """received datagrams without payload; discarded, since a batch of them has no length"""
    kernel_drops: int | None = 0
    """buffers (a batch or a datagram) that the kernel dropped at this socket since it was full, or the checksum wrong;
    None where the kernel does not tell"""
    errors: dict[str, int] = field(default_factory=dict)
    """errno name -> how many system calls failed so"""


Traffic = tuple[int, int, int, int]
"""Datagrams sent and received, bytes sent and received."""


def traffic_of(c: Counters) -> Traffic:
    return c.datagrams_out, c.datagrams_in, c.bytes_out, c.bytes_in


class Link(Protocol):
    """Sends and receives batches. Every link is also a context manager that closes itself."""

    @property
    @abstractmethod
    def address(self) -> Address:
        """Address at which others reach this link: its own bound address and port."""

    @property
    @abstractmethod
    def counters(self) -> Counters:
        """The link's own, live counters (a wrapper's are those of the link below). Copy them to keep them."""

    @property
    def traffic(self) -> Traffic:
        """The counters that change with every operation; no question to the kernel."""
        return traffic_of(self.counters)

    @property
    def next_due_s(self) -> float | None:
        """Time at which to call `receive` though nothing has come, on the clock of time.monotonic: a link that holds
        batches back passes them on then. None: it holds none."""
        return None

    @property
    def batch_datagrams(self) -> int:
        """The most datagrams that one call sends."""
        return MAX_BATCH_DATAGRAMS

    def port(self) -> Port | None:
        """The port that a compiled loop may use in place of `receive` and `send`, for as long as it likes, ready for
        use; None: there is none. See `inagg_link.port`."""
        return None

    def receive_failed(self, number: int) -> None:
        """Count that a loop's call to receive failed, with this errno; OSError, if the link is closed or broken."""
        raise OSError(number, os.strerror(number))

    @abstractmethod
    def fileno(self) -> int:
        """The descriptor to wait on; io.UnsupportedOperation where there is none."""

    @abstractmethod
    def receive(self, timeout_s: float) -> list[Batch]:
        """Batches that have arrived, in order of arrival for each peer; waits at most `timeout_s` seconds for the
        first.

        With `timeout_s` 0 it never waits. It returns as soon as there is something, and what one call returns is
        bounded, so that a sender who never pauses cannot keep it here. It may return an empty list before the
        time is over: look at your own clock. Neighbours of one size from one peer may come as one batch, of any number
        of datagrams.

        The batches are views of the link's buffers and valid until the next `receive` on this link; `Batch.copy`
        keeps one. Errors of the network (ICMP, overflow) are counted and never raised. OSError: the link is
        closed or broken.
        """

    @abstractmethod
    def send(self, batch: Batch) -> int:
        """Hand a batch of any number of datagrams to the kernel; returns how many it accepted. Never waits.

        The accepted ones are the first of the batch. The others were not sent and stand in `send_blocked` or
        `send_refused`. Accepted is not delivered: UDP promises nothing. The bytes are copied before the call
        returns.

        ValueError: `data` is not a whole number of datagrams, `size` is not 1..MAX_DATAGRAM_BYTES, or `peer` is
        not the one that the link is connected to. OSError: the link is closed or broken.
        """

    @abstractmethod
    def send_many(self, data: NDArray[np.uint8], size: int, peers: Sequence[Address]) -> int:
        """`send` the same datagrams to each of `peers`, in their order; returns how many were accepted in all.

        Nobody was left out if the result is `data.size // size * len(peers)`.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what the link holds. Closing twice is allowed; a wrapper closes the link below."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def check_size(size: int) -> None:
    """ValueError unless a datagram may have `size` bytes."""
    if not 1 <= size <= MAX_DATAGRAM_BYTES:
        raise ValueError(f"a datagram has 1..{MAX_DATAGRAM_BYTES} bytes of payload, not {size}")


def count_datagrams(data: NDArray[np.uint8], size: int) -> int:
    """Number of datagrams of `size` bytes in `data`. ValueError: not a whole number, or no such size."""
    check_size(size)
    count, rest = divmod(data.nbytes, size)
    if rest:
        raise ValueError(f"{data.nbytes} bytes are not a whole number of datagrams of {size} bytes")
    return count


def datagrams_per_call(size: int, most: int = MAX_BATCH_DATAGRAMS) -> int:
    """Most datagrams of `size` bytes that one system call sends: `most`, and no more than stay in one piece.

    44 for the 1472 bytes that fill a 1500-byte frame.
    """
    check_size(size)
    return min(most, max(UDP_PAYLOAD_BYTES_BATCH // size, 1))


def split(batch: Batch) -> Iterator[Batch]:
    """Cut a batch into views that fit one system call each, in order; the batch itself if it fits."""
    step = datagrams_per_call(batch.size) * batch.size
    if batch.data.nbytes <= step:
        yield batch
        return
    for start in range(0, batch.data.nbytes, step):
        yield Batch(batch.data[start : start + step], batch.size, batch.peer)
