"""Compiled system calls over real sockets: what they do is what the link's own methods do, and is counted the same."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.link.gathering import gather
from tests.link.loopback import collect, numbered, rows
from tests.link.loops import cut, needs_port, port_of, receive, receive_all, send, send_all

from inagg_link import native, sockopt
from inagg_link.base import Batch
from inagg_link.port import ERRNO, PEER, SEGMENT, SIZE, key_of
from inagg_link.udp import UdpLink

pytestmark = needs_port

IP_PKTINFO, IP_RECVTTL, IP_RECVTOS = 8, 12, 13  # ip(7)
LARGEST = 65_487
"""Bytes of a datagram that fits into one packet of the loopback interface, also of IPv6."""
SIZES = [1, 2, 24, 25, 999, 1472, 1473, LARGEST]
only_ipv4 = pytest.mark.parametrize("host", ["127.0.0.1"])


# --- what is sent is what is received ---


@pytest.mark.parametrize("size", SIZES)
def test_what_a_loop_sends_arrives(sender: UdpLink, receiver: UdpLink, size: int) -> None:
    data = np.resize(numbered(90, 1472), 90 * size if size < LARGEST else size)
    send_all(sender, data, size, receiver.address)
    batches = collect(receiver, data.size // size)
    assert np.concatenate([batch.data for batch in batches]).tobytes() == data.tobytes()
    assert {(batch.size, batch.peer) for batch in batches} == {(size, sender.address)}


@pytest.mark.parametrize("size", SIZES)
def test_what_a_link_sends_a_loop_receives(sender: UdpLink, receiver: UdpLink, size: int) -> None:
    data = np.resize(numbered(90, 1472), 90 * size if size < LARGEST else size)
    sender.send(Batch(data, size, receiver.address))
    assert receive_all(receiver) == rows([Batch(data, size, sender.address)])


def test_a_loop_learns_who_sent_a_batch(sender: UdpLink, receiver: UdpLink) -> None:
    sender.send(Batch(numbered(3, 100), 100, receiver.address))
    receive(receiver)
    assert port_of(receiver).words[PEER] == key_of(sender.address)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(SIZES), min_size=1, max_size=20), st.booleans(), st.booleans())
def test_datagrams_of_any_sizes_pass_in_order(
    sender: UdpLink, receiver: UdpLink, sizes: list[int], sends: bool, receives: bool
) -> None:
    """Whichever end is a loop, or both."""
    datagrams = [bytes([index % 256]) * size for index, size in enumerate(sizes)]
    for batch in gather(datagrams, receiver.address):
        if sends:
            assert send(sender, batch.data.copy(), batch.size, batch.peer) == 0
        else:
            sender.send(batch)
    assert (receive_all(receiver) if receives else rows(collect(receiver, len(datagrams)))) == datagrams


def test_the_last_datagram_of_a_batch_may_be_shorter(sender: UdpLink, receiver: UdpLink) -> None:
    data = np.arange(2500, dtype=np.uint16).astype(np.uint8)
    sender._call(data, 1000, receiver.address)  # what another program may send
    port = port_of(receiver)
    assert native.receive(port) == 2500
    assert port.words[SIZE] == 1000
    assert cut(port, 2500) == [data[:1000].tobytes(), data[1000:2000].tobytes(), data[2000:].tobytes()]
    assert (receiver.counters.datagrams_in, receiver.counters.bytes_in) == (3, 2500)


def test_one_call_brings_one_batch(sender: UdpLink, receiver: UdpLink) -> None:
    for count in (2, 1):
        sender.send(Batch(numbered(count, 100), 100, receiver.address))
    assert [len(receive(receiver)) for _ in range(2)] == [2, 1]
    assert native.receive(port_of(receiver)) == native.AGAIN


def test_both_ways_of_sending_can_be_mixed(sender: UdpLink, receiver: UdpLink) -> None:
    """They share what the socket is told of the size of datagrams."""
    expected = []
    for turn, size in enumerate([100, 200, 100, 100, 1472, 1472, 300, 100]):
        data = numbered(5, size, first=10 * turn)
        if turn % 2:
            sender.send(Batch(data, size, receiver.address))
        else:
            send_all(sender, data, size, receiver.address)
        told = sender._socket.getsockopt(sockopt.SOL_UDP, sockopt.UDP_SEGMENT)
        assert told == port_of(sender).words[SEGMENT] == size
        expected += rows([Batch(data, size, sender.address)])
    assert rows(collect(receiver, 40)) == expected


def test_both_ways_of_receiving_can_be_mixed(sender: UdpLink, receiver: UdpLink) -> None:
    got = []
    for turn in range(6):
        sender.send(Batch(numbered(5, 100, first=5 * turn), 100, receiver.address))
        got += receive(receiver) if turn % 2 else rows(collect(receiver, 5))
    assert got == rows([Batch(numbered(30, 100), 100, sender.address)])


@only_ipv4
def test_the_largest_datagram_of_ipv4_arrives(sender: UdpLink, receiver: UdpLink) -> None:
    data = np.resize(numbered(90, 1472), 65_507)
    send_all(sender, data, 65_507, receiver.address)
    assert rows(collect(receiver, 1)) == [data.tobytes()]


# --- what goes wrong ---


def test_who_is_no_registered_peer_of_ipv6_gets_nothing(sender: UdpLink) -> None:
    assert native.send(port_of(sender), numbered(1, 100), 100, 100, key_of(("::1", 9))) == native.FAILED
    assert port_of(sender).words[ERRNO] == errno.EDESTADDRREQ


def test_where_nothing_is_there_a_loop_is_told_so(receiver: UdpLink) -> None:
    assert native.receive(port_of(receiver)) == native.AGAIN
    assert receiver.counters.calls_in == 0


def test_an_empty_datagram_is_discarded(sender: UdpLink, receiver: UdpLink) -> None:
    sender._sendto(b"", receiver.address)
    sender.send(Batch(numbered(2, 10), 10, receiver.address))
    assert native.receive(port_of(receiver)) == native.DISCARDED
    assert len(receive(receiver)) == 2
    assert (receiver.counters.empty, receiver.counters.datagrams_in) == (1, 2)


@only_ipv4
def test_a_batch_of_unknown_size_is_discarded(sender: UdpLink, receiver: UdpLink) -> None:
    """As when the kernel has more to tell than there is room for."""
    for option in (IP_PKTINFO, IP_RECVTTL, IP_RECVTOS):
        receiver._socket.setsockopt(socket.IPPROTO_IP, option, 1)
    sender.send(Batch(numbered(2, 10), 10, receiver.address))
    assert native.receive(port_of(receiver)) == native.DISCARDED
    assert (receiver.counters.truncated, receiver.counters.datagrams_in) == (1, 0)


@only_ipv4
@pytest.mark.parametrize(
    ("peer", "size", "number"),
    [
        pytest.param(None, 65_508, errno.EMSGSIZE, id="too long"),
        pytest.param(("127.255.255.255", 9), 100, errno.EACCES, id="broadcast"),
        pytest.param(("127.0.0.1", 0), 100, errno.EINVAL, id="port 0"),
    ],
)
def test_what_the_kernel_refuses_is_not_sent(
    sender: UdpLink, receiver: UdpLink, peer: tuple[str, int] | None, size: int, number: int
) -> None:
    data = np.zeros(size, np.uint8)
    assert send(sender, data, size, peer or receiver.address) == native.FAILED
    assert port_of(sender).words[ERRNO] == number
    assert (sender.counters.datagrams_out, sender.counters.bytes_out, sender.counters.calls_out) == (0, 0, 1)
    send_all(sender, numbered(1, 100), 100, receiver.address)  # and it goes on
    assert rows(collect(receiver, 1)) == [numbered(1, 100).tobytes()]


def test_nobody_there_is_no_error(sender: UdpLink, host: str) -> None:
    with UdpLink((host, 0)) as gone:
        address = gone.address
    for _ in range(2):
        send_all(sender, numbered(2, 100), 100, address)
    assert native.receive(port_of(sender)) == native.AGAIN


def test_a_closed_link_fails(receiver: UdpLink) -> None:
    """And takes nothing of whoever has its descriptor then."""
    link = UdpLink()
    port = port_of(link)
    link.close()
    with UdpLink() as heir:
        heir.send(Batch(numbered(1, 100), 100, heir.address))
        assert native.receive(port) == native.FAILED
        assert port.words[ERRNO] == errno.EBADF
        assert native.send(port, numbered(1, 100), 100, 100, key_of(receiver.address)) == native.FAILED
        assert len(collect(heir, 1)) == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        link.receive_failed(int(port.words[ERRNO]))


def test_an_answer_of_the_network_is_counted_and_no_error(receiver: UdpLink) -> None:
    receiver.receive_failed(errno.ECONNREFUSED)
    assert (receiver.counters.unreachable, receiver.counters.errors) == (1, {"ECONNREFUSED": 1})


# --- counters ---


def test_a_loop_counts_as_the_link_does(stack: ExitStack) -> None:
    counted = []
    for in_a_loop in (True, False):
        sender, receiver = (stack.enter_context(UdpLink()) for _ in range(2))
        for size, count in ((1472, 44), (100, 64), (100, 3), (65_507, 1)):
            data = np.zeros(size * count, np.uint8)
            if in_a_loop:
                send_all(sender, data, size, receiver.address)
            else:
                sender.send(Batch(data, size, receiver.address))
        if in_a_loop:
            receive_all(receiver)
        else:
            collect(receiver, 112)
        counted.append((asdict(sender.counters), asdict(receiver.counters)))
    assert counted[0] == counted[1]
    assert counted[0][1]["datagrams_in"] == 112


def test_what_both_ways_have_counted_adds_up(sender: UdpLink, receiver: UdpLink) -> None:
    for _ in range(2):
        sender.send(Batch(numbered(2, 100), 100, receiver.address))
        send_all(sender, numbered(3, 100), 100, receiver.address)
        assert len(receive(receiver)) == 2
        collect(receiver, 3)
        assert sender.counters is sender.counters  # live: asking counts nothing twice
    sent, received = sender.counters, receiver.counters
    assert (sent.datagrams_out, sent.bytes_out, sent.calls_out) == (10, 1000, 4)
    assert (received.datagrams_in, received.bytes_in, received.calls_in) == (10, 1000, 4)
