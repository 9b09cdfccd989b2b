"""Links within one process: no sockets, no threads, and the same outcome every time.

A send puts a copy of the batch into the receiver's queue at once. Time does not pass by itself: give the
network a `ManualClock` and a `receive` that finds nothing moves it on by its timeout, so that time-outs in a
test cost no time.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inagg_link.addresses import Address, canonical
from inagg_link.base import Batch, Counters, Link, count_datagrams, split

FIRST_PORT = 49_152  # the first of the dynamic ports, RFC 6335 section 6
BURST_BATCHES = 16
"""Most batches that one `receive` returns."""


class ManualClock:
    """A clock in seconds that moves only when told to; call it to read it, as time.monotonic."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """ValueError if `seconds` is negative."""
        if seconds < 0.0:
            raise ValueError(f"a clock does not go back by {-seconds} s")
        self._now_s += seconds


class MemoryNetwork:
    """The wire between `MemoryLink`s. Lossless and in order; what is lost is lost as with UDP: no such port,
    or a full queue.

    `queue_bytes`: payload that waits at one link before more of it is dropped (its `kernel_drops`).
    """

    def __init__(self, *, clock: ManualClock | None = None, queue_bytes: int = 32 << 20) -> None:
        self.clock = clock
        self.queue_bytes = queue_bytes
        self._links: dict[Address, MemoryLink] = {}
        self._next_port = FIRST_PORT

    def link(self, address: Address = ("127.0.0.1", 0), *, connect: Address | None = None) -> MemoryLink:
        """A new link; port 0 takes the next free one. OSError if the address is taken, ValueError if it is no
        literal.
        """
        host, port = canonical(address)
        if port == 0:
            while (host, self._next_port) in self._links:
                self._next_port += 1
            port = canonical((host, self._next_port))[1]
        if (host, port) in self._links:
            raise OSError(f"{host}:{port} is taken in this network")
        link = MemoryLink(self, (host, port), None if connect is None else canonical(connect))
        self._links[host, port] = link
        return link

    def _deliver(self, batch: Batch, source: Address) -> bool:
        """Queue one batch at its destination; False if nobody there takes it."""
        link = self._links.get(batch.peer)
        if link is None or link._peer not in (None, source):
            return False
        link._enqueue(Batch(batch.data.copy(), batch.size, source))
        return True

    def _remove(self, address: Address) -> None:
        self._links.pop(address, None)


class MemoryLink(Link):
    """Made by `MemoryNetwork.link`. It has no descriptor; each "system call" of its counters is one batch
    handed over.
    """

    def __init__(self, network: MemoryNetwork, address: Address, peer: Address | None) -> None:
        self._network = network
        self._address = address
        self._peer = peer
        self._queue: deque[Batch] = deque()
        self._queued_bytes = 0
        self._counters = Counters()
        self._closed = False

    def __repr__(self) -> str:
        return f"MemoryLink({self._address})"

    @property
    def address(self) -> Address:
        return self._address

    @property
    def counters(self) -> Counters:
        return self._counters

    def fileno(self) -> int:
        raise io.UnsupportedOperation("a link in memory has no descriptor")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._queue.clear()
            self._network._remove(self._address)

    def receive(self, timeout_s: float) -> list[Batch]:
        self._check_open()
        if not self._queue and self._network.clock is not None:
            self._network.clock.advance(max(timeout_s, 0.0))
        batches = [self._queue.popleft() for _ in range(min(BURST_BATCHES, len(self._queue)))]
        for batch in batches:
            self._queued_bytes -= batch.data.nbytes
            self._counters.calls_in += 1
            self._counters.datagrams_in += len(batch)
            self._counters.bytes_in += batch.data.nbytes
        return batches

    def send(self, batch: Batch) -> int:
        self._check_open()
        count = count_datagrams(batch.data, batch.size)
        if self._peer is not None and batch.peer != self._peer:
            raise ValueError(f"this link is connected to {self._peer} and cannot send to {batch.peer}")
        if count:
            for part in split(batch):
                self._counters.calls_out += 1
                if not self._network._deliver(part, self._address):
                    self._counters.unreachable += 1
        self._counters.datagrams_out += count
        self._counters.bytes_out += batch.data.nbytes
        return count

    def send_many(self, data: NDArray[np.uint8], size: int, peers: Sequence[Address]) -> int:
        return sum(self.send(Batch(data, size, peer)) for peer in peers)

    def _enqueue(self, batch: Batch) -> None:
        if self._queued_bytes + batch.data.nbytes > self._network.queue_bytes:
            self._counters.kernel_drops = (self._counters.kernel_drops or 0) + 1
            return
        self._queue.append(batch)
        self._queued_bytes += batch.data.nbytes

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(f"{self} is closed")
