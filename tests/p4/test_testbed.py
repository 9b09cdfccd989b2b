"""The target bmv2 of the testbed, as far as it goes without bmv2."""

from __future__ import annotations

import pytest

from inagg_switch.p4.builds import builds
from inagg_switch.p4.network import Host, Network
from inagg_testbed import bmv2
from inagg_testbed.topology import TopologyError, open_topology, start_target, target_entry
from inagg_testbed.topology.link import LinkSpec
from inagg_testbed.topology.opening import plan
from inagg_wire.formats import FORMATS

PLAN = plan("test", "mark", 2, LinkSpec.parse("none"), "ports")


def test_rank_k_is_on_port_k() -> None:
    hosts = (Host("10.77.0.1", 0x02000A4D0001, 0), Host("10.77.0.2", 0x02000A4D0002, 1))
    assert bmv2.network_of(PLAN) == Network("10.77.0.254", 0x02000A4D00FE, hosts)
    assert PLAN.switch.interfaces == ("w0", "w1")


def test_a_switch_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TopologyError, match="simple_switch_grpc is not on PATH"):
        bmv2.Bmv2Process(PLAN.switch, ["w0"], "127.0.0.1:9559")


def test_bmv2_needs_links_and_ports() -> None:
    assert target_entry("bmv2").wiring == "ports"
    with open_topology(2) as loopback, pytest.raises(TopologyError, match="needs a topology with a link"):
        start_target("bmv2", loopback)


@pytest.mark.parametrize("name", list(FORMATS))
def test_there_is_a_program_for_every_job_format(name: str) -> None:
    build = builds()[bmv2.program_for(name)]
    assert name in build.formats
    assert build.lanes == bmv2.LANES
