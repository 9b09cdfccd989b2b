"""Links over real sockets on loopback, with the kernel's segmentation offload and without."""

from __future__ import annotations

import errno
import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inagg_wire.link import (
    MAX_BATCH_BYTES,
    MAX_BATCH_DATAGRAMS,
    MAX_DATAGRAM_BYTES,
    Batch,
    Link,
    UdpLink,
    gather,
    sockopt,
)
from inagg_wire.link import udp as udp_module

PATIENCE_S = 5.0


def offloads() -> bool:
    with UdpLink() as link:
        return link.gso and link.gro


OFFLOADS = offloads()
needs_offload = pytest.mark.skipif(not OFFLOADS, reason="this kernel has no UDP_SEGMENT or no UDP_GRO")
both_ways = pytest.mark.parametrize("offload", [pytest.param(True, marks=needs_offload), False])
every_pair = pytest.mark.parametrize(
    ("sender_offload", "receiver_offload"),
    [pytest.param(a, b, marks=needs_offload if a or b else ()) for a in (True, False) for b in (True, False)],
)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def collect(link: Link, count: int) -> list[Batch]:
    """Copies of what arrives, until there are `count` datagrams."""
    batches: list[Batch] = []
    end_s = time.monotonic() + PATIENCE_S
    while sum(map(len, batches)) < count and time.monotonic() < end_s:
        batches += [batch.copy() for batch in link.receive(0.2)]
    return batches


def rows(batches: list[Batch]) -> list[bytes]:
    return [row.tobytes() for batch in batches for row in batch.datagrams]


