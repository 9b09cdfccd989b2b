"""Who may do what: sources, tokens, leases, and who is told. Model and aggregator run side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inagg_switch.aggregation.model import Output
from inagg_wire import header as wire
from inagg_wire.errors import NOTICED, Reason
from inagg_wire.layout import Encoding, Kind, Op

from .oracle import result_of
from .pair import Pair
from .world import STRANGER, block_of, make_binding, notice, simple_contribution

TWO = make_binding(1, "nat8", n=2)
THREE = make_binding(1, "dith8-exact", n=3)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def drops(pair: Pair) -> dict[Reason, int]:
    return pair.aggregator.counters().drops


@pytest.mark.parametrize("bound_elsewhere", [False, True])
def test_a_packet_from_an_unknown_source_is_dropped_without_an_answer(pair: Pair, bound_elsewhere: bool) -> None:
    other = make_binding(2, n=2, base=8)
    pair.bind(TWO)
    pair.bind(other)
    source = other.children[0] if bound_elsewhere else STRANGER
    assert pair.receive([simple_contribution(TWO, 0, 0), simple_contribution(TWO, 0, 0, token=9)], source) == []
    assert drops(pair) == {Reason.UNKNOWN_SOURCE: 2}
    pair.check()


def test_the_same_host_with_another_port_is_another_source(pair: Pair) -> None:
    pair.bind(TWO)
    host, port = TWO.children[0]
    assert pair.receive(simple_contribution(TWO, 0, 0), (host, port + 1)) == []
    assert drops(pair) == {Reason.UNKNOWN_SOURCE: 1}


def test_one_source_may_be_a_worker_of_several_jobs(pair: Pair) -> None:
    first = make_binding(1, "nat8", n=2)
    second = make_binding(2, "fix32", 3, base=8, children=(*first.children[::-1], STRANGER))
    pair.bind(first)
    pair.bind(second)
    for binding in (first, second):
        assert pair.round(binding, block_of(binding, 0)) == [Output(result_of(binding, 0), binding.children)]
    pair.unbind(1)
    assert pair.round(second, block_of(second, 1)) == [Output(result_of(second, 1), second.children)]


def test_a_neighbours_lease_cannot_be_touched(pair: Pair) -> None:
    left, middle, right = (make_binding(job, n=2, base=4 * job, slots=4) for job in (1, 2, 3))
    for binding in (left, middle, right):
        pair.bind(binding)
        pair.receive(simple_contribution(binding, 0, 0), binding.children[0])
    for slot in (*range(4, 8), *range(12, 16), 0, 16, 1 << 23):
        outside = simple_contribution(middle, 1, 0, slot=slot, generation=7)
        answer = pair.receive(outside, middle.children[1])
        assert answer == [Output(notice(middle, outside, Reason.SLOT_OUTSIDE_LEASE), middle.children[1:])]
    for binding in (left, middle, right):
        outputs = pair.receive(simple_contribution(binding, 1, 0), binding.children[1])
        assert outputs == [Output(result_of(binding, 0), binding.children)]


def test_a_token_of_an_older_epoch_is_refused_and_changes_nothing(pair: Pair) -> None:
    pair.bind(TWO)
    pair.receive(simple_contribution(TWO, 0, 0), TWO.children[0])
    new = replace(TWO, token=TWO.token + 1)
    pair.bind(new)
    for block in (0, 4, 400):
        old = simple_contribution(TWO, 1, block)
        answer = pair.receive(old, TWO.children[1])
        assert answer == [Output(notice(TWO, old, Reason.WRONG_TOKEN), TWO.children[1:])]
    assert drops(pair) == {Reason.WRONG_TOKEN: 3}
    assert pair.round(new, block_of(new, 0)) == [Output(result_of(new, 0), new.children)]


def test_a_new_epoch_gives_the_same_payload_for_the_same_block(pair: Pair) -> None:
    old = replace(TWO, resume_block=9)
    pair.bind(old)
    (before,) = pair.round(old, block_of(old, 9))
    new = replace(old, token=77)
    pair.bind(new)
    (after,) = pair.round(new, block_of(new, 9))
    assert after.data[24:] == before.data[24:]


@pytest.mark.parametrize("why", sorted(NOTICED))
def test_a_bound_source_is_told_why_it_was_refused(pair: Pair, why: Reason) -> None:
    binding = make_binding(1, "nat8", n=2, scatters=True)
    pair.bind(binding)
    wrong = {
        Reason.WRONG_TOKEN: simple_contribution(binding, 0, 0, token=3),
        Reason.WRONG_FORMAT: simple_contribution(binding, 0, 0, format=Encoding.DITH8),
        Reason.WRONG_LANES: simple_contribution(replace(binding, lanes=40), 0, 0),
        Reason.SLOT_OUTSIDE_LEASE: simple_contribution(binding, 0, 0, slot=4),
        Reason.WRONG_OP: simple_contribution(binding, 0, 0, Op.MAX),
        Reason.OUTSIDE_WINDOW: simple_contribution(binding, 0, 0, generation=2),
    }[why]
    pair.receive(simple_contribution(binding, 1, 0), binding.children[1])
    outputs = pair.receive([wrong, wrong], binding.children[0])
    assert outputs == [Output(notice(binding, wrong, why), binding.children[:1])] * 2
    told = wire.parse(outputs[0].data)
    assert (told.header.kind, told.header.reason, told.payload) == (Kind.NOTICE, why, b"")
    assert pair.aggregator.counters().notices == 2
    pair.check()


def test_nobody_is_told_of_what_loss_looks_like_or_of_a_job_that_is_not_there(pair: Pair) -> None:
    pair.bind(THREE)
    late = simple_contribution(THREE, 0, 0)
    new = simple_contribution(THREE, 0, THREE.lease.slots)
    pair.round(THREE, block_of(THREE, 0))
    assert pair.receive(new, THREE.children[0]) == []
    assert pair.receive([late, new], THREE.children[0]) == []
    assert pair.receive(simple_contribution(make_binding(9), 0, 0), THREE.children[0]) == []
    assert drops(pair) == {Reason.STALE: 1, Reason.DUPLICATE: 1, Reason.UNKNOWN_JOB: 1}


@pytest.mark.parametrize("kind", [Kind.RESULT, Kind.NOTICE], ids=lambda kind: kind.name.lower())
def test_what_a_switch_sent_is_not_taken_when_it_comes_back(pair: Pair, kind: Kind) -> None:
    """Else two switches, or a switch and its mirror, could answer each other for ever."""
    pair.bind(TWO)
    if kind is Kind.RESULT:
        (sent,) = pair.round(TWO, block_of(TWO, 0))
    else:
        (sent,) = pair.receive(simple_contribution(TWO, 0, 0, token=4), TWO.children[0])
    assert wire.parse(sent.data).header.kind is kind
    before = drops(pair)
    assert pair.receive(sent.data, TWO.children[0]) == []
    assert drops(pair) == before | {Reason.WRONG_KIND: 1}


def test_reasons_are_checked_in_their_order(pair: Pair) -> None:
    """One datagram that is wrong in every way that only a switch can tell, put right one way at a time."""
    pair.bind(TWO)
    fit = simple_contribution(TWO, 0, 0)
    head = wire.parse(fit).header
    wrong = {"kind": Kind.RESULT, "job": 5, "token": 5, "format": Encoding.DITH8, "lanes": 40, "slot": 9}
    steps = [
        (Reason.WRONG_KIND, "kind"),
        (Reason.UNKNOWN_JOB, "job"),
        (Reason.UNKNOWN_SOURCE, "source"),
        (Reason.WRONG_TOKEN, "token"),
        (Reason.WRONG_FORMAT, "format"),
        (Reason.WRONG_LANES, "lanes"),
        (Reason.SLOT_OUTSIDE_LEASE, "slot"),
    ]
    source, fields = STRANGER, {name: getattr(head, name) for name in wire.Header.__dataclass_fields__} | wrong
    for why, name in steps:
        bad = wire.Header(**fields)
        pair.receive(wire.Datagram(bad, bytes(bad.payload_bytes)).pack(), source)
        assert drops(pair)[why] == 1
        if name == "source":
            source = TWO.children[0]
        else:
            fields[name] = getattr(head, name)
    assert len(drops(pair)) == len(steps)
    assert pair.receive(fit, source) == []
    assert pair.aggregator.counters().jobs[1].contributions == [1, 0]
