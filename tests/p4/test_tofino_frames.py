"""Frames that the executed Tofino program answers, forwards or drops, to the last byte."""

from __future__ import annotations

import numpy as np
import pytest
from tests.p4.bmv2.switch import Frame
from tests.switch.aggregation.world import make_binding, make_contribution, simple_contribution

from inagg_switch.binding import Address

from .frames import BROADCAST, ETHERTYPE_ARP, ETHERTYPE_IPV4, UDP, arp, echo, ethernet, ipv4, to_switch, udp
from .rig import Rig
from .tofino.chip import FRAME_BYTES_MIN
from .tofino.rig import check_counters, chip_of, tofino_rig

HOSTS = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
WORKERS: tuple[Address, ...] = tuple((host, 5001) for host in HOSTS)
NOBODY = 0x0200_0A4D_9999


@pytest.fixture(scope="module")
def rig() -> Rig:
    return tofino_rig(HOSTS, 128)


def sent(rig: Rig, port: int, frame: bytes) -> list[Frame]:
    return sorted(rig.wire.exchange(port, frame, 0))


def leaves(port: int, frame: bytes) -> Frame:
    """As long as Ethernet wants it."""
    return Frame(port, frame.ljust(FRAME_BYTES_MIN, b"\0"))


def test_who_asks_for_the_switchs_address_is_answered(rig: Rig) -> None:
    host, network = rig.network.hosts[1], rig.network
    question = ethernet(BROADCAST, host.mac, ETHERTYPE_ARP, arp(1, host, 0, network.address))
    answer = ethernet(host.mac, network.mac, ETHERTYPE_ARP, arp(2, network, host.mac, host.address))
    assert sent(rig, 1, question) == [leaves(1, answer)]


def test_who_asks_for_another_hosts_address_is_heard_by_all_others(rig: Rig) -> None:
    asking, asked = rig.network.hosts[0], rig.network.hosts[2]
    question = ethernet(BROADCAST, asking.mac, ETHERTYPE_ARP, arp(1, asking, 0, asked.address))
    assert sent(rig, 0, question) == [leaves(1, question), leaves(2, question)]
    answer = ethernet(asking.mac, asked.mac, ETHERTYPE_ARP, arp(2, asked, asking.mac, asking.address))
    assert sent(rig, 2, answer) == [leaves(0, answer)]


@pytest.mark.parametrize("seed", range(8))
def test_a_ping_of_the_switch_is_answered(rig: Rig, seed: int) -> None:
    """Its checksum is corrected, not computed: with and without a carry."""
    host, network = rig.network.hosts[0], rig.network
    data = bytes((seed << 5 | i) * 7 % 256 for i in range(40 + seed))
    question = ethernet(network.mac, host.mac, ETHERTYPE_IPV4, echo(host.address, network.address, data))
    answer = ethernet(host.mac, network.mac, ETHERTYPE_IPV4, echo(network.address, host.address, data, reply=True))
    assert sent(rig, 0, question) == [leaves(0, answer)]


@pytest.mark.parametrize("port", [9, 47101])
@pytest.mark.parametrize("size", [0, 8, 23, 24, 55, 56, 57, 88, 120, 152, 153, 1400])
def test_datagrams_from_host_to_host_are_forwarded_as_they_are(rig: Rig, size: int, port: int) -> None:
    """Those of the sizes of contributions, too."""
    a, b = rig.network.hosts[:2]
    data = bytes(i * 5 % 256 for i in range(size))
    frame = ethernet(b.mac, a.mac, ETHERTYPE_IPV4, ipv4(a.address, b.address, UDP, udp(4, port, data, checksum=0xABCD)))
    assert sent(rig, 0, frame) == [leaves(1, frame)]
    unknown = ethernet(NOBODY, *(a.mac, ETHERTYPE_IPV4), frame[14:])
    assert sent(rig, 0, unknown) == [leaves(1, unknown), leaves(2, unknown)]


@pytest.mark.parametrize("frame_end", ["ping", "TCP", "IPv6", "VLAN", "fragment", "contribution"])
def test_other_frames_from_host_to_host_are_forwarded_as_they_are(rig: Rig, frame_end: str) -> None:
    a, b = rig.network.hosts[:2]
    contribution = simple_contribution(make_binding(lanes=96), 0, 0)
    packets = {
        "ping": (ETHERTYPE_IPV4, echo(a.address, b.address, bytes(40))),
        "TCP": (ETHERTYPE_IPV4, ipv4(a.address, b.address, 6, bytes(20), number=77)),
        "IPv6": (0x86DD, bytes(range(80))),
        "VLAN": (0x8100, bytes(range(80))),
        "fragment": (ETHERTYPE_IPV4, ipv4(a.address, b.address, UDP, bytes(80), flags=0x2000)),
        "contribution": (ETHERTYPE_IPV4, ipv4(a.address, b.address, UDP, udp(5000, 47101, contribution))),
    }
    frame = ethernet(b.mac, a.mac, *packets[frame_end])
    assert sent(rig, 0, frame) == [leaves(1, frame)]
    check_counters(rig)  # none is ours


