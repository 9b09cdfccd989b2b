"""Links over real sockets on loopback: what is sent is what is received, with the offload and without."""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.link.gathering import gather
from tests.link.loopback import PATIENCE_S, both_ways, collect, every_pair, needs_offload, numbered, rows

from inagg_link import udp as udp_module
from inagg_link.base import MAX_BATCH_BYTES, MAX_DATAGRAM_BYTES, Batch
from inagg_link.udp import UdpLink

# --- what is sent is what is received ---


@every_pair
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_datagrams_arrive_as_they_were_sent(
    stack: ExitStack, sender_offload: bool, receiver_offload: bool, host: str
) -> None:
    sender = stack.enter_context(UdpLink((host, 0), offload=sender_offload))
    receiver = stack.enter_context(UdpLink((host, 0), offload=receiver_offload))
    data = numbered(44, 1472)
    assert sender.send(Batch(data, 1472, receiver.address)) == 44
    batches = collect(receiver, 44)
    assert rows(batches) == [row.tobytes() for row in data.reshape(44, 1472)]
    assert {batch.peer for batch in batches} == {sender.address}
    assert {batch.size for batch in batches} == {1472}


@both_ways
def test_a_batch_of_one_call_arrives_as_one_batch(stack: ExitStack, offload: bool) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=offload)) for _ in range(2))
    sender.send(Batch(numbered(44, 1472), 1472, receiver.address))
    assert [len(batch) for batch in receiver.receive(PATIENCE_S)] == [44]


@every_pair
def test_datagrams_of_any_sizes_arrive_in_order(stack: ExitStack, sender_offload: bool, receiver_offload: bool) -> None:
    sender = stack.enter_context(UdpLink(offload=sender_offload))
    receiver = stack.enter_context(UdpLink(offload=receiver_offload))

    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.sampled_from([1, 2, 24, 25, 999, 1472, 1473, 65_507]), min_size=1, max_size=20))
    def check(sizes: list[int]) -> None:
        datagrams = [bytes([index % 256]) * size for index, size in enumerate(sizes)]
        for batch in gather(datagrams, receiver.address):
            assert sender.send(batch) == len(batch)
        assert rows(collect(receiver, len(datagrams))) == datagrams

    check()


@every_pair
def test_a_batch_of_more_than_one_call_arrives_whole(
    stack: ExitStack, sender_offload: bool, receiver_offload: bool
) -> None:
    sender = stack.enter_context(UdpLink(offload=sender_offload))
    receiver = stack.enter_context(UdpLink(offload=receiver_offload))
    data = numbered(200, 1000)
    assert sender.send(Batch(data, 1000, receiver.address)) == 200
    batches = collect(receiver, 200)
    assert np.concatenate([batch.data for batch in batches]).tobytes() == data.tobytes()


@both_ways
def test_one_batch_goes_to_many_peers(stack: ExitStack, offload: bool) -> None:
    sender = stack.enter_context(UdpLink(offload=offload))
    receivers = [stack.enter_context(UdpLink(offload=offload)) for _ in range(3)]
    data = numbered(10, 100)
    assert sender.send_many(data, 100, [receiver.address for receiver in receivers]) == 30
    assert [rows(collect(receiver, 10)) for receiver in receivers] == [rows([Batch(data, 100, sender.address)])] * 3


@both_ways
def test_the_largest_datagram_arrives(stack: ExitStack, offload: bool) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=offload)) for _ in range(2))
    assert sender.send(Batch(np.ones(MAX_DATAGRAM_BYTES, np.uint8), MAX_DATAGRAM_BYTES, receiver.address)) == 1
    assert [batch.size for batch in collect(receiver, 1)] == [MAX_DATAGRAM_BYTES]


@both_ways
def test_an_empty_batch_is_no_datagram(stack: ExitStack, offload: bool) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=offload)) for _ in range(2))
    assert sender.send(Batch(np.zeros(0, np.uint8), 10, receiver.address)) == 0
    assert receiver.receive(0.01) == []


# --- batches are of equal datagrams from one peer ---


@needs_offload
def test_a_shorter_last_datagram_is_a_batch_of_its_own(stack: ExitStack) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=True)) for _ in range(2))
    sender._call(np.zeros(2500, np.uint8), 1000, receiver.address)  # what another program may send
    assert [(len(batch), batch.size) for batch in receiver.receive(PATIENCE_S)] == [(2, 1000), (1, 500)]
    assert (receiver.counters.datagrams_in, receiver.counters.bytes_in) == (3, 2500)


@needs_offload
def test_a_batch_of_more_datagrams_than_we_send_at_a_time_is_taken(stack: ExitStack) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=True)) for _ in range(2))
    if sender._call(np.zeros(100 * 30 + 5, np.uint8), 30, receiver.address):
        pytest.skip("this kernel sends no more than 64 datagrams a call")
    assert [(len(batch), batch.size) for batch in receiver.receive(PATIENCE_S)] == [(100, 30), (1, 5)]
    assert receiver.counters.datagrams_in == 101


