"""The switch's compiled loop on a real socket, with a model beside it, and sockets of workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import groupby

import numpy as np
import pytest
from tests.switch.aggregation.hostile import refused, valid
from tests.switch.aggregation.network import Packet
from tests.switch.aggregation.world import STRANGER, make_binding

from inagg_link.base import Link
from inagg_link.udp import UdpLink
from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.aggregation.model import Model
from inagg_switch.binding import Address, Binding
from inagg_switch.software.loop import Pump

LANES = 64
WORKERS = 6


def lends() -> bool:
    with UdpLink() as link:
        return link.port() is not None


needs_port = pytest.mark.skipif(not lends(), reason="the loop runs on 64-bit Linux with UDP offload only")


class Rig:
    """An aggregator behind a real socket, a model beside it, and the sockets of workers and of a stranger."""

    def __init__(self, stack: ExitStack, wrap: Callable[[Link], Link] = lambda link: link) -> None:
        self.link = wrap(UdpLink())
        stack.enter_context(self.link)
        self.aggregator, self.model = Aggregator(256, LANES, 8), Model()
        self.pump = Pump(self.link, self.aggregator)
        self.workers = [stack.enter_context(UdpLink()) for _ in range(WORKERS)]
        self.stranger = stack.enter_context(UdpLink())
        self._sockets = {link.address: link for link in (*self.workers, self.stranger)}
        self.bell = os.eventfd(1, os.EFD_CLOEXEC)  # there is a command: so the loop ends when nothing comes
        stack.callback(os.close, self.bell)
        self._sent = 0

    def addresses(self, *workers: int) -> tuple[Address, ...]:
        return tuple(self.workers[worker].address for worker in workers)

    def bind(self, binding: Binding) -> None:
        self.aggregator.bind(binding)
        self.model.bind(binding)

    def unbind(self, job: int) -> None:
        self.aggregator.unbind(job)
        self.model.unbind(job)

    def send(self, datagrams: Sequence[bytes], source: Address) -> None:
        """Put one batch into the switch's socket: datagrams of one size, but the last may be shorter."""
        socket = self._sockets[self.stranger.address if source == STRANGER else source]
        data = np.frombuffer(b"".join(datagrams), np.uint8)
        assert socket._call(data, len(datagrams[0]), self.link.address) == 0
        self._sent += len(datagrams)

    def serve(self) -> None:
        """Run the loop until it has taken all that was sent."""
        port = self.link.port()
        assert port is not None
        while self.aggregator.counters().datagrams_in < self._sent:
            self.pump.run(port, self.bell)

    def expect(self, datagrams: Sequence[bytes], source: Address) -> list[Packet]:
        """What the model sends for the same."""
        address = self.stranger.address if source == STRANGER else source
        outputs = [output for datagram in datagrams for output in self.model.receive(datagram, address)]
        return [(output.data, to) for output in outputs for to in output.to]

    def heard(self, worker: int) -> list[bytes]:
        """What has come to a worker. Loopback delivers before a send returns."""
        received: list[bytes] = []
        while batches := self.workers[worker].receive(0.0):
            received += [row.tobytes() for batch in batches for row in batch.datagrams]
        return received

    def exchange(self, batches: Sequence[tuple[Sequence[bytes], Address]]) -> int:
        """Send, serve, and compare what each worker hears, and the counters; how many were heard."""
        expected: list[Packet] = []
        for datagrams, source in batches:
            self.send(datagrams, source)
            expected += self.expect(datagrams, source)
        self.serve()
        for worker, socket in enumerate(self.workers):
            assert self.heard(worker) == [data for data, to in expected if to == socket.address]
        assert self.aggregator.counters() == self.model.counters
        return len(expected)


def jobs(rig: Rig) -> list[Binding]:
    """Jobs of several formats; some sockets are in two of them, with other ranks."""
    shapes = [("nat8", (0, 1)), ("nat4-nat8", (2, 3, 4)), ("tern", (1, 2)), ("dith8-exact", (5,)), ("fix32", (4, 0, 3))]
    return [
        make_binding(
            job, fmt, len(ranks), lanes=24 + 8 * job, base=8 * job, slots=8, token=7000 + job,
            children=rig.addresses(*ranks),
        )
        for job, (fmt, ranks) in enumerate(shapes, 1)
    ]  # fmt: skip


def batched(packets: Sequence[Packet], rng: np.random.Generator) -> list[tuple[list[bytes], Address]]:
    """Neighbours of one size and source in batches of any number, some of which end with a shorter datagram."""
    batches: list[tuple[list[bytes], Address]] = []
    for (source, size), run in groupby(packets, key=lambda packet: (packet[1], len(packet[0]))):
        datagrams = [data for data, _ in run]
        while datagrams:
            count = int(rng.integers(1, 20))
            part, datagrams = datagrams[:count], datagrams[count:]
            if size > 1 and rng.random() < 0.2:
                part.append(part[0][: int(rng.integers(1, size))])
            batches.append((part, source))
    return batches


def traffic(rng: np.random.Generator, bindings: Sequence[Binding], count: int) -> list[Packet]:
    """Contributions of the same few blocks, mostly the first ones, over and over, so with duplicates and old
    generations, and a third of what must be refused; long runs of one source."""
    packets: list[Packet] = []
    while len(packets) < count:
        if rng.random() < 0.3:
            packets.append(refused(rng, bindings, 24))
            continue
        binding = bindings[int(rng.integers(len(bindings)))]
        source = binding.children[int(rng.integers(len(binding.children)))]
        packets += [(valid(rng, binding, int(rng.integers(1, 25))), source) for _ in range(int(rng.integers(1, 10)))]
    return packets[:count]
