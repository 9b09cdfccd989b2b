"""The reference model and the batch aggregator side by side: whatever is done to both must come out the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.aggregation.model import Model, Output
from inagg_switch.binding import Address, Binding
from inagg_switch.driver import DriverError
from inagg_wire.layout import HEADER_BYTES, Kind, Op


def feed(aggregator: Aggregator, datagrams: Sequence[bytes], source: Address, now: float = 0.0) -> list[Output]:
    """Equal datagrams of one source through the aggregator as one batch: what it sends, one datagram each."""
    size = len(datagrams[0])
    data = np.frombuffer(bytearray(b"".join(datagrams)), np.uint8)
    assert data.size == size * len(datagrams), "the datagrams of a batch are equal in size"
    sent: list[Output] = []
    for send in aggregator.receive(data, size, source, now):
        assert send.data.size % send.size == 0
        sent += [Output(row.tobytes(), send.to) for row in send.data.reshape(-1, send.size)]
    return sent


def in_order(outputs: Sequence[Output]) -> list[Output]:
    """Acknowledgements last: those of a batch come after its results for one rank alone."""
    return sorted(outputs, key=lambda output: output.data[3] == Kind.ACK)


class Pair:
    """A model and an aggregator that are given the same, and compared after each step.

    ``split``: hand equal neighbours to the aggregator as one batch (True), or one at a time.
    """

    def __init__(self, slots: int = 64, lanes: int = 256, jobs: int = 8) -> None:
        self.model = Model()
        self.aggregator = Aggregator(slots, lanes, jobs)
        self.now = 0.0

    @property
    def bindings(self) -> dict[int, Binding]:
        return self.model.bindings

    def bind(self, binding: Binding) -> None:
        """Raises `DriverError`, and then neither has changed."""
        before = self.aggregator.counters()
        try:
            self.aggregator.bind(binding)
        except DriverError:
            assert self.aggregator.counters() == before
            self.check_state()
            raise
        self.model.bind(binding)
        self.check_counters()

    def unbind(self, job: int) -> None:
        self.aggregator.unbind(job)
        self.model.unbind(job)
        self.check_counters()

    def receive(self, datagrams: bytes | Sequence[bytes], source: Address) -> list[Output]:
        """What both send for ``datagrams`` of any sizes; equal neighbours make one batch of the aggregator's."""
        each = [datagrams] if isinstance(datagrams, bytes) else list(datagrams)
        expected = [output for datagram in each for output in self.model.receive(datagram, source)]
        got: list[Output] = []
        for _, run in groupby(each, key=len):
            got += feed(self.aggregator, list(run), source, self.now)
        assert in_order(got) == in_order(expected), "aggregator and model send different things"
        return got

    def round(self, binding: Binding, datagrams: Sequence[bytes], ranks: Sequence[int] | None = None) -> list[Output]:
        """One datagram of each rank, in order of rank (or of ``ranks``)."""
        order = range(len(datagrams)) if ranks is None else ranks
        return [out for rank in order for out in self.receive(datagrams[rank], binding.children[rank])]

    def check(self) -> None:
        self.check_counters()
        self.check_state()

    def check_counters(self) -> None:
        assert self.aggregator.counters() == self.model.counters

    def check_state(self) -> None:
        """Compare the slots of all bound jobs."""
        for binding in self.model.bindings.values():
            for number in range(binding.lease.base, binding.lease.base + binding.lease.slots):
                self._check_slot(binding, number)

    def _check_slot(self, binding: Binding, number: int) -> None:
        want, have = self.model.slots[number], self.aggregator._slots.table
        assert (int(have["tag"][number]), int(have["seen"][number])) == (want.tag, want.seen)
        if want.seen:
            assert Op(int(have["op"][number])) is want.op
            assert want.acc is not None
            assert int(have["here"][number]) == sum(1 << part for part in want.here)
            assert int(have["asked"][number]) == want.asked
            assert int(have["bare"][number]) == want.bare
            got = self.aggregator.contents(binding.job, number)
            if got.dtype == np.int32:
                lanes = binding.lanes_up(want.op) or len(got)
                for part in range(len(got) // lanes):  # those that the parent has answered are there no more
                    if part not in want.here or want.bare >> part & 1:
                        these = slice(part * lanes, (part + 1) * lanes)
                        np.testing.assert_array_equal(got[these], want.acc[these])
            else:
                assert want.seen == binding.full
                assert got.tobytes() == self.model._result(binding, number)[HEADER_BYTES:]