@both_ways
def test_neighbours_of_one_size_and_peer_share_a_batch(stack: ExitStack, offload: bool) -> None:
    one, other, receiver = (stack.enter_context(UdpLink(offload=offload)) for _ in range(3))
    for sender, size, count in [(one, 8, 2), (one, 8, 1), (one, 9, 1), (other, 9, 2), (one, 8, 1)]:
        sender.send(Batch(numbered(count, size), size, receiver.address))
    time.sleep(0.01)
    received = [(len(batch), batch.size, batch.peer) for batch in receiver.receive(PATIENCE_S)]
    assert received == [(3, 8, one.address), (1, 9, one.address), (2, 9, other.address), (1, 8, one.address)]


@both_ways
def test_an_empty_datagram_is_counted_and_discarded(stack: ExitStack, offload: bool) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=offload)) for _ in range(2))
    sender.send(Batch(numbered(2, 10), 10, receiver.address))
    sender._sendto(b"", receiver.address)
    sender.send(Batch(numbered(2, 10, 2), 10, receiver.address))
    assert rows(collect(receiver, 4)) == rows([Batch(numbered(4, 10), 10, sender.address)])
    assert (receiver.counters.empty, receiver.counters.datagrams_in) == (1, 4)


def test_a_truncated_datagram_is_counted_and_discarded(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=False)) for _ in range(2))
    monkeypatch.setattr(udp_module, "MAX_BATCH_BYTES", 100)  # as if the buffer were too small
    sender.send(Batch(numbered(1, 101), 101, receiver.address))
    sender.send(Batch(numbered(1, 100), 100, receiver.address))
    assert [batch.size for batch in collect(receiver, 1)] == [100]
    assert (receiver.counters.truncated, receiver.counters.datagrams_in) == (1, 1)


# --- waiting and bounds ---


def test_receive_waits_for_its_timeout(stack: ExitStack) -> None:
    receiver = stack.enter_context(UdpLink())
    start_s = time.monotonic()
    assert receiver.receive(0.02) == []
    assert 0.02 <= time.monotonic() - start_s < 2.0


def test_receive_without_timeout_does_not_wait(stack: ExitStack) -> None:
    receiver = stack.enter_context(UdpLink())
    start_s = time.monotonic()
    assert receiver.receive(0.0) == []
    assert time.monotonic() - start_s < 0.5


@both_ways
def test_one_receive_returns_a_bounded_amount(stack: ExitStack, offload: bool) -> None:
    sender = stack.enter_context(UdpLink(offload=offload))
    receiver = stack.enter_context(UdpLink(offload=offload, burst_bytes=10_000))
    for _ in range(3):
        sender.send(Batch(numbered(40, 1000), 1000, receiver.address))
    received = 0
    while received < 120_000:
        burst = sum(batch.data.nbytes for batch in receiver.receive(PATIENCE_S))
        assert 0 < burst <= 10_000 + MAX_BATCH_BYTES
        received += burst


def test_discarded_datagrams_do_not_keep_receive_from_returning(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp_module, "BURST_CALLS", 3)
    sender, receiver = (stack.enter_context(UdpLink()) for _ in range(2))
    for _ in range(5):
        sender._sendto(b"", receiver.address)
    assert receiver.receive(0.0) == []
    assert receiver.counters.empty == 3


# --- counters ---


@needs_offload
def test_counters_tell_datagrams_bytes_and_calls(stack: ExitStack) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=True)) for _ in range(2))
    sender.send(Batch(numbered(50, 1472), 1472, receiver.address))  # 44 + 6
    collect(receiver, 50)
    sent, received = sender.counters, receiver.counters
    assert (sent.datagrams_out, sent.bytes_out, sent.calls_out) == (50, 50 * 1472, 2)
    assert (received.datagrams_in, received.bytes_in, received.calls_in) == (50, 50 * 1472, 2)


def test_without_offload_every_datagram_is_a_call(stack: ExitStack) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=False)) for _ in range(2))
    sender.send(Batch(numbered(5, 100), 100, receiver.address))
    collect(receiver, 5)
    assert (sender.counters.calls_out, receiver.counters.calls_in) == (5, 5)


def test_what_overflows_the_receive_buffer_is_counted(stack: ExitStack) -> None:
    sender = stack.enter_context(UdpLink(offload=False))
    receiver = stack.enter_context(UdpLink(offload=False, receive_buffer_bytes=4096))
    sender.send(Batch(numbered(100, 1000), 1000, receiver.address))
    dropped = receiver.counters.kernel_drops  # before anything was received
    if dropped is None:
        pytest.skip("this kernel does not tell its drops")
    assert dropped > 0
    assert sum(map(len, collect(receiver, 100 - dropped))) + dropped == 100
    assert receiver.receive(0.0) == []


def test_counters_outlive_the_link() -> None:
    with UdpLink() as link:
        link.send(Batch(numbered(1, 10), 10, link.address))
    assert link.counters.datagrams_out == 1
