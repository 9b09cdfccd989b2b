"""How fast this machine moves UDP datagrams when nobody computes anything: what a switch is measured against.

`udp_echo_limit` runs real processes over loopback in the shape of an aggregation. n workers each keep a window of
batches in flight to one echo process; as soon as it has a batch's worth of datagrams from every worker it sends one
batch to each of them. So datagrams have the sizes, numbers and directions that they have around a switch, and nobody
looks inside.

The load (`load.Workers`) can be pointed at a real switch, with a `Feed` that makes valid contributions.

On two cores the system calls (4 us per batch) are not all: batches cross from one core's cache to the other's, and
processes wait for a core. A large window lets each work for a while before it sleeps; see WINDOW.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import numpy as np

from inagg_link import Address, Link, UdpLink, datagrams_per_call

from .load import RETRY_S, START_LIMIT_S, Child, ConstantFeed, Feed, Workers

__all__ = ["Echo", "EchoLimit", "Feed", "Workers", "plan", "udp_echo_limit"]

FRAME_DATAGRAM_BYTES = 1472  # fills a 1500-byte frame
# Batches in flight per worker. Measured on two cores with windows of 2, 8, 16, 32, in M datagrams/s: 1.0, 2.6, 4.2,
# 4.5 with one worker; 1.5, 2.5, 2.6, 2.9 with four.
WINDOW = 32
# The kernel charges a socket more than the payload: 1.01 times for a full batch, 1.6 for a lone datagram.
CHARGE = 1.6


@dataclass(frozen=True, slots=True)
class EchoLimit:
    """Figures of one run. Rates are those of the echo process, after its warm-up."""

    workers: int
    datagram_bytes: int
    batch_datagrams: int
    window: int
    seconds: float
    datagrams_in: int
    datagrams_out: int
    cpu_s: float
    """of the echo process, user and system, while it was measured"""
    workers_cpu_s: float
    """of all workers, from start to stop"""
    retries: int
    kernel_drops: int | None

    def elements_per_s(self, lanes: int) -> float:
        """Elements received each second, `lanes` in each datagram: from n workers n times the elements of the sums."""
        return self.datagrams_in / self.seconds * lanes


def plan(granted_bytes: int, workers: int, datagram_bytes: int, batch_datagrams: int, window: int) -> tuple[int, int]:
    """Shrink a load until the windows of all workers fit the receive buffer of `granted_bytes` (as the kernel counts).

    Returns (datagrams per batch, batches in flight per worker). First the window shrinks, to 2, then the batch.

    An unprivileged process on a stock Linux is granted 416 KiB, six full batches. ValueError: less than two datagrams
    per worker.
    """
    room = int(granted_bytes / CHARGE) // (workers * datagram_bytes)  # datagrams per worker
    if room < 2:
        raise ValueError(
            f"{workers} workers with two datagrams of {datagram_bytes} bytes in flight each do not fit a receive "
            f"buffer of {granted_bytes} bytes; raise it: sysctl -w net.core.rmem_max=33554432"
        )
    window = min(window, max(2, room // batch_datagrams))
    return min(batch_datagrams, room // window), window


class Echo:
    """Answers like a switch that does not look inside: for `batch_datagrams` from every peer, as many to each of them.

    `size` and `answer_size`: bytes per datagram of contributions and of results. `window`: batches in flight per peer;
    what a peer has sent beyond that, after a retry, does not count. Datagrams of another size, or from others, are
    received and not answered.
    """

    def __init__(
        self,
        link: Link,
        peers: Sequence[Address],
        *,
        size: int,
        answer_size: int,
        batch_datagrams: int,
        window: int,
    ) -> None:
        self._link = link
        self._peers = peers
        self._size = size
        self._answer_size = answer_size
        self._batch_datagrams = batch_datagrams
        self._surplus_limit = window * batch_datagrams
        self._answer = np.zeros(batch_datagrams * answer_size, np.uint8)
        self._pending = dict.fromkeys(peers, 0)  # datagrams that were not answered yet
        self._ready = 0  # peers with at least a batch pending

    def run(self, until: Callable[[], bool]) -> None:
        """Serve; `until` is asked after each receive."""
        pending, batch_datagrams = self._pending, self._batch_datagrams
        while not until():
            for batch in self._link.receive(RETRY_S):
                had = pending.get(batch.peer)
                if had is None or batch.size != self._size:
                    continue
                has = pending[batch.peer] = min(had + len(batch), self._surplus_limit)
                self._ready += had < batch_datagrams <= has
                while self._ready == len(self._peers):
                    self._link.send_many(self._answer, self._answer_size, self._peers)
                    for peer in self._peers:
                        pending[peer] -= batch_datagrams
                        self._ready -= pending[peer] < batch_datagrams


def _echo_process(connection: Connection, host: str, warm_up_s: float, seconds: float) -> None:
    """Echo process: tells its address and receive buffer, gets the peers and the plan, measures itself from the first
    datagrams on: on a busy machine workers may need longer than a warm-up before they send."""
    with UdpLink((host, 0)) as link:
        connection.send((None, (link.address, link.granted_receive_buffer_bytes)))
        peers, shape = connection.recv()
        echo = Echo(link, peers, **shape)
        begun = _after(START_LIMIT_S / 2)
        echo.run(lambda: link.counters.datagrams_in > 0 or begun())
        echo.run(_after(warm_up_s))
        before = (link.counters.datagrams_in, link.counters.datagrams_out)
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        echo.run(_after(seconds))
        elapsed_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
        after = link.counters
        moved = (after.datagrams_in - before[0], after.datagrams_out - before[1])
        connection.send((None, (elapsed_s, cpu_s, *moved, after.kernel_drops)))


def _after(seconds: float) -> Callable[[], bool]:
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= end_s


def udp_echo_limit(
    workers: int,
    datagram_bytes: int = FRAME_DATAGRAM_BYTES,
    seconds: float = 2.0,
    *,
    window: int = WINDOW,
    warm_up_s: float = 0.2,
    host: str = "127.0.0.1",
) -> EchoLimit:
    """Measure the limit with `workers` sender processes and one echo process; takes `seconds` and their start.

    Datagrams of results are as large as those of contributions. `window`: batches in flight per worker. It, and the
    datagrams of a batch, may become smaller where the kernel grants a small receive buffer: see the result, and `plan`.

    ValueError: the load does not fit. RuntimeError, TimeoutError: a process failed. No process is left in any case.
    """
    limit_s = warm_up_s + seconds + START_LIMIT_S  # of which it waits for the first datagrams half at most
    with ExitStack() as stack:
        server = Child("echo", _echo_process, host, warm_up_s, seconds)
        stack.callback(server.close)
        target, granted_bytes = server.receive(START_LIMIT_S)
        batch_datagrams, window = plan(
            granted_bytes, workers, datagram_bytes, datagrams_per_call(datagram_bytes), window
        )
        load = Workers(workers, target, size=datagram_bytes, window=window, limit_s=limit_s)
        stack.enter_context(load)
        shape = {"size": datagram_bytes, "answer_size": datagram_bytes}
        server.send((load.addresses, shape | {"batch_datagrams": batch_datagrams, "window": window}))
        load.start([partial(ConstantFeed, datagram_bytes, batch_datagrams, window)] * workers)
        elapsed_s, cpu_s, datagrams_in, datagrams_out, kernel_drops = server.receive(limit_s)
        reports = load.stop()
    return EchoLimit(
        workers=workers,
        datagram_bytes=datagram_bytes,
        batch_datagrams=batch_datagrams,
        window=window,
        seconds=elapsed_s,
        datagrams_in=datagrams_in,
        datagrams_out=datagrams_out,
        cpu_s=cpu_s,
        workers_cpu_s=sum(report.cpu_s for report in reports),
        retries=sum(report.retries for report in reports),
        kernel_drops=kernel_drops,
    )
