"""A data plane: an aggregator on a link. The shell that owns the socket, and decides nothing."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Protocol

from inagg_link.base import Link

from ..aggregation.aggregator import Aggregator
from ..driver import Counters
from .loop import LOOK_EVERY_S, Pump


class Commands(Protocol):
    """Source of commands: `multiprocessing.connection.Connection` is one."""

    def fileno(self) -> int: ...

    def poll(self, timeout: float = 0.0) -> bool: ...


class DataPlane:
    """Moves batches from ``link`` through ``aggregator`` and back, on one thread."""

    def __init__(self, link: Link, aggregator: Aggregator) -> None:
        self._link = link
        self._aggregator = aggregator
        self._pump = Pump(link, aggregator)
        self._send_short = 0

    def step(self, timeout_s: float) -> bool:
        """Take what has come, waiting for at most ``timeout_s``; whether anything had."""
        batches = self._link.receive(timeout_s)
        if not batches:
            return False
        now, receive, send_many = time.monotonic(), self._aggregator.receive, self._link.send_many
        for batch in batches:
            for send in receive(batch.data, batch.size, batch.peer, now):
                accepted = send_many(send.data, send.size, send.to)
                self._send_short += send.data.size // send.size * len(send.to) - accepted
        return True

    def run(self, commands: Commands, execute: Callable[[], bool]) -> None:
        """Serve until ``execute``, which is called when ``commands`` has something, returns False."""
        poll = select.poll()
        for source in (self._link, commands):
            poll.register(source.fileno(), select.POLLIN)
        looked = 0.0
        while True:
            port = self._link.port()
            busy = False
            if port is not None:
                self._pump.run(port, commands.fileno())
            elif not (busy := self.step(0.0)):
                due_s = self._link.next_due_s
                poll.poll(None if due_s is None else max(0.0, due_s - time.monotonic()) * 1e3)
            if not busy or time.monotonic() - looked > LOOK_EVERY_S:
                looked = time.monotonic()
                while commands.poll(0):
                    if not execute():
                        return

    def counters(self) -> Counters:
        """The aggregator's counters with what the link knows of lost datagrams."""
        counters = self._aggregator.counters()
        counters.send_refused = self._send_short + self._pump.unsent
        counters.datagrams_out -= counters.send_refused
        counters.kernel_drops = self._link.counters.kernel_drops or 0
        counters.cpu_s = time.process_time()
        return counters
