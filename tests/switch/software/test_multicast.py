"""Results that go to a group: when a switch may send to one, and that it sends each of them once, and nothing else."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from tests.link.loopback import carries_groups6
from tests.switch.aggregation.pair import Pair, feed
from tests.switch.aggregation.world import block_of, make_binding, simple_contribution
from tests.switch.software.looping import LANES, Rig, needs_port

from inagg_link.base import Counters
from inagg_link.faults import Faults
from inagg_link.groups import Group, GroupLink
from inagg_link.udp import UdpLink
from inagg_switch.binding import Binding, Place, Uplink
from inagg_switch.driver import DriverError
from inagg_switch.multicast_groups import LOCAL, group_of, parse_prefix
from inagg_switch.software import multicast
from inagg_switch.software.config import SoftwareConfig
from inagg_switch.software.multicast import open_groups
from inagg_switch.software.recording import binding_fields, binding_from, decode_note, encode_note
from inagg_switch.software.shard import LinkStack
from inagg_wire.noise_keys import BlockKey

GROUP = ("239.255.0.1", 5000)

# --- prefixes and groups ---


@pytest.mark.parametrize("text", ["239.192.0.0/16", "224.1.0.0/16", "239.192.0.0/255.255.0.0"])
def test_a_multicast_prefix_of_16_bits_is_taken(text: str) -> None:
    assert parse_prefix(text) == f"{text.partition('/')[0]}/16"


@pytest.mark.parametrize("text", ["ff15::8000:0/112", "ff12:0:0:0:0:0:8000:0/112", "ff3e:40:2001:db8::8000:0/112"])
def test_a_transient_multicast_prefix_of_112_bits_is_taken(text: str) -> None:
    assert parse_prefix(text) == str(ipaddress.ip_network(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("on", "'on' is neither 'auto' nor 'off' nor a prefix"),
        ("239.192.1.0/16", "has host bits set"),
        ("ff15::1/112", "has host bits set"),
        ("ff15::/16", "no multicast prefix of 112 bits, which leaves 16 .*: give one such as ff15::8000:0/112"),
        ("fd00::8000:0/112", "no multicast prefix of 112 bits"),
        ("ff02::/112", "has groups of other protocols, such as ff02::1"),
        ("ff11::8000:0/112", "scope that ends at this machine, or none at all"),
        ("ff1f::8000:0/112", "scope that ends at this machine, or none at all"),
        ("239.192.0.0/24", "no multicast prefix of 16 bits"),
        ("239.192.0.0", "no multicast prefix of 16 bits"),
        ("10.1.0.0/16", "no multicast prefix of 16 bits"),
        ("224.0.0.0/16", "has groups of other protocols"),
    ],
)
def test_what_is_no_such_prefix_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_prefix(text)


@pytest.mark.parametrize(
    ("prefix", "job", "host"),
    [
        ("239.192.0.0/16", 1, "239.192.0.1"),
        ("239.192.0.0/16", 0x1234, "239.192.18.52"),
        ("239.192.0.0/16", 0xFFFF, "239.192.255.255"),
        ("ff15::8000:0/112", 0x1234, "ff15::8000:1234"),
    ],
)
def test_each_job_has_a_group_of_its_own(prefix: str, job: int, host: str) -> None:
    assert group_of(prefix, job, 47101) == (host, 47101)


# --- whether a switch sends to groups ---


def opened(asked: str, host: str = "127.0.0.1") -> str | None:
    with UdpLink((host, 0)) as link:
        return open_groups(link, asked)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9"])
def test_it_does_on_loopback_unless_told_otherwise(host: str) -> None:
    assert opened("auto", host) == LOCAL[4]
    assert opened("off", host) is None
    assert opened("239.192.0.0/16", host) == "239.192.0.0/16"


@pytest.mark.parametrize(("asked", "hops"), [("auto", 1), ("239.192.0.0/16", 32)])
def test_results_pass_routers_only_where_groups_were_asked_for(asked: str, hops: int) -> None:
    with UdpLink() as link:
        assert open_groups(link, asked) is not None
        assert link._socket.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == hops


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_it_does_not_elsewhere_unless_asked_for(host: str) -> None:
    assert opened("auto", host) is None


def test_it_does_on_the_loopback_of_ipv6_where_that_has_a_route_for_groups() -> None:
    assert opened("auto", "::1") == (LOCAL[6] if carries_groups6() else None)


def test_where_there_is_no_route_it_neither_waits_nor_counts_it_as_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UdpLink, "send", lambda link, batch: 0)
    monkeypatch.setattr(GroupLink, "receive", lambda link, timeout_s: pytest.fail("it waits"))
    with UdpLink() as link:
        assert open_groups(link, "auto") is None
        assert link.counters == Counters(kernel_drops=link.counters.kernel_drops)


def test_it_does_not_where_nothing_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multicast, "heard", lambda link, prefix: False)
    assert opened("auto") is None
    with pytest.raises(DriverError, match=r"cannot multicast by 127.0.0.1: nothing comes back from .*--multicast off"):
        opened("239.192.0.0/16")


def test_it_does_not_where_the_kernel_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(link: UdpLink, hops: int) -> None:
        raise OSError("simulated")

    monkeypatch.setattr(UdpLink, "send_to_groups", refuse)
    assert opened("auto") is None
    with pytest.raises(DriverError, match="simulated"):
        opened("239.192.0.0/16")


def test_what_comes_back_too_late_has_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multicast, "TEST_S", 0.05)
    with UdpLink() as link:
        link.send_to_groups(1)
        assert multicast.heard(link, LOCAL[4])
        monkeypatch.setattr(link, "send", lambda batch: 0)
        assert not multicast.heard(link, LOCAL[4])


def test_a_switch_that_injects_faults_sends_to_each_rank() -> None:
    for faults, groups in ((None, LOCAL[4]), (Faults(drop=0.1), None)):
        wires = LinkStack(SoftwareConfig(slots=4, faults=faults), 0)
        assert wires.started().groups == groups
        wires.link.close()


def test_the_test_is_not_counted_as_traffic_of_the_switch() -> None:
    wires = LinkStack(SoftwareConfig(slots=4), 0)
    with wires.link as link:
        assert link.receive(0.05) == []
        assert link.counters.datagrams_in == 0


# --- what is sent where ---


def test_a_result_for_all_goes_to_the_group_and_all_else_to_one_rank() -> None:
    pair = Pair()
    binding = replace(make_binding(n=3), group=GROUP)
    pair.bind(binding)
    contributions = block_of(binding, 0)
    sent = [feed(pair.aggregator, [data], source) for data, source in zip(contributions, binding.children, strict=True)]
    assert [[output.to for output in outputs] for outputs in sent] == [[], [], [(GROUP,)]]
    again = feed(pair.aggregator, [contributions[1]], binding.children[1])
    assert [(output.to, output.data) for output in again] == [((binding.children[1],), sent[2][0].data)]
    wrong = feed(pair.aggregator, [simple_contribution(binding, 0, 1, token=5)], binding.children[0])
    assert [output.to for output in wrong] == [(binding.children[0],)]
    counters = pair.aggregator.counters()
    assert counters.datagrams_out == 3
    assert counters.bytes_out == sum(len(output.data) for output in (sent[2][0], again[0], wrong[0]))


def test_the_model_sends_the_same_to_the_same() -> None:
    pair = Pair()
    binding = replace(make_binding(n=2), group=GROUP)
    pair.bind(binding)
    for rank, data in enumerate(block_of(binding, 0)):
        fast = feed(pair.aggregator, [data], binding.children[rank])
        assert fast == pair.model.receive(data, binding.children[rank])
    assert pair.aggregator.counters() == pair.model.counters


@needs_port
def test_the_loop_sends_each_result_once_and_repairs_to_one_rank() -> None:
    with ExitStack() as stack:
        rig = Rig(stack)
        assert isinstance(rig.link, UdpLink)
        rig.link.send_to_groups(1)
        group = ("239.255.0.1", rig.link.address[1])
        listeners = [stack.enter_context(GroupLink(UdpLink())) for _ in range(2)]
        for link in listeners:
            link.listen([Group(group, rig.link.address)])
        grouped = replace(make_binding(1, "nat8", 2, slots=8, lanes=LANES, children=rig.addresses(0, 1)), group=group)
        alone = make_binding(2, "nat8", 2, base=8, slots=8, lanes=LANES, children=rig.addresses(0, 1))
        rig.bind(grouped)
        rig.bind(alone)
        expected = []
        for binding in (grouped, alone):
            for rank in (0, 1, 0):  # the last repeats what it has sent: its result again, please
                datagrams = [simple_contribution(binding, rank, block) for block in range(3)]
                rig.send(datagrams, binding.children[rank])
                expected += rig.expect(datagrams, binding.children[rank])
        rig.serve()
        for link in listeners:
            heard = [row.tobytes() for batch in link.receive(1.0) for row in batch.datagrams]
            assert heard == [data for data, to in expected if to == group]
            assert len(heard) == 3
        for worker in range(2):
            assert rig.heard(worker) == [data for data, to in expected if to == rig.workers[worker].address]
        assert rig.aggregator.counters() == rig.model.counters
        assert rig.aggregator.counters().datagrams_out == 3 + 3 + 2 * 3 + 3


@needs_port
def test_a_new_epoch_without_a_group_goes_to_each_rank_again() -> None:
    with ExitStack() as stack:
        rig = Rig(stack)
        assert isinstance(rig.link, UdpLink)
        rig.link.send_to_groups(1)
        group = ("239.255.0.1", rig.link.address[1])
        binding = make_binding(1, "nat8", 2, slots=8, lanes=LANES, children=rig.addresses(0, 1))
        for turn, bound in enumerate((replace(binding, group=group), replace(binding, token=6))):
            rig.bind(bound)
            sent = [([data], bound.children[rank]) for rank, data in enumerate(block_of(bound, 0))]
            rig.exchange(sent)
            assert rig.aggregator.counters().datagrams_out == (1, 1 + 2)[turn]


def test_a_group_that_the_kernel_refuses_is_counted_as_not_sent() -> None:
    with ExitStack() as stack:
        rig = Rig(stack)
        binding = make_binding(1, "nat8", 1, slots=8, lanes=LANES, children=rig.addresses(0))
        rig.bind(replace(binding, group=("255.255.255.255", 9)))  # broadcasts need a permission
        rig.send([simple_contribution(binding, 0, block) for block in range(3)], binding.children[0])
        rig.serve()
        assert rig.pump.unsent == 3
        assert set(rig.link.counters.errors) == {"EACCES"}


# --- recordings ---


def written_and_read(binding: Binding) -> Binding:
    return binding_from(decode_note(encode_note(binding_fields(binding))))


@pytest.mark.parametrize("group", [None, GROUP])
def test_a_recording_has_the_group_of_a_job(group: tuple[str, int] | None) -> None:
    binding: Binding = replace(make_binding(n=2), group=group)
    assert written_and_read(binding) == binding


def test_a_recording_has_the_place_of_a_switch_in_a_tree() -> None:
    leaf = replace(make_binding(), place=Place(64, uplink=Uplink(("10.0.0.9", 47101), 32, 4, BlockKey(5, 0xFFFFFFFF))))
    assert written_and_read(leaf) == leaf
    root = replace(make_binding(), place=Place(64, True, 4, child_of=(0, -1, 1)))
    assert written_and_read(root) == root


@pytest.mark.parametrize(
    "wrong", [{"format": "none"}, {"job": "1"}, {"lease": {"base": 1, "slots": 8}}, {"seed": None}]
)
def test_a_recording_of_a_job_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no format|Expected|lease of 8 slots at 1"):
        binding_from({**binding_fields(make_binding()), **wrong})
