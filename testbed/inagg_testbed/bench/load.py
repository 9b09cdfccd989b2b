"""A load on a switch over UDP: worker processes that keep a window of batches in flight and count the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from inagg_link.addresses import Address
from inagg_link.base import Batch, Link
from inagg_link.udp import UdpLink

from .children import Child, ask, receive_all

START_LIMIT_S = 60.0  # 33 interpreters that import numpy, on two cores
WORKERS_STOP_LIMIT_S = 10.0
RETRY_S = 0.05  # a loopback answers a window within a few milliseconds, on a loaded machine too
STOP_CHECK_RECEIVES = 64


class Feed(Protocol):
    """Source of what a worker sends, and taker of its results."""

    def next_batch(self) -> NDArray[np.uint8]:
        """The datagrams to send next: always the same number. Valid until the next call."""

    def take(self, batch: Batch) -> int:
        """Look at received datagrams; returns how many of them are answers that let new ones be sent."""

    def unanswered(self) -> Iterable[NDArray[np.uint8]]:
        """Batches to send again after RETRY_S without an answer, one at a time."""


class ConstantFeed:
    """The same datagrams over and over; whatever comes back is an answer."""

    def __init__(self, datagram_bytes: int, batch_datagrams: int, window: int) -> None:
        self._data = np.zeros(batch_datagrams * datagram_bytes, np.uint8)
        self._window = window

    def next_batch(self) -> NDArray[np.uint8]:
        return self._data

    def take(self, batch: Batch) -> int:
        return len(batch)

    def unanswered(self) -> Iterable[NDArray[np.uint8]]:
        return [self._data] * self._window


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Report of one worker, from start to stop. `retries`: times that it heard nothing for RETRY_S and sent again."""

    datagrams_out: int
    datagrams_in: int
    retries: int


def drive(link: Link, peer: Address, feed: Feed, *, size: int, window: int, stopped: Callable[[], bool]) -> int:
    """Keep `window` batches in flight to `peer` until `stopped()`, which is asked now and then; returns the retries."""
    unanswered = 0  # batches; fewer may be on their way, since the network may lose some
    answered = 0  # datagrams of the batch that is being answered
    retries = 0
    receives = 0
    heard_s = time.monotonic()
    while True:
        while unanswered < window:
            batch = feed.next_batch()
            link.send(Batch(batch, size, peer))
            unanswered += 1
        batch_datagrams = batch.nbytes // size
        received = link.receive(RETRY_S)
        for part in received:
            answered += feed.take(part)
        unanswered = max(unanswered - answered // batch_datagrams, 0)
        answered %= batch_datagrams
        receives += 1
        if receives % STOP_CHECK_RECEIVES == 0 or not received:
            if stopped():
                return retries
            now_s = time.monotonic()
            if received:
                heard_s = now_s
            elif now_s - heard_s >= RETRY_S:
                for again in feed.unanswered():
                    link.send(Batch(again, size, peer))
                heard_s = now_s
                retries += 1


def _work(connection: Connection, target: Address, size: int, window: int, limit_s: float) -> None:
    """Worker process: tells its address, gets a feed factory, drives it until the parent says anything, reports."""
    with UdpLink((target[0], 0), connect=target) as link:
        connection.send((None, link.address))
        feed = connection.recv()()
        deadline_s = time.monotonic() + limit_s
        stopped = lambda: connection.poll() or time.monotonic() > deadline_s  # noqa: E731
        retries = drive(link, target, feed, size=size, window=window, stopped=stopped)
        report = WorkerReport(link.counters.datagrams_out, link.counters.datagrams_in, retries)
    connection.recv()
    connection.send((None, report))


class Workers:
    """`count` worker processes that load the switch at `target`; a context manager that ends them in any case.

    `limit_s`: they stop by themselves after that time. `addresses`: theirs, to bind them at the switch before `start`.
    """

    def __init__(self, count: int, target: Address, *, size: int, window: int, limit_s: float) -> None:
        self._children: list[Child] = []
        try:
            for rank in range(count):
                self._children.append(Child(f"worker {rank}", _work, target, size, window, limit_s))
            self.addresses: list[Address] = receive_all(self._children, START_LIMIT_S)
        except BaseException:
            self.close()
            raise

    def start(self, feeds: Sequence[Callable[[], Feed]]) -> None:
        """Let them send, each from the feed that its callable makes there; the callables are pickled."""
        for child, feed in zip(self._children, feeds, strict=True):
            child.send(feed)

    def stop(self) -> list[WorkerReport]:
        """Stop them all, then collect what they did."""
        return ask(self._children, "stop", WORKERS_STOP_LIMIT_S)

    def close(self) -> None:
        for child in self._children:
            child.hang_up()
        for child in self._children:
            child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
