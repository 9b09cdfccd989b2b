"""Multicast groups on loopback: what is sent once comes to all who listen, and to nobody else."""

from __future__ import annotations

import errno
import os
import select
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.link.loopback import PATIENCE_S, both_ways, collect, needs_offload, numbered, rows
from tests.link.loops import needs_port, port_of, receive_all

from inagg_link import native, waiting
from inagg_link import port as ports
from inagg_link.addresses import Address
from inagg_link.base import Batch
from inagg_link.groups import Group, GroupLink
from inagg_link.port import PEER, key_of
from inagg_link.udp import UdpLink

HOST = "239.255.0.7"


@pytest.fixture
def sender(stack: ExitStack) -> UdpLink:
    """Who sends to groups, such as a switch."""
    link = stack.enter_context(UdpLink())
    link.send_to_groups(1)
    return link


def group_of(sender: UdpLink, host: str = HOST) -> Group:
    return Group((host, sender.address[1]), sender.address)


def listener(stack: ExitStack, *groups: Group, offload: bool | None = None) -> GroupLink:
    link = stack.enter_context(GroupLink(UdpLink(offload=offload)))
    link.listen(groups)
    return link


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# --- who hears what ---


@both_ways
def test_what_is_sent_once_comes_to_all_who_listen(stack: ExitStack, offload: bool) -> None:
    sender = stack.enter_context(UdpLink(offload=offload))
    sender.send_to_groups(1)
    group, data = group_of(sender), numbered(44, 1472)
    links = [listener(stack, group, offload=offload) for _ in range(3)]
    assert sender.send(Batch(data, 1472, group.address)) == 44
    for link in links:
        batches = collect(link, 44)
        assert rows(batches) == [row.tobytes() for row in data.reshape(44, 1472)]
        assert {batch.peer for batch in batches} == {sender.address}


@needs_offload
def test_a_batch_comes_as_one_batch(stack: ExitStack, sender: UdpLink) -> None:
    link = listener(stack, group_of(sender))
    sender.send(Batch(numbered(5, 13088), 13088, group_of(sender).address))
    assert [len(batch) for batch in link.receive(PATIENCE_S)] == [5]


def test_what_is_sent_to_the_link_itself_comes_too(stack: ExitStack, sender: UdpLink) -> None:
    link = listener(stack, group_of(sender))
    sender.send(Batch(numbered(1, 100), 100, link.address))
    sender.send(Batch(numbered(1, 100, 1), 100, group_of(sender).address))
    assert sorted(rows(collect(link, 2))) == sorted(rows([Batch(numbered(2, 100), 100, sender.address)]))


def test_what_another_sends_to_the_group_is_not_heard(stack: ExitStack, sender: UdpLink) -> None:
    link = listener(stack, group_of(sender))
    stranger = stack.enter_context(UdpLink())
    stranger.send_to_groups(1)
    stranger.send(Batch(numbered(1, 100), 100, group_of(sender).address))
    assert link.receive(0.05) == []


def test_what_goes_to_another_group_of_the_same_port_is_not_heard(stack: ExitStack, sender: UdpLink) -> None:
    link, other = listener(stack, group_of(sender)), listener(stack, group_of(sender, "239.255.0.8"))
    sender.send(Batch(numbered(1, 100), 100, group_of(sender).address))
    assert len(collect(link, 1)) == 1
    assert other.receive(0.05) == []


def test_who_listens_to_another_group_no_longer_hears_the_first(stack: ExitStack, sender: UdpLink) -> None:
    link = listener(stack, group_of(sender))
    link.listen([group_of(sender, "239.255.0.8")])
    sender.send(Batch(numbered(1, 100), 100, group_of(sender).address))
    sender.send(Batch(numbered(1, 200), 200, ("239.255.0.8", sender.address[1])))
    assert [batch.size for batch in collect(link, 1)] == [200]


def test_several_groups_are_heard_at_once(stack: ExitStack) -> None:
    senders = [stack.enter_context(UdpLink()) for _ in range(3)]
    link = listener(stack, *map(group_of, senders))
    for sender in senders:
        sender.send_to_groups(1)
        sender.send(Batch(numbered(1, 100), 100, group_of(sender).address))
    assert {batch.peer for batch in collect(link, 3)} == {sender.address for sender in senders}


def test_a_source_on_another_loopback_address_is_heard(stack: ExitStack) -> None:
    sender = stack.enter_context(UdpLink(("127.0.0.9", 0)))
    sender.send_to_groups(1)
    link = listener(stack, group_of(sender))
    sender.send(Batch(numbered(1, 100), 100, group_of(sender).address))
    assert [batch.peer for batch in collect(link, 1)] == [sender.address]


# --- waiting ---


def test_its_descriptor_is_readable_whichever_socket_has_something(stack: ExitStack, sender: UdpLink) -> None:
    link = listener(stack, group_of(sender))
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    for to in (link.address, group_of(sender).address):
        assert poll.poll(0) == []
        sender.send(Batch(numbered(1, 100), 100, to))
        assert len(poll.poll(PATIENCE_S * 1e3)) == 1
        assert len(link.receive(0.0)) == 1


def test_receive_waits_for_what_comes_to_a_group(stack: ExitStack, sender: UdpLink) -> None:
    link = listener(stack, group_of(sender))
    start_s = time.monotonic()
    assert link.receive(0.05) == []
    assert time.monotonic() - start_s >= 0.04


# --- in a compiled loop ---


