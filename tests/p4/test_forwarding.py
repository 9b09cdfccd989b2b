"""What is not ours: ARP, ping, and frames from host to host. A switch stays a switch."""

from __future__ import annotations

import pytest
from tests.p4.bmv2.switch import Frame
from tests.switch.aggregation.world import make_binding, simple_contribution

from .conftest import MakeRig
from .frames import (
    BROADCAST,
    ETHERTYPE_ARP,
    ETHERTYPE_IPV4,
    UDP,
    arp,
    echo,
    ethernet,
    internet_checksum,
    ipv4,
    to_switch,
    udp,
)
from .rig import Rig

HOSTS = ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
NOBODY = 0x0200_0A4D_9999


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("nat8-32", HOSTS)


def sent(rig: Rig, port: int, frame: bytes, count: int) -> list[Frame]:
    return sorted(rig.wire.exchange(port, frame, count))


def test_who_asks_for_the_switchs_address_is_answered(rig: Rig) -> None:
    host, network = rig.network.hosts[1], rig.network
    question = ethernet(BROADCAST, host.mac, ETHERTYPE_ARP, arp(1, host, 0, network.address))
    answer = ethernet(host.mac, network.mac, ETHERTYPE_ARP, arp(2, network, host.mac, host.address))
    assert sent(rig, 1, question, 1) == [Frame(1, answer)]


def test_who_asks_for_another_hosts_address_is_heard_by_all_others(rig: Rig) -> None:
    asking, asked = rig.network.hosts[0], rig.network.hosts[2]
    question = ethernet(BROADCAST, asking.mac, ETHERTYPE_ARP, arp(1, asking, 0, asked.address))
    assert sent(rig, 0, question, 2) == [Frame(1, question), Frame(2, question)]
    answer = ethernet(asking.mac, asked.mac, ETHERTYPE_ARP, arp(2, asked, asking.mac, asking.address))
    assert sent(rig, 2, answer, 1) == [Frame(0, answer)]


@pytest.mark.parametrize("size", [8, 56, 57, 1400])
def test_a_ping_of_the_switch_is_answered(rig: Rig, size: int) -> None:
    host, network = rig.network.hosts[0], rig.network
    data = bytes(i * 7 % 256 for i in range(size))
    question = ethernet(network.mac, host.mac, ETHERTYPE_IPV4, echo(host.address, network.address, data))
    answer = ethernet(host.mac, network.mac, ETHERTYPE_IPV4, echo(network.address, host.address, data, reply=True))
    assert sent(rig, 0, question, 1) == [Frame(0, answer)]


@pytest.mark.parametrize("frame_end", ["ping", "UDP", "TCP", "IPv6", "contribution"])
def test_frames_from_host_to_host_are_forwarded_as_they_are(rig: Rig, frame_end: str) -> None:
    a, b = rig.network.hosts[:2]
    contribution = simple_contribution(make_binding(), 0, 0)
    packets = {
        "ping": (ETHERTYPE_IPV4, echo(a.address, b.address, bytes(40))),
        "UDP": (ETHERTYPE_IPV4, ipv4(a.address, b.address, UDP, udp(9, 47101, b"anything", checksum=0xABCD))),
        "TCP": (ETHERTYPE_IPV4, ipv4(a.address, b.address, 6, bytes(20), number=77)),
        "IPv6": (0x86DD, bytes(range(80))),
        "contribution": (ETHERTYPE_IPV4, ipv4(a.address, b.address, UDP, udp(5000, 47101, contribution))),
    }
    frame = ethernet(b.mac, a.mac, *packets[frame_end])
    assert sent(rig, 0, frame, 1) == [Frame(1, frame)]
    rig.check_counters()  # none is ours


def test_a_frame_for_nobody_known_goes_to_all_but_its_sender(rig: Rig) -> None:
    frame = ethernet(NOBODY, rig.network.hosts[1].mac, 0x88B5, bytes(50))
    assert sent(rig, 1, frame, 2) == [Frame(0, frame), Frame(2, frame)]


@pytest.mark.parametrize("frame_end", ["IPv6", "another UDP port", "TCP", "VLAN", "IPv4 options", "ping answered"])
def test_what_is_for_the_switch_and_nothing_that_it_answers_is_dropped_and_counted(rig: Rig, frame_end: str) -> None:
    host, network = rig.network.hosts[0], rig.network
    ends = host.address, network.address
    contribution = ipv4(*ends, UDP, udp(5000, 47101, simple_contribution(make_binding(), 0, 0)))
    packets = {
        "IPv6": (0x86DD, bytes(range(80))),
        "another UDP port": (ETHERTYPE_IPV4, ipv4(*ends, UDP, udp(5000, 53, bytes(40)))),
        "TCP": (ETHERTYPE_IPV4, ipv4(*ends, 6, bytes(20))),
        "VLAN": (0x8100, bytes((0, 5)) + ETHERTYPE_IPV4.to_bytes(2, "big") + contribution),
        "IPv4 options": (ETHERTYPE_IPV4, b"\x46" + contribution[1:20] + bytes(4) + contribution[20:]),
        "ping answered": (ETHERTYPE_IPV4, echo(*ends, bytes(40), reply=True)),
    }
    assert sent(rig, 0, ethernet(network.mac, host.mac, *packets[frame_end]), 0) == []
    assert rig.driver.counters(0).link_drops == {"not_ours": 1}
    rig.check_counters()


@pytest.mark.parametrize("length", [0, 1, 10, 19, 20, 27, 83])
def test_a_datagram_with_a_total_length_that_cannot_be_is_refused_with_its_reason(rig: Rig, length: int) -> None:
    """Less than its own header, no room for UDP's, or for what that says: 84 is right."""
    binding = make_binding(n=2, children=((HOSTS[0], 5000), (HOSTS[1], 5000)), lanes=32)
    rig.bind(binding)
    frame = bytearray(
        to_switch(rig.network, rig.network.hosts[0], binding.children[0], simple_contribution(binding, 0, 0))
    )
    frame[16:18] = length.to_bytes(2, "big")
    frame[24:26] = bytes(2)
    frame[24:26] = internet_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    assert sent(rig, 0, bytes(frame), 0) == []
    assert rig.driver.counters(0).link_drops == {"bad_lengths": 1}
    rig.check_counters()


def test_a_datagram_with_a_wrong_ip_checksum_is_dropped(rig: Rig) -> None:
    binding = make_binding(n=2, children=((HOSTS[0], 5000), (HOSTS[1], 5000)), lanes=32)
    rig.bind(binding)
    frame = bytearray(
        to_switch(rig.network, rig.network.hosts[0], binding.children[0], simple_contribution(binding, 0, 0))
    )
    frame[22] -= 1  # time to live
    assert sent(rig, 0, bytes(frame), 0) == []
    rig.check_counters()
    rig.receive(simple_contribution(binding, 0, 0), binding.children[0])
    rig.check_counters()
