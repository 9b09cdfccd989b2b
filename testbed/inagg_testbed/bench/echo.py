"""How fast processes echo UDP datagrams, and compute nothing: what a switch is measured against.

`measure_echo` runs real processes over loopback in the shape of an aggregation. n workers each keep a window of
batches in flight to an echo process; as soon as it has a batch's worth of datagrams from every worker it sends one
batch to each of them. So datagrams have the sizes, numbers and directions that they have around a switch, and nobody
looks inside. It is no upper limit: the echo is a loop of Python's, of a switch it is compiled.

The load (`load.Workers`) can be pointed at a real switch, with a `Feed` that makes valid contributions.

On two cores the system calls (4 us per batch) are not all: batches cross from one core's cache to the other's, and
processes wait for a core. A large window lets each work for a while before it sleeps. Measured on two cores with
windows of 2, 8, 16 and 32 batches, in M datagrams/s: 1.0, 2.6, 4.2, 4.5 with one worker; 1.5, 2.5, 2.6, 2.9 with four.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from inagg_link.addresses import Address
from inagg_link.base import Link
from inagg_link.udp import UdpLink

from .children import Child, receive_all
from .load import RETRY_S, START_LIMIT_S, ConstantFeed, Workers

# The kernel charges a socket more than the payload: 1.01 times for a full batch, 1.6 for a lone datagram.
CHARGE = 1.6


class Load(NamedTuple):
    """Datagrams that each worker sends and gets."""

    size: int
    """Bytes of a contribution, and ``answer_size`` those of a result."""
    answer_size: int
    batch_datagrams: int
    window: int
    """Batches in flight."""


@dataclass(frozen=True, slots=True)
class EchoRate:
    """Figures of one run. Rates are those of the echo processes, each after its warm-up."""

    load: Load
    """The load as it was: see `plan`."""
    seconds: float
    datagrams_in: int
    datagrams_out: int

    def elements_per_s(self, lanes: int) -> float:
        """Elements received each second, `lanes` in each datagram: from n workers n times the elements of the sums."""
        return self.datagrams_in / self.seconds * lanes


RAISE_IT = "sysctl -w net.core.rmem_max=33554432"
"""The command that lets the kernel grant larger receive buffers."""


def plan(granted_bytes: int, workers: int, load: Load) -> Load:
    """Shrink a load until the windows of all workers fit the receive buffer of `granted_bytes` (as the kernel counts),
    and a worker's results its own. First the window shrinks, to 2, then the batch.

    An unprivileged process on a stock Linux is granted 416 KiB, six full batches. ValueError: less than two datagrams
    per worker.
    """
    room = int(granted_bytes / CHARGE) // max(workers * load.size, load.answer_size)  # datagrams per worker
    if room < 2:
        raise ValueError(
            f"{workers} workers with two datagrams of {load.size} bytes in flight each do not fit a receive "
            f"buffer of {granted_bytes} bytes; raise it: {RAISE_IT}"
        )
    window = min(load.window, max(2, room // load.batch_datagrams))
    return load._replace(batch_datagrams=min(load.batch_datagrams, room // window), window=window)


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
        peers, load = connection.recv()
        echo = Echo(link, peers, **load._asdict())
        begun = _after(START_LIMIT_S / 2)
        echo.run(lambda: link.counters.datagrams_in > 0 or begun())
        echo.run(_after(warm_up_s))
        before = (link.counters.datagrams_in, link.counters.datagrams_out)
        start_s = time.perf_counter()
        echo.run(_after(seconds))
        elapsed_s, after = time.perf_counter() - start_s, link.counters
        connection.send((None, (elapsed_s, after.datagrams_in - before[0], after.datagrams_out - before[1])))


def _after(seconds: float) -> Callable[[], bool]:
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= end_s


def measure_echo(
    workers: int,
    load: Load,
    seconds: float = 2.0,
    *,
    shards: int = 1,
    warm_up_s: float = 0.2,
    host: str = "127.0.0.1",
) -> EchoRate:
    """Measure it with `shards` echo processes, each with `workers` sender processes; takes `seconds` and their
    start. The load may become smaller where the kernel grants a small receive buffer: see the result, and `plan`.

    ValueError: the load does not fit. RuntimeError, TimeoutError: a process failed. No process is left in any case.
    """
    limit_s = warm_up_s + seconds + START_LIMIT_S  # of which it waits for the first datagrams half at most
    with ExitStack() as stack:
        servers: list[Child] = []
        groups: list[Workers] = []
        for _ in range(shards):
            servers.append(server := Child("echo", _echo_process, host, warm_up_s, seconds))
            stack.callback(server.close)
        for server in servers:
            target, granted_bytes = server.receive(START_LIMIT_S)
            load = plan(granted_bytes, workers, load)
            group = Workers(workers, target, size=load.size, window=load.window, limit_s=limit_s)
            groups.append(stack.enter_context(group))
        for server, group in zip(servers, groups, strict=True):
            server.send((group.addresses, load))
        for group in groups:
            group.start([partial(ConstantFeed, load.size, load.batch_datagrams, load.window)] * workers)
        found = receive_all(servers, limit_s)
        for group in groups:
            group.stop()
    elapsed_s, datagrams_in, datagrams_out = (sum(of_shards) for of_shards in zip(*found, strict=True))
    return EchoRate(load, elapsed_s / shards, datagrams_in, datagrams_out)