@needs_port
def test_a_loop_receives_from_the_group_and_from_the_link(stack: ExitStack, sender: UdpLink, bell: int) -> None:
    link, group = listener(stack, group_of(sender)), group_of(sender)
    for to in (group.address, link.address):
        assert waiting.wait(port_of(link), bell, 0) == 0
        sender.send(Batch(numbered(5, 1000), 1000, to))
        assert waiting.wait(port_of(link), bell, int(PATIENCE_S * 1e9)) == 1
        assert receive_all(link) == rows([Batch(numbered(5, 1000), 1000, to)])
        assert port_of(link).words[PEER] == key_of(sender.address)


@needs_port
def test_a_loop_learns_by_waiting_that_something_has_come_to_the_link_itself(
    stack: ExitStack, sender: UdpLink, bell: int
) -> None:
    link = listener(stack, group_of(sender))
    port = port_of(link)
    assert native.receive(port) == native.AGAIN
    sender.send(Batch(numbered(2, 1000), 1000, link.address))
    assert native.receive(port) == native.AGAIN
    assert waiting.wait(port, bell, 0) == 1
    assert native.receive(port) == 2000
    assert native.receive(port) == native.AGAIN


@needs_port
def test_what_a_loop_receives_is_counted(stack: ExitStack, sender: UdpLink) -> None:
    link = listener(stack, group_of(sender))
    sender.send(Batch(numbered(5, 1000), 1000, group_of(sender).address))
    sender.send(Batch(numbered(2, 1000), 1000, link.address))
    receive_all(link)
    assert link.traffic[1::2] == (7, 7000), "before the counters were asked for, and after"
    assert (link.counters.datagrams_in, link.counters.bytes_in, link.counters.calls_in) == (7, 7000, 2)
    assert link.traffic[1::2] == (7, 7000)


@needs_port
def test_a_loop_hears_no_group_any_more_when_the_link_does_not(stack: ExitStack, sender: UdpLink) -> None:
    link = listener(stack, group_of(sender))
    port_of(link)
    link.listen([])
    sender.send(Batch(numbered(5, 1000), 1000, group_of(sender).address))
    assert receive_all(link) == []


@needs_port
def test_a_loop_receives_from_several_groups(stack: ExitStack, sender: UdpLink, bell: int) -> None:
    groups = [group_of(sender, host) for host in ("239.255.0.7", "239.255.0.8", "239.255.0.9")]
    link = listener(stack, *groups)
    for address in (groups[2].address, link.address, groups[0].address, groups[1].address):
        sender.send(Batch(numbered(5, 1000), 1000, address))
        assert waiting.wait(port_of(link), bell, int(PATIENCE_S * 1e9)) == 1
        assert receive_all(link) == rows([Batch(numbered(5, 1000), 1000, address)])


def test_with_more_groups_than_there_is_room_for_there_is_no_port(
    stack: ExitStack, sender: UdpLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "SOCKETS_MOST", 2)
    assert listener(stack, group_of(sender), group_of(sender, "239.255.0.8")).port() is None


# --- counters and ends ---


def test_the_counters_are_those_of_all_sockets_also_when_they_are_closed(stack: ExitStack, sender: UdpLink) -> None:
    link = listener(stack, group_of(sender))
    for to in (group_of(sender).address, link.address):
        sender.send(Batch(numbered(2, 100), 100, to))
    assert len(rows(collect(link, 4))) == 4
    assert link.send(Batch(numbered(3, 100), 100, sender.address)) == 3
    for _ in range(2):
        counters = link.counters
        assert (counters.datagrams_in, counters.bytes_in, counters.calls_in) == (4, 400, 2)
        assert link.traffic == (counters.datagrams_out, 4, counters.bytes_out, 400)
        assert (counters.datagrams_out, counters.kernel_drops) == (3, 0)
        link.listen([])


def test_what_the_kernel_drops_at_a_group_is_counted(stack: ExitStack, sender: UdpLink) -> None:
    link = listener(stack, group_of(sender))
    (hearing,) = link._listeners
    sent = 1 + hearing.granted_receive_buffer_bytes // 60_000
    for _ in range(sent):
        sender.send(Batch(numbered(1, 60_000), 60_000, group_of(sender).address))
    assert 0 < (link.counters.kernel_drops or 0) < sent


def test_closing_leaves_no_descriptor(sender: UdpLink) -> None:
    before = descriptors()
    link = GroupLink(UdpLink())
    for host in (HOST, "239.255.0.8"):
        link.listen([group_of(sender, host)])
    link.close()
    link.close()
    assert descriptors() == before


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(("127.0.0.1", 5000), id="an address that is no group"),
        pytest.param(("239.255.0.7", 1 << 16), id="no port"),
        pytest.param(("group", 5000), id="a name"),
    ],
)
def test_a_group_that_cannot_be_listened_to_leaves_the_link_as_it_was(
    stack: ExitStack, sender: UdpLink, group: Address
) -> None:
    link = listener(stack)
    before = descriptors()
    with pytest.raises((OSError, ValueError)):
        link.listen([group_of(sender), Group(group, sender.address)])
    assert descriptors() == before
    sender.send(Batch(numbered(1, 100), 100, group_of(sender).address))
    assert link.receive(0.05) == []
    sender.send(Batch(numbered(1, 100), 100, link.address))
    assert len(collect(link, 1)) == 1


def test_a_loopback_address_hears_no_group_from_elsewhere(stack: ExitStack) -> None:
    """It could be joined, and nothing would ever come."""
    link = listener(stack)
    with pytest.raises(OSError, match=r"what 192.0.2.1 sends to a group does not come to 127.0.0.1"):
        link.listen([Group((HOST, 5000), ("192.0.2.1", 5000))])


def test_a_socket_that_joins_nothing_cannot_be_opened() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
        UdpLink((HOST, 0), interface="192.0.2.1")
