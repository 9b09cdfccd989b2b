"""A million hostile datagrams, in batches, against a switch with jobs in the middle of their work."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from tests.wire.verdicts import reasons

from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.binding import Binding
from inagg_wire import batch
from inagg_wire.errors import Reason
from inagg_wire.layout import HEADER_BYTES, Kind, Op

from .hostile import Fuzz
from .oracle import Oracle
from .pair import Pair, feed
from .world import make_binding, make_contribution, random_codes

SLOTS, LANES = 64, 96
OWN = make_binding(1, "nat8", 2, lanes=64, base=16, slots=4, token=0x1111_1111, scatters=True)
VICTIMS = (
    make_binding(2, "nat4", 2, lanes=96, base=0, slots=16, token=0x2222_2222),
    make_binding(3, "fix32", 4, lanes=32, base=32, slots=8, token=0x3333_3333),
    make_binding(4, "tern", 9, lanes=64, base=40, slots=4, token=0x4444_4444),
)
OTHERS = np.r_[0:16, 20:SLOTS]
"""All slots but those of `OWN`: leased to the victims, or to nobody."""


class Victim:
    """A job in the middle of its work: some blocks done, some with part of their contributions, some not begun."""

    def __init__(self, aggregator: Aggregator, binding: Binding) -> None:
        self.aggregator, self.binding, self.oracle = aggregator, binding, Oracle()
        aggregator.bind(binding)
        n, slots = len(binding.children), binding.lease.slots
        self.contributions = [[self._contribution(rank, block) for rank in range(n)] for block in range(3 * slots)]
        self._send(range(slots), range(n))
        self._send(range(slots, slots + slots // 2), range(n - 1))

    def _contribution(self, rank: int, block: int) -> bytes:
        b, op = self.binding, Op.MAX if block % 7 == 3 else Op.SUM
        rng = np.random.default_rng([b.job, rank, block])
        codes = random_codes(rng, b.format.encoding(op), b.format, len(b.children), b.format.lanes_for(op, b.lanes))
        self.oracle.contributed(block, rank, op, codes)
        return make_contribution(b, block, codes, op)

    def _send(self, blocks: range, ranks: range) -> None:
        for block in blocks:
            for rank in ranks:
                for output in feed(self.aggregator, [self.contributions[block][rank]], self.binding.children[rank]):
                    self.oracle.check(self.binding, output, block)

    def finish(self) -> None:
        """The contributions that are missing, and a round more."""
        n, slots = len(self.binding.children), self.binding.lease.slots
        self._send(range(slots, slots + slots // 2), range(n - 1, n))
        self._send(range(slots + slots // 2, 3 * slots), range(n))
        assert len(self.oracle.results) == 3 * slots
        assert not self.oracle.resends


def registers(aggregator: Aggregator) -> bytes:
    """All that the switch keeps of other jobs than `OWN`, bytewise: slots, bindings and counts."""
    rows = [int(aggregator._jobs.row[victim.job]) for victim in VICTIMS]
    table, acc, free, results, *_ = aggregator._slots
    columns = [*(table[name] for name in table.dtype.names), acc, free, results]
    slots = [column.reshape(SLOTS, -1)[OTHERS].tobytes() for column in columns]
    jobs = [aggregator._jobs.row.tobytes(), *(column[rows].tobytes() for column in aggregator._jobs[1:])]
    counts = [column[rows].tobytes() for column in aggregator._counts[1:]]
    return b"".join(slots + jobs + counts)


def fuzz(seed: int, datagrams: int) -> None:
    aggregator = Aggregator(SLOTS, LANES, 8)
    victims = [Victim(aggregator, binding) for binding in VICTIMS]
    aggregator.bind(OWN)
    source_of, wire_level, sent = Fuzz(seed, OWN, VICTIMS), np.zeros(256, np.int64), 0
    before, registers_before, answered = aggregator.counters(), registers(aggregator), 0
    for turn in count():
        if sent >= datagrams:
            break
        if turn % 20 == 0:  # a generation from far ahead soon makes all others stale, so the attackers start anew
            aggregator.bind(OWN)
        data, size, source = source_of.batch()
        sent += data.size // size
        wire_level += np.bincount(reasons(data, size), minlength=256)
        bound = {b.job for b in (OWN, *VICTIMS) if source in b.children}
        for send in aggregator.receive(data, size, source, 1.0):
            answered += send.data.size // send.size
            head = batch.headers(send.data, send.size)
            assert set(head["job"].tolist()) <= bound, "answered a source that is no worker of the job"
            if send.size == HEADER_BYTES:
                assert np.isin(head["kind"], [Kind.NOTICE, Kind.ACK]).all()
                assert send.to == (source,) or (head["kind"] == Kind.ACK).all()
            else:
                assert (head["kind"] == Kind.RESULT).all()
            mine = head["kind"] != Kind.NOTICE
            assert (head["job"][mine] == OWN.job).all()
            if mine.any():
                alone = {(child,) for child in OWN.children} | {OWN.everyone_but(i) for i in range(OWN.owners)}
                to_some = (head["owner"] != 0).all() and send.to in alone
                assert to_some or send.to in {OWN.children, (source,)}

    assert registers(aggregator) == registers_before
    after, own = aggregator.counters(), aggregator.counters().jobs[OWN.job]
    drops = Counter(after.drops)
    drops.subtract(before.drops)
    assert after.datagrams_in - before.datagrams_in == sent
    assert sum(own.contributions) + sum(own.resends) + drops.total() == sent
    for reason in Reason:
        if reason <= Reason.TRAILING_BYTES:
            assert drops[reason] == wire_level[reason]
    assert all(drops[reason] > 0 for reason in Reason), f"never tried: {[r.name for r in Reason if not drops[r]]}"
    completed = answered - sum(own.resends) - (after.notices - before.notices)
    assert own.results < completed < 2 * own.results  # those for one rank alone are acknowledged, too
    assert min(own.results, sum(own.resends)) > 10  # valid ones of the attackers' own job were among them
    for victim in victims:
        victim.finish()
    Victim(aggregator, replace(OWN, token=0x7777_7777)).finish()  # and in a new epoch the abused job works as well


def test_a_million_hostile_datagrams_harm_nobody() -> None:
    fuzz(seed=1, datagrams=1_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 7))
def test_some_more_millions_of_hostile_datagrams_harm_nobody(seed: int) -> None:
    fuzz(seed, 2_000_000)


@pytest.mark.parametrize("seed", range(3))
def test_model_and_aggregator_treat_hostile_datagrams_alike(seed: int) -> None:
    pair, source_of = Pair(SLOTS, LANES), Fuzz(100 + seed, OWN, VICTIMS)
    for binding in (OWN, *VICTIMS):
        pair.bind(binding)
    while pair.model.counters.datagrams_in < 10_000:
        data, size, source = source_of.batch()
        pair.receive([row.tobytes() for row in batch.rows(data, size)], source)
    pair.check()
