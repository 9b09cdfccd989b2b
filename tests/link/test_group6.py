"""Multicast groups of IPv6 on loopback: as those of IPv4, where it has a route for them."""

from __future__ import annotations

import errno
from contextlib import ExitStack

import pytest
from tests.link.loopback import both_ways, collect, needs_groups6, needs_offload, numbered, rows
from tests.link.loops import needs_port, port_of, receive_all, send

from inagg_link import sockopt
from inagg_link.base import Batch
from inagg_link.groups import Group, GroupLink
from inagg_link.port import PEER, key_of
from inagg_link.udp import UdpLink
from inagg_switch.multicast_groups import LOCAL, group_of


def group(sender: UdpLink, job: int = 7) -> Group:
    return Group(group_of(LOCAL[6], job, sender.address[1]), sender.address)


def listener(stack: ExitStack, *groups: Group, offload: bool | None = None) -> GroupLink:
    link = stack.enter_context(GroupLink(UdpLink(("::1", 0), offload=offload)))
    link.listen(groups)
    return link


@pytest.fixture
def sender(stack: ExitStack) -> UdpLink:
    """Who sends to groups, such as a switch."""
    link = stack.enter_context(UdpLink(("::1", 0)))
    link.send_to_groups(1)
    return link


@needs_groups6
@both_ways
def test_what_is_sent_once_comes_to_all_who_listen(stack: ExitStack, offload: bool) -> None:
    sender = stack.enter_context(UdpLink(("::1", 0), offload=offload))
    sender.send_to_groups(1)
    links = [listener(stack, group(sender), offload=offload) for _ in range(3)]
    data = numbered(44, 1472)
    assert sender.send(Batch(data, 1472, group(sender).address)) == 44
    for link in links:
        batches = collect(link, 44)
        assert rows(batches) == [row.tobytes() for row in data.reshape(44, 1472)]
        assert {batch.peer for batch in batches} == {sender.address}


@needs_groups6
@needs_offload
def test_a_batch_comes_as_one_batch(stack: ExitStack, sender: UdpLink) -> None:
    link = listener(stack, group(sender))
    sender.send(Batch(numbered(5, 13088), 13088, group(sender).address))
    assert [len(batch) for batch in link.receive(5.0)] == [5]


@needs_groups6
def test_what_another_sends_and_what_goes_to_another_group_is_not_heard(stack: ExitStack, sender: UdpLink) -> None:
    link = listener(stack, group(sender))
    stranger = stack.enter_context(UdpLink(("::1", 0)))
    stranger.send_to_groups(1)
    assert stranger.send(Batch(numbered(1, 100), 100, group(sender).address)) == 1
    with listener(stack, group(sender, 8)) as other:
        assert sender.send(Batch(numbered(1, 200), 200, group(sender, 8).address)) == 1
        assert [batch.size for batch in collect(other, 1)] == [200]
    assert link.receive(0.05) == []


@needs_groups6
@needs_port
def test_a_loop_sends_to_a_group_and_another_receives_from_it(stack: ExitStack, sender: UdpLink) -> None:
    link, data = listener(stack, group(sender)), numbered(5, 1000)
    assert send(sender, data, 1000, group(sender).address) == 0
    assert receive_all(link) == rows([Batch(data, 1000, group(sender).address)])
    assert port_of(link).words[PEER] == key_of(sender.address)


def test_a_group_whose_source_is_not_of_this_machine_cannot_be_heard_on_its_loopback(stack: ExitStack) -> None:
    link = listener(stack)
    with pytest.raises(OSError, match=r"what 2001:db8::1 sends to a group does not come to ::1"):
        link.listen([Group(("ff15::8000:1", 5000), ("2001:db8::1", 5000))])


@pytest.mark.parametrize(("address", "index"), [("::1", 1), ("::", 0), ("fe80::1%lo", 1), ("fe80::1%7", 7)])
def test_an_address_tells_the_index_of_its_interface(address: str, index: int) -> None:
    assert sockopt.interface_index(address) == index


def test_an_address_that_no_interface_has_tells_none() -> None:
    with pytest.raises(OSError, match=r"no interface has 2001:db8::9") as error:
        sockopt.interface_index("2001:db8::9")
    assert error.value.errno == errno.ENODEV
