"""Seeded losses in a compiled loop: datagram number i meets the same fate whichever way it goes."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.link.loopback import collect, numbered, rows
from tests.link.loops import needs_port, port_of, receive_all, send, send_all

from inagg_link import native
from inagg_link.base import Batch, split
from inagg_link.fault_link import FaultLink
from inagg_link.fault_model import FaultModel
from inagg_link.faults import Faults
from inagg_link.port import ERRNO, MASKS_AHEAD, key_of
from inagg_link.udp import UdpLink

pytestmark = needs_port

SIZE = 16
LOSSES = Faults(drop=0.2, corrupt=0.1)


@dataclass(frozen=True)
class Ends:
    """A link with faults, and one that has none."""

    bad: FaultLink
    good: UdpLink

    def hear(self) -> list[int]:
        """The numbers that have come to the good one. Loopback delivers before a send returns."""
        return numbers(rows(self.good.receive(0.0)))


@pytest.fixture
def ends(stack: ExitStack) -> Ends:
    return make_ends(stack, LOSSES)


def make_ends(stack: ExitStack, faults: Faults, seed: int = 1) -> Ends:
    return Ends(stack.enter_context(FaultLink(UdpLink(), faults, seed)), stack.enter_context(UdpLink()))


def numbers(datagrams: list[bytes]) -> list[int]:
    return [int.from_bytes(datagram[:4]) for datagram in datagrams]


def survivors(model: FaultModel, count: int) -> list[int]:
    """Of so many datagrams, those that a model of the same faults and seed lets live; ``model`` stays as it is."""
    alone = FaultModel(model.faults, model.seed)
    arrivals = alone.apply(Batch(numbered(count, SIZE), SIZE, ("10.0.0.9", 9)), 0.0)
    left = [number for arrival in arrivals for number in numbers(rows([arrival.batch]))]
    assert alone.counters == model.counters, "as many of each kind"
    return left


def check_counters(model: FaultModel, entered: int) -> None:
    c = model.counters
    assert c.entered == entered
    assert c.entered + c.duplicated == c.left + c.dropped + c.discarded


steps = st.lists(st.tuples(st.booleans(), st.integers(1, 64)), min_size=1, max_size=12)
"""Whether the loop takes them, and how many."""


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(steps=steps, seed=st.integers(0, 1 << 32))
def test_what_is_sent_meets_the_same_faults_in_a_loop_and_outside(steps: list[tuple[bool, int]], seed: int) -> None:
    with ExitStack() as stack:
        ends = make_ends(stack, LOSSES, seed)
        heard, sent = [], 0
        for in_loop, count in steps:
            data = numbered(count, SIZE, sent)
            if in_loop:
                send_all(ends.bad, data, SIZE, ends.good.address)
            else:
                assert ends.bad.send(Batch(data, SIZE, ends.good.address)) == count
            heard += ends.hear()
            sent += count
        check_counters(ends.bad.sending, sent)
        assert heard == survivors(ends.bad.sending, sent)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(steps=steps, seed=st.integers(0, 1 << 32))
def test_what_is_received_meets_the_same_faults_in_a_loop_and_outside(steps: list[tuple[bool, int]], seed: int) -> None:
    with ExitStack() as stack:
        ends = make_ends(stack, LOSSES, seed)
        heard, sent = [], 0
        for in_loop, count in steps:
            ends.good.send(Batch(numbered(count, SIZE, sent), SIZE, ends.bad.address))
            heard += numbers(receive_all(ends.bad) if in_loop else rows(ends.bad.receive(0.0)))
            sent += count
        check_counters(ends.bad.receiving, sent)
        assert heard == survivors(ends.bad.receiving, sent)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_fault_masks_go_on_where_those_that_were_drawn_end(ends: Ends, every: int) -> None:
    """Each ``every``-th batch goes through the loop, the others do not."""
    count = 2 * MASKS_AHEAD + 1000
    data, heard, back = numbered(count, SIZE), [], []
    for turn, batch in enumerate(split(Batch(data, SIZE, ends.good.address))):
        if turn % every == 0:
            send_all(ends.bad, batch.data, SIZE, ends.good.address)
        else:
            ends.bad.send(batch)
        heard += ends.hear()
        ends.good.send(Batch(batch.data, SIZE, ends.bad.address))
        back += numbers(receive_all(ends.bad) if turn % every == 0 else rows(ends.bad.receive(0.0)))
    assert heard == survivors(ends.bad.sending, count)
    assert back == survivors(ends.bad.receiving, count)
    assert heard != back


def test_a_loop_is_told_when_no_fault_masks_are_left_and_then_nothing_has_happened(ends: Ends) -> None:
    port, calls = port_of(ends.bad), 0
    data, key = numbered(64, SIZE), key_of(ends.good.address)
    while native.send(port, data, data.size, SIZE, key) != native.NO_FAULT_MASKS:
        calls += 1
        ends.hear()
    assert 64 * calls == MASKS_AHEAD
    assert ends.hear() == []
    check_counters(ends.bad.sending, MASKS_AHEAD)
    send_all(ends.bad, numbered(64, SIZE, MASKS_AHEAD), SIZE, ends.good.address)  # `port` draws more
    model = ends.bad.sending
    assert model.counters.entered == MASKS_AHEAD + 64
    assert ends.hear() == [number for number in survivors(model, MASKS_AHEAD + 64) if number >= MASKS_AHEAD]


def test_a_loop_gets_new_fault_masks_though_others_get_no_port_any_more(ends: Ends) -> None:
    """As when the link finds, while the loop is on, that it has no offload."""
    port, data, key = port_of(ends.bad), numbered(64, SIZE), key_of(ends.good.address)
    lower = ends.bad.link
    assert isinstance(lower, UdpLink)
    lower.gso = False
    assert ends.bad.port() is None
    for _ in range(3 * MASKS_AHEAD // 64):
        if native.send(port, data, data.size, SIZE, key) == native.NO_FAULT_MASKS:
            ends.bad.port()
            assert native.send(port, data, data.size, SIZE, key) == 0
        ends.hear()
    check_counters(ends.bad.sending, 3 * MASKS_AHEAD)


def test_the_last_and_shorter_datagram_of_a_batch_has_a_fault_mask_of_its_own(stack: ExitStack) -> None:
    """And may be the only one that is left."""
    ends = make_ends(stack, Faults(drop=0.5))
    outcomes, expected = [], []
    model = FaultModel(ends.bad.receiving.faults, ends.bad.receiving.seed)
    for _ in range(40):
        ends.good._call(numbered(3, SIZE)[: 2 * SIZE + 5], SIZE, ends.bad.address)
        outcomes.append([len(datagram) for datagram in receive_all(ends.bad)])
        whole = model.apply(Batch(numbered(2, SIZE), SIZE, ends.bad.address), 0.0)
        rest = model.apply(Batch(numbered(2, 5)[:5], 5, ends.bad.address), 0.0)
        expected.append([len(row) for arrival in (*whole, *rest) for row in rows([arrival.batch])])
    assert outcomes == expected
    assert {len(outcome) for outcome in outcomes} == {0, 1, 2, 3}
    assert [5] in outcomes


def test_a_batch_that_was_not_sent_gives_its_fates_back(ends: Ends) -> None:
    data = numbered(44, SIZE)
    assert send(ends.bad, data, SIZE, ("127.255.255.255", 9)) == native.FAILED
    assert port_of(ends.bad).words[ERRNO] == errno.EACCES
    assert ends.bad.sending.counters.entered == 0
    send_all(ends.bad, data, SIZE, ends.good.address)
    assert ends.hear() == survivors(ends.bad.sending, 44)


def test_all_can_be_lost_in_a_loop(stack: ExitStack) -> None:
    ends = make_ends(stack, Faults(drop=1.0))
    send_all(ends.bad, numbered(100, SIZE), SIZE, ends.good.address)
    ends.good.send(Batch(numbered(100, SIZE), SIZE, ends.bad.address))
    assert ends.hear() == []
    assert receive_all(ends.bad) == []
    assert ends.bad.counters.calls_out == 0, "nothing was left to send"
    assert ends.bad.counters.datagrams_in == 100
    check_counters(ends.bad.sending, 100)
    check_counters(ends.bad.receiving, 100)


@pytest.mark.parametrize("direction", ["send", "receive"])
def test_losses_in_one_direction_leave_the_other_alone(stack: ExitStack, direction: str) -> None:
    bad = stack.enter_context(FaultLink(UdpLink(), Faults(drop=1.0), 1, directions=[direction]))  # type: ignore[list-item]
    good = stack.enter_context(UdpLink())
    send_all(bad, numbered(44, SIZE), SIZE, good.address)
    good.send(Batch(numbered(44, SIZE), SIZE, bad.address))
    heard = {"send": len(rows(good.receive(0.0))), "receive": len(receive_all(bad))}
    assert heard == {"send": 44, "receive": 44} | {direction: 0}
    assert (bad.sending.counters.entered, bad.receiving.counters.entered) == (44, 44)


# --- when there is no port ---


@pytest.mark.parametrize(
    "faults",
    [
        Faults(duplicate=0.1),
        Faults(reorder=0.1),
        Faults(delay_s=0.1),
        Faults(jitter_s=0.1),
        Faults(corrupt=0.1, checksum=False),
        Faults(drop=0.1, duplicate=0.1),
    ],
    ids=repr,
)
def test_faults_that_are_no_losses_have_no_port(stack: ExitStack, faults: Faults) -> None:
    assert stack.enter_context(FaultLink(UdpLink(), faults, 1)).port() is None


@pytest.mark.parametrize("faults", [Faults(), Faults(drop=0.1), Faults(corrupt=0.1, corrupt_bits=3)], ids=repr)
def test_losses_have_a_port(stack: ExitStack, faults: Faults) -> None:
    assert stack.enter_context(FaultLink(UdpLink(), faults, 1)).port() is not None


def test_there_is_no_port_around_a_link_that_has_none(stack: ExitStack) -> None:
    assert stack.enter_context(FaultLink(UdpLink(offload=False), LOSSES, 1)).port() is None


def test_there_is_no_port_while_something_is_held(stack: ExitStack) -> None:
    ends = make_ends(stack, Faults(delay_s=60.0))
    ends.bad.send(Batch(numbered(1, SIZE), SIZE, ends.good.address))
    for model in (ends.bad.sending, ends.bad.receiving):
        model.faults = Faults()  # the network is good again
    assert ends.bad.next_due_s is not None
    assert ends.bad.port() is None


def test_losses_around_losses_have_no_port_and_both_take_theirs(stack: ExitStack) -> None:
    """A port has room for the masks of one link."""
    inner = FaultLink(UdpLink(), Faults(drop=0.5), 1)
    outer, good = stack.enter_context(FaultLink(inner, Faults(drop=0.5), 2)), stack.enter_context(UdpLink())
    assert outer.port() is None
    outer.send(Batch(numbered(1000, SIZE), SIZE, good.address))
    assert (outer.sending.counters.entered, inner.sending.counters.entered) == (1000, outer.sending.counters.left)
    assert sum(map(len, collect(good, inner.sending.counters.left))) == inner.sending.counters.left
    assert 150 < inner.sending.counters.left < 350