@pytest.mark.parametrize("frame_end", ["IPv6", "another UDP port", "TCP", "VLAN", "IPv4 options", "ping answered"])
def test_what_is_for_the_switch_and_nothing_that_it_answers_is_dropped_and_counted(frame_end: str) -> None:
    rig = tofino_rig(HOSTS, 128)
    host, network = rig.network.hosts[0], rig.network
    ends = host.address, network.address
    contribution = ipv4(*ends, UDP, udp(5000, 47101, simple_contribution(make_binding(), 0, 0)))
    packets = {
        "IPv6": (0x86DD, bytes(range(80))),
        "another UDP port": (ETHERTYPE_IPV4, ipv4(*ends, UDP, udp(5000, 53, bytes(56)))),
        "TCP": (ETHERTYPE_IPV4, ipv4(*ends, 6, bytes(20))),
        "VLAN": (0x8100, bytes((0, 5)) + ETHERTYPE_IPV4.to_bytes(2) + contribution),
        "IPv4 options": (ETHERTYPE_IPV4, b"\x46" + contribution[1:20] + bytes(4) + contribution[20:]),
        "ping answered": (ETHERTYPE_IPV4, echo(*ends, bytes(40), reply=True)),
    }
    assert sent(rig, 0, ethernet(network.mac, host.mac, *packets[frame_end])) == []
    assert rig.driver.counters(0).link_drops == {"not_ours": 1}
    check_counters(rig)


def test_fragments_and_wrong_checksums_are_dropped_and_counted() -> None:
    rig = tofino_rig(HOSTS, 128)
    host, network = rig.network.hosts[0], rig.network
    contribution = simple_contribution(make_binding(lanes=64, children=WORKERS), 0, 0)
    whole = to_switch(network, host, WORKERS[0], contribution)
    for flags in (0x2000, 0x0001, 0x20B9):
        packet = ipv4(host.address, network.address, UDP, whole[34:], flags=flags)
        assert sent(rig, 0, ethernet(network.mac, host.mac, ETHERTYPE_IPV4, packet)) == []
    wrong = bytearray(whole)
    wrong[22] -= 1  # time to live
    assert sent(rig, 0, bytes(wrong)) == []
    assert rig.driver.counters(0).link_drops == {"fragment": 3, "ip_checksum": 1}
    check_counters(rig)


def test_what_looks_like_a_pass_from_a_host_is_a_frame_like_any_other(rig: Rig) -> None:
    """What one pass has put in front for the next is looked for behind loopback ports alone."""
    job = make_binding(9, lanes=128, base=16, children=WORKERS)
    rig.bind(job)
    chip = chip_of(rig)
    frame = to_switch(
        rig.network, rig.network.hosts[0], WORKERS[0], make_contribution(job, 0, np.full(128, 3, np.uint32))
    )
    passed = chip.receive(0, frame)
    assert [out.port in chip.loopback for out in passed] == [True]
    forged = passed[0].data
    assert forged[16:82] == frame[:66]
    words = {name: dict(cells) for name, cells in chip.registers.words.items()}
    # it goes where its first six bytes say, which are no host's address
    assert sent(rig, 1, forged) == [Frame(0, forged), Frame(2, forged)]
    assert words == chip.registers.words
    rig.unbind(job.job)


def test_a_result_has_the_header_of_the_reference_whatever_the_request_had() -> None:
    """Type of service, identification and time to live are the switch's own, and the checksums right."""
    for lanes in (32, 128):
        rig = tofino_rig(HOSTS, 128)
        job = make_binding(9, lanes=lanes, children=WORKERS[:1])
        rig.bind(job)
        host, network = rig.network.hosts[0], rig.network
        data = make_contribution(job, 0, np.full(lanes, 3, np.uint32))
        frame = to_switch(network, host, WORKERS[0], data)
        (expected,) = sent(rig, 0, frame)
        odd = ipv4(host.address, network.address, UDP, udp(5001, network.data_port, data, 0xBEEF), number=5, flags=0)
        assert sent(rig, 0, ethernet(network.mac, host.mac, ETHERTYPE_IPV4, odd)) == [expected]
        padded = sent(rig, 0, frame + b"padding")
        assert padded == [Frame(0, expected.data + b"padding")]
