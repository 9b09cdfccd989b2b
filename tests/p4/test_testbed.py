"""The target bmv2 of the testbed, as far as it goes without bmv2."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from inagg_switch.p4.builds import builds
from inagg_switch.p4.network import Host, Network
from inagg_testbed import bmv2
from inagg_testbed.bench.allreduce_command import allreduce
from inagg_testbed.bench.bmv2 import bmv2 as bench_bmv2
from inagg_testbed.testbed import cli
from inagg_testbed.testbed.options import Setup
from inagg_testbed.topology import TopologyError, namespaces, open_topology, start_target, target_entry
from inagg_testbed.topology.link import LinkSpec
from inagg_testbed.topology.opening import plan

from .golden import P4_FORMATS

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


@pytest.mark.parametrize("option", ["--loss", "--duplicate", "--reorder", "--corrupt", "--record"])
def test_a_bmv2_switch_neither_harms_nor_records_datagrams(option: str) -> None:
    done = CliRunner().invoke(cli.testbed, ["--target", "bmv2", option, "0.5", "--", "true"])
    assert done.exit_code == 2
    assert f"{option} is not for --target bmv2" in done.output


def test_without_root_the_software_switch_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(instead: str = "leave --link out") -> None:
        raise TopologyError(f"or {instead}")

    monkeypatch.setattr(namespaces, "require_root", refuse)
    for words in (["--target", "bmv2", "--", "true"], ["up", "--target", "bmv2"]):
        done = CliRunner().invoke(cli.testbed, words)
        assert done.exit_code == 1
        assert "or take the software switch, which needs none" in done.output


def test_without_root_a_bench_of_bmv2_offers_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no --target."""

    def refuse(instead: str = "leave --link out") -> None:
        raise TopologyError(f"or {instead}")

    monkeypatch.setattr(namespaces, "require_root", refuse)
    done = CliRunner().invoke(bench_bmv2, [])
    assert done.exit_code == 1
    assert "or measure the software switch, which needs none: inagg bench allreduce" in done.output
    assert "--target" not in done.output


def test_the_format_of_a_testbed_chooses_the_program_and_tells_the_scripts() -> None:
    setup = Setup.of(2, None, "bmv2", None, None, "dith8-exact")
    assert setup.switch_options() == ["--program", "dith8-128"]
    assert setup.rank_environment() == {"INAGG_FORMAT": "dith8-exact"}
    assert Setup.from_json(setup.as_json()) == setup


def test_a_bench_has_no_shards_on_bmv2() -> None:
    done = CliRunner().invoke(allreduce, ["--target", "bmv2", "--shards", "2"])
    assert done.exit_code == 2
    assert "--shards is not for --target bmv2" in done.output


@pytest.mark.parametrize("name", P4_FORMATS)
def test_there_is_a_program_for_every_job_format(name: str) -> None:
    build = builds()[bmv2.program_for(name)]
    assert name in build.formats
    assert build.lanes == bmv2.LANES
