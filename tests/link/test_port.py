"""What a link lends to compiled loops: addresses as numbers, and when it lends nothing."""

from __future__ import annotations

import errno
import socket
import struct
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.link.loopback import collect, numbered, rows
from tests.link.loops import needs_port, port_of
from tests.link.memory import MemoryNetwork

from inagg_link import native
from inagg_link.addresses import Address
from inagg_link.base import Batch
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Faults
from inagg_link.port import AF_INET6, address_of, key_of, register, register_only
from inagg_link.udp import UdpLink

addresses = st.tuples(st.ip_addresses(v=4).map(str), st.integers(0, 65_535))


@given(addresses)
def test_a_key_tells_its_address(address: tuple[str, int]) -> None:
    assert address_of(key_of(address)) == address


@given(addresses)
def test_a_key_is_what_the_kernel_calls_the_address(address: tuple[str, int]) -> None:
    host, port = address
    sockaddr_in = struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host)
    assert key_of(address).to_bytes(8, sys.byteorder, signed=True) == sockaddr_in


addresses6 = st.tuples(st.ip_addresses(v=6).map(str), st.integers(0, 65_535))


@needs_port
@given(st.lists(addresses6, min_size=1, max_size=5))
def test_a_port_knows_the_ipv6_addresses_that_it_was_told(some: list[tuple[str, int]]) -> None:
    with UdpLink() as link:
        keys = [register(port_of(link), address) for address in some]
        assert [address_of(key, port_of(link)) for key in keys] == some
        assert keys == [key_of(address) for address in some]


@given(st.lists(addresses6, min_size=2, max_size=5, unique=True))
def test_ipv6_addresses_have_keys_of_their_own(some: list[tuple[str, int]]) -> None:
    keys = {key_of(address) for address in some}
    assert len(keys) == len(some)
    assert all(key & 0xFFFF == AF_INET6 for key in keys)


@needs_port
def test_a_port_that_is_told_all_addresses_forgets_the_others_of_ipv6() -> None:
    with UdpLink() as link:
        port, kept = port_of(link), ("2001:db8::1", 9)
        for number in range(100):
            register_only(port, [kept, ("2001:db8::2", number)])
        assert np.count_nonzero(port.names[:, 0]) == 2
        assert address_of(key_of(kept), port) == kept
        with pytest.raises(KeyError):
            address_of(key_of(("2001:db8::2", 98)), port)


def test_an_ipv6_address_that_nobody_registered_is_not_known() -> None:
    with pytest.raises(KeyError, match="no address that is known"):
        address_of(key_of(("2001:db8::7", 9)))


@pytest.mark.parametrize("host", ["1.2.3", "1.2.3.4.5", "256.1.1.1", "localhost", "", "1::2::3"])
def test_what_is_no_literal_address_has_no_key(host: str) -> None:
    with pytest.raises(ValueError, match="IPv4 or IPv6"):
        key_of((host, 1))


# --- when a link lends its socket ---


@needs_port
def test_a_link_lends_the_same_port_each_time(stack: ExitStack) -> None:
    link = stack.enter_context(UdpLink())
    assert link.port() is link.port() is not None


def test_a_connected_link_has_no_port(stack: ExitStack) -> None:
    peer = stack.enter_context(UdpLink())
    assert stack.enter_context(UdpLink(connect=peer.address)).port() is None


def test_without_offload_there_is_no_port(stack: ExitStack) -> None:
    assert stack.enter_context(UdpLink(offload=False)).port() is None


def test_a_link_in_memory_has_no_port() -> None:
    assert MemoryNetwork().link().port() is None


def refuse(sender: UdpLink, peer: Address, size: int) -> None:
    """The route to ``peer`` refuses the offload, as a tunnel's does."""
    working = sender._sendto
    refused: list[object] = []

    def sendto(data: object, to: object) -> int:
        if not refused:
            refused.append(to)
            raise OSError(errno.EIO, "simulated")  # the offload; then it sends without
        return working(data, to)

    sender._sendto = sendto
    assert sender.send(Batch(numbered(3, size), size, peer)) == 3
    sender._sendto = working


@needs_port
def test_a_peer_whose_route_refuses_the_offload_is_sent_single_datagrams_and_others_batches(stack: ExitStack) -> None:
    sender, slow, quick = (stack.enter_context(UdpLink()) for _ in range(3))
    refuse(sender, slow.address, 100)
    assert sender.counters.offload_refused == 1
    port = port_of(sender)
    data = numbered(10, 100).reshape(-1)
    before = sender.counters.calls_out
    for peer, calls in ((slow, 10), (quick, 1), (slow, 10)):
        assert native.send(port, data, data.size, 100, register(port, peer.address)) == 0
        before += calls
        assert sender.counters.calls_out == before
    assert rows(collect(slow, 23))[3:] == 2 * rows([Batch(data, 100, sender.address)])
    assert rows(collect(quick, 10)) == rows([Batch(data, 100, sender.address)])
    half = data[:500]
    assert native.send(port, half, half.size, 50, register(port, slow.address)) == 0  # another size may pass
    assert sender.counters.calls_out == before + 1
    assert (sender.counters.datagrams_out, sender.counters.send_refused) == (43, 0)


@needs_port
def test_a_loop_sends_single_datagrams_with_the_faults_that_they_have(stack: ExitStack) -> None:
    sender, peer = (stack.enter_context(UdpLink()) for _ in range(2))
    refuse(sender, peer.address, 100)
    collect(peer, 3)
    faulty = FaultLink(sender, Faults(drop=0.5), 7, directions=("send",))
    port = port_of(faulty)
    data = numbered(20, 100).reshape(-1)
    assert native.send(port, data, data.size, 100, register(port, peer.address)) == 0
    left = faulty.sending.counters.left
    assert 0 < left < 20
    assert len(rows(collect(peer, left))) == left
