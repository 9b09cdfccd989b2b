"""The compiled loop by itself: a rank alone, and a switch that is moved by hand."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest

from inagg_host.core import Engine, Epoch, Operation, RanksDisagree, Refused, ShardLease
from inagg_host.core.operation import Request
from inagg_host.io.loop import Loop
from inagg_link.base import Batch
from inagg_link.sockopt import SOL_UDP, UDP_SEGMENT
from inagg_link.udp import UdpLink
from inagg_switch.aggregation.aggregator import Aggregator, Send
from inagg_switch.binding import Binding
from inagg_wire import header as wire
from inagg_wire.errors import Reason
from inagg_wire.formats import job_format
from inagg_wire.layout import Kind
from inagg_wire.scale import FloatType
from inagg_wire.slots import Lease

from .rig import needs_port

pytestmark = needs_port

FORMAT, LANES, LEASE = job_format("nat8"), 64, Lease(0, 16)


class Alone:
    """A job of one rank."""

    def __init__(self, stack: ExitStack) -> None:
        self.rank, self.switch = (stack.enter_context(closing(UdpLink())) for _ in range(2))
        shard = ShardLease(self.switch.address, LEASE)
        self.engine = Engine(Epoch(1, 7, 9, FORMAT, 1, 0, LANES, 0, (shard,)))
        self.aggregator = Aggregator(LEASE.slots, LANES, 1)
        self.aggregator.bind(Binding(7, 9, FORMAT, LANES, LEASE, 0, (self.rank.address,)))
        self._loop = Loop(self.engine, self.rank, lambda phase: None)
        self._wake = os.eventfd(1, os.EFD_CLOEXEC)
        self._loop.python_requested = True  # there is other work: so the loop ends when it would wait
        stack.callback(os.close, self._wake)

    def submit(self) -> Operation:
        values = np.ones(LANES, np.float32)
        return self.engine.submit(Request(values, values, FloatType.FLOAT32), 0.0)

    def run(self) -> list[Operation]:
        port = self.rank.port()
        assert port is not None
        self._loop.run(port, [self.switch.address], self._wake, self._wake, False, False)
        return self.engine.news()

    def answers(self) -> list[Batch]:
        """What the switch says to all that has come."""
        sends: list[Send] = []
        while batches := self.switch.receive(0.1 if not sends else 0.0):
            for batch in batches:
                sends += list(self.aggregator.receive(batch.data, batch.size, self.rank.address, 0.0))
        return [Batch(send.data.copy(), send.size, self.rank.address) for send in sends]


@pytest.fixture
def alone() -> Iterator[Alone]:
    with ExitStack() as stack:
        yield Alone(stack)


def last_results(alone: Alone) -> tuple[Operation, bytes, bytes]:
    """The first of two operations, its last result, and the second one's first, neither of which has come yet."""
    first, _second = alone.submit(), alone.submit()
    assert alone.run() == []
    (scales,) = alone.answers()
    alone.switch.send(scales)
    assert alone.run() == []  # sends the first one's values, and the second one's scales
    results = [
        bytes(batch.data[i : i + batch.size])
        for batch in alone.answers()
        for i in range(0, batch.data.size, batch.size)
    ]
    values, of_second = sorted(results, key=lambda data: wire.parse(data).header.slot)
    return first, values, of_second


def test_what_is_done_is_told_though_the_epoch_ends_with_the_same_datagrams(alone: Alone) -> None:
    first, values, of_second = last_results(alone)
    h = wire.parse(of_second).header
    notice = wire.Header(
        Kind.NOTICE, h.op, FORMAT.encoding(h.op), 0, h.job, h.token, h.slot, h.generation, Reason.WRONG_TOKEN
    )
    # In one system call, of which the receiver makes one batch. A `Batch` has datagrams of one size.
    size = [(SOL_UDP, UDP_SEGMENT, struct.pack("H", len(values)))]
    alone.switch._socket.sendmsg([values + notice.pack()], size, 0, alone.rank.address)
    assert alone.run() == [first]
    with pytest.raises(Refused):
        alone.run()


def test_what_is_done_is_told_though_the_same_batch_shows_that_ranks_disagree_on_the_next(alone: Alone) -> None:
    first, values, of_second = last_results(alone)
    other = of_second[:-1] + bytes([of_second[-1] ^ 1])  # of the signature
    batch = np.frombuffer(bytearray(values + other), np.uint8)
    assert alone.engine.on_batch(0, batch, len(values), 0.0) == [first]
    with pytest.raises(RanksDisagree):
        alone.engine.next_batch(0.0)
