"""A link around another: the base of those that watch what passes, or change it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inagg_link.addresses import Address
from inagg_link.base import Batch, Counters, Link, Traffic, count_datagrams


class LinkAround(Link):
    """Does what the link below does, which it closes; what a subclass has of its own besides is up to that.

    It lends no port: a compiled loop that had one would pass it by. `send_many` is made of `send`.
    """

    def __init__(self, link: Link) -> None:
        self.link = link

    @property
    def address(self) -> Address:
        return self.link.address

    @property
    def counters(self) -> Counters:
        return self.link.counters

    @property
    def traffic(self) -> Traffic:
        return self.link.traffic

    @property
    def next_due_s(self) -> float | None:
        return self.link.next_due_s

    @property
    def batch_datagrams(self) -> int:
        return self.link.batch_datagrams

    def receive_failed(self, number: int) -> None:
        self.link.receive_failed(number)

    def fileno(self) -> int:
        return self.link.fileno()

    def receive(self, timeout_s: float) -> list[Batch]:
        return self.link.receive(timeout_s)

    def send(self, batch: Batch) -> int:
        return self.link.send(batch)

    def send_many(self, data: NDArray[np.uint8], size: int, peers: Sequence[Address]) -> int:
        count_datagrams(data, size)
        return sum(self.send(Batch(data, size, peer)) for peer in peers)

    def close(self) -> None:
        self.link.close()