def numbered(count: int, size: int, first: int = 0) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Datagrams of `size` bytes that start with their number."""
    data = np.zeros((count, size), np.uint8)
    data[:, :4] = np.arange(first, first + count, dtype=">u4").view(np.uint8).reshape(count, 4)
    return data.reshape(-1)


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
    assert all(len(batch) <= MAX_BATCH_DATAGRAMS for batch in batches)
    assert all(batch.data.nbytes <= MAX_BATCH_BYTES for batch in batches)


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
def test_more_datagrams_than_a_batch_may_have_are_cut(stack: ExitStack) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=True)) for _ in range(2))
    if sender._call(np.zeros(100 * 30 + 5, np.uint8), 30, receiver.address):
        pytest.skip("this kernel sends no more than 64 datagrams a call")
    assert [(len(batch), batch.size) for batch in receiver.receive(PATIENCE_S)] == [(64, 30), (36, 30), (1, 5)]
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


# --- misuse raises ---


@both_ways
@pytest.mark.parametrize(("count", "size"), [(1, MAX_DATAGRAM_BYTES + 1), (0, 0), (1, -1)])
def test_a_size_that_udp_cannot_carry_is_refused(stack: ExitStack, offload: bool, count: int, size: int) -> None:
    link = stack.enter_context(UdpLink(offload=offload))
    with pytest.raises(ValueError, match="bytes of payload"):
        link.send(Batch(np.zeros(abs(count * size), np.uint8), size, link.address))


def test_a_batch_with_a_part_of_a_datagram_is_refused(stack: ExitStack) -> None:
    link = stack.enter_context(UdpLink())
    for _ in range(2):  # the second time the size is the one last sent
        with pytest.raises(ValueError, match="not a whole number"):
            link.send(Batch(np.zeros(25, np.uint8), 10, link.address))
        link.send(Batch(np.zeros(30, np.uint8), 10, link.address))


def test_a_connected_link_sends_to_nobody_else(stack: ExitStack) -> None:
    peer = stack.enter_context(UdpLink())
    link = stack.enter_context(UdpLink(connect=peer.address))
    with pytest.raises(ValueError, match="connected to"):
        link.send(Batch(numbered(1, 10), 10, ("127.0.0.1", 9)))


def test_a_host_name_is_refused() -> None:
    with pytest.raises(ValueError, match="localhost"):
        UdpLink(("localhost", 0))


def test_a_closed_link_raises() -> None:
    link = UdpLink()
    link.close()
    link.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        link.send(Batch(numbered(1, 10), 10, ("127.0.0.1", 9)))
    with pytest.raises(OSError, match="Bad file descriptor"):
        link.receive(0.0)


def test_an_address_in_use_raises(stack: ExitStack) -> None:
    link = stack.enter_context(UdpLink())
    with pytest.raises(OSError, match="in use"):
        UdpLink(link.address)


def test_offload_insisted_on_where_there_is_none_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockopt, "enable", lambda *_: False)
    with pytest.raises(OSError, match="no UDP_SEGMENT") as caught:
        UdpLink(offload=True)
    assert caught.value.errno == errno.EOPNOTSUPP


def test_without_kernel_support_the_link_does_without(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockopt, "enable", lambda *_: False)
    sender, receiver = (stack.enter_context(UdpLink()) for _ in range(2))
    assert not sender.gso
    sender.send(Batch(numbered(3, 10), 10, receiver.address))
    assert rows(collect(receiver, 3)) == rows([Batch(numbered(3, 10), 10, sender.address)])


# --- what the network does is counted ---


@both_ways
def test_a_connected_link_hears_its_peer_only(stack: ExitStack, offload: bool) -> None:
    peer, stranger = (stack.enter_context(UdpLink()) for _ in range(2))
    link = stack.enter_context(UdpLink(connect=peer.address, offload=offload))
    stranger.send(Batch(numbered(1, 10), 10, link.address))
    peer.send(Batch(numbered(2, 10), 10, link.address))
    assert [(len(batch), batch.peer) for batch in collect(link, 2)] == [(2, peer.address)]


@both_ways
def test_a_peer_that_is_not_there_yet_is_counted_and_tried_again(stack: ExitStack, offload: bool) -> None:
    with UdpLink() as gone:
        address = gone.address
    link = stack.enter_context(UdpLink(connect=address, offload=offload))
    batch = Batch(numbered(3, 10), 10, address)
    assert link.send(batch) == 3  # answered by ICMP
    assert link.receive(0.05) == []
    assert link.counters.unreachable >= 1
    assert link.counters.errors == {"ECONNREFUSED": link.counters.unreachable}
    peer = stack.enter_context(UdpLink(address))
    assert link.send(batch) == 3
    assert len(collect(peer, 3)[0]) == 3


def test_an_icmp_answer_does_not_swallow_the_next_send(stack: ExitStack) -> None:
    with UdpLink() as gone:
        address = gone.address
    link = stack.enter_context(UdpLink(connect=address))
    batch = Batch(numbered(3, 10), 10, address)
    link.send(batch)
    peer = stack.enter_context(UdpLink(address))
    assert link.send(batch) == 3
    assert len(collect(peer, 3)[0]) == 3


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOBUFS])
def test_a_full_send_buffer_is_reported_and_counted(stack: ExitStack, number: int) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=False)) for _ in range(2))
    fail_after(sender, 2, number)
    assert sender.send(Batch(numbered(5, 10), 10, receiver.address)) == 2
    assert rows(collect(receiver, 2)) == rows([Batch(numbered(2, 10), 10, sender.address)])
    counters = sender.counters
    assert (counters.datagrams_out, counters.send_blocked, counters.send_refused) == (2, 3, 0)


def test_a_send_without_a_route_is_reported_and_counted(stack: ExitStack) -> None:
    link = stack.enter_context(UdpLink())
    fail_after(link, 0, errno.ENETUNREACH)
    assert link.send(Batch(numbered(5, 10), 10, ("192.0.2.1", 9))) == 0
    assert (link.counters.send_refused, link.counters.errors) == (5, {"ENETUNREACH": 1})


def test_a_peer_that_is_left_out_is_missing_from_the_sum(stack: ExitStack) -> None:
    sender, receiver = (stack.enter_context(UdpLink()) for _ in range(2))
    send = sender._sendto

    def sendto(data: object, peer: object) -> int:
        if peer != receiver.address:
            raise OSError(errno.ENETUNREACH, "no route")
        return send(data, peer)

    sender._sendto = sendto
    assert sender.send_many(numbered(5, 10), 10, [("192.0.2.1", 9), receiver.address]) == 5
    assert len(collect(receiver, 5)) == 1


def test_an_error_that_is_no_network_s_is_raised(stack: ExitStack) -> None:
    link = stack.enter_context(UdpLink())
    fail_after(link, 0, errno.EFAULT)
    with pytest.raises(OSError, match="simulated"):
        link.send(Batch(numbered(5, 10), 10, link.address))


@needs_offload
@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL, errno.EMSGSIZE])
def test_a_route_that_refuses_the_offload_gets_single_datagrams(stack: ExitStack, number: int) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=True)) for _ in range(2))
    send = sender._sendto

    def sendto(data: object, peer: object) -> int:
        if sender._segment:
            raise OSError(number, "simulated")
        return send(data, peer)

    sender._sendto = sendto
    data = numbered(10, 100)
    for _ in range(2):
        assert sender.send(Batch(data, 100, receiver.address)) == 10
    assert rows(collect(receiver, 20)) == 2 * rows([Batch(data, 100, sender.address)])
    counters = sender.counters
    assert (counters.offload_refused, counters.calls_out) == (1, 21)  # asked once, not again
    sender.send(Batch(data, 200, receiver.address))  # another size may pass
    assert counters.offload_refused == 2


@needs_offload
def test_a_send_that_fails_without_offload_too_says_nothing_about_it(stack: ExitStack) -> None:
    sender, receiver = (stack.enter_context(UdpLink(offload=True)) for _ in range(2))
    works = sender._sendto
    fail_after(sender, 0, errno.EINVAL)
    assert sender.send(Batch(numbered(10, 100), 100, receiver.address)) == 0
    assert (sender.counters.offload_refused, sender.counters.send_refused) == (0, 10)
    sender._sendto = works
    assert sender.send(Batch(numbered(10, 100), 100, receiver.address)) == 10
    assert sender.counters.calls_out == 3


def test_the_granted_buffers_can_be_read(stack: ExitStack) -> None:
    link = stack.enter_context(UdpLink(receive_buffer_bytes=100_000, send_buffer_bytes=100_000))
    assert (link.granted_receive_buffer_bytes, link.granted_send_buffer_bytes) == (200_000, 200_000)


def test_a_link_of_ipv6_leaves_the_port_free_for_ipv4(stack: ExitStack) -> None:
    six = stack.enter_context(UdpLink(("::", 0)))
    four = stack.enter_context(UdpLink(("0.0.0.0", six.address[1])))
    assert four.address[1] == six.address[1]


def test_a_link_local_source_keeps_its_interface(stack: ExitStack) -> None:
    link = stack.enter_context(UdpLink())
    name = socket.if_indextoname(1)
    assert link._name(("fe80::1", 9, 0, 1)) == (f"fe80::1%{name}", 9)


def fail_after(link: UdpLink, calls: int, number: int) -> None:
    """Make all system calls to send fail with errno `number` after so many that work."""
    send = link._sendto
    count = itertools.count()

    def sendto(data: object, peer: object) -> int:
        if next(count) >= calls:
            raise OSError(number, "simulated")
        return send(data, peer)

    link._sendto = sendto
