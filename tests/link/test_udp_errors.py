"""What goes wrong on a link over sockets: misuse raises, and what the network does is counted."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

import numpy as np
import pytest
from tests.link.loopback import both_ways, collect, fail_after, needs_offload, numbered, rows

from inagg_link import sockopt
from inagg_link.base import MAX_DATAGRAM_BYTES, Batch
from inagg_link.port import SEGMENT
from inagg_link.udp import UdpLink

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
        if sender._words[SEGMENT]:
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
