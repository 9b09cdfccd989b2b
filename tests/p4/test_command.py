"""`inagg switch --target bmv2` and `tofino`, as their users start it, against servers in this process."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.switch.e2e.running import Switch, inagg, until
from tests.switch.service.serving import Call, job_spec, join_request

from inagg.cli import COMMANDS, make_root, run
from inagg_proto.v1 import control_pb2 as pb
from inagg_switch.p4.builds import build
from inagg_switch.p4.network import network_toml
from inagg_wire.layout import Encoding

from .bfruntime_server import BIND, BfRuntimeServer
from .p4runtime_server import P4RuntimeServer
from .rig import make_network

PROGRAM = build("nat8-32")


@pytest.fixture
def server() -> Iterator[P4RuntimeServer]:
    with P4RuntimeServer(PROGRAM) as running:
        yield running


@pytest.fixture
def network(tmp_path: Path) -> Path:
    file = tmp_path / "network.toml"
    file.write_text(network_toml(make_network(["10.77.0.1", "10.77.0.2"])))
    return file


def options(server: P4RuntimeServer, network: Path) -> list[str]:
    return ["--target", "bmv2", "--p4runtime", server.target, "--program", "nat8-32", "--network", str(network)]


def test_a_bmv2_switch_is_given_its_program_and_announced(
    server: P4RuntimeServer, network: Path, tmp_path: Path
) -> None:
    with Switch(tmp_path / "switch", *options(server, network), "--log-format", "human") as switch:
        ready = json.loads(switch.ready_file.read_text())
        assert ready["target"] == "bmv2"
        assert ready["shards"] == [{"host": "10.77.0.254", "port": 47101}]
        assert (ready["program"], ready["lanes"], ready["slots"]) == ("nat8-32", 32, 1024)
        said = switch.out_file.read_text()
        assert "data on UDP 10.77.0.254:47101" in said
        assert "10.77.0.1 on port 0, 10.77.0.2 on port 1" in said
        assert server.switch is not None
        assert sorted(server.switch.groups) == [1]
        assert "no jobs" in inagg("jobs", "--switch", ready["control"]).stdout.lower()
        switch.process.send_signal(signal.SIGTERM)
        assert switch.process.wait(20) == 0


def test_a_bmv2_switch_is_a_leaf_of_a_tree_of_which_the_root_is_the_software_switch(tmp_path: Path) -> None:
    """Its workers join at it, and it is told what to send where; which it does is `test_trees`."""
    program = build("nat8-32-leaf")
    with (
        Switch(tmp_path / "root", "--slots", str(program.slots)) as root,
        P4RuntimeServer(program) as server,
    ):
        parent = root.ready["shards"][0]["port"]
        hosts = make_network(["10.77.0.1", "10.77.0.2", "127.0.0.1"])
        file = tmp_path / "network.toml"
        file.write_text(network_toml(hosts))
        words = ["--target", "bmv2", "--p4runtime", server.target, "--program", program.name, "--network", str(file)]
        below = ["--parent", root.address, "--name", "rack0"]
        with Switch(tmp_path / "leaf", *words, *below) as leaf, leaf.client() as client:
            spec = job_spec("train", lanes=32, window=0)
            spec.ClearField("window")
            addresses = [[pb.Address(host=f"10.77.0.{rank + 1}", port=5000)] for rank in range(2)]
            joins = [Call(partial(client.join, join_request(k, spec, addresses=addresses[k]))) for k in range(2)]
            epochs = [call.result() for call in joins]
            assert {e.shards[0].lease.address.host for e in epochs} == {"10.77.0.254"}
            assert epochs[0].spec.window == 16  # what a bmv2 takes at once, though the root takes more
            assert server.switch is not None
            ((key, row),) = server.switch.tables["uplink"].by_value.items()
            assert (key, row.action.name) == ((0,), "set_uplink")
            data = dict(zip(row.action.parameters, row.data, strict=True))
            assert (data["udp"], data["port"], data["partial_format"]) == (parent, 2, int(Encoding.FIX32))
        until(lambda: "rack0" in "".join(e["name"] for e in root.events("switch_lost")), 20)


@pytest.mark.parametrize(
    ("program", "below", "why"),
    [
        ("nat8-32", ["--parent", "127.0.0.1:9"], "--parent needs a program for a leaf of a tree"),
        ("nat8-32-leaf", [], "say with --parent what is above it"),
    ],
)
def test_a_program_and_its_place_in_a_tree_fit(network: Path, program: str, below: list[str], why: str) -> None:
    done = inagg("switch", "--target", "bmv2", "--program", program, "--network", str(network), *below)
    assert done.returncode == 2
    assert why in " ".join(done.stderr.split())


def test_a_bmv2_switch_that_goes_away_ends_the_command(server: P4RuntimeServer, network: Path, tmp_path: Path) -> None:
    with Switch(tmp_path / "switch", *options(server, network)) as switch:
        server.close()
        assert switch.process.wait(20) == 1
        assert "serves no more" in switch.events("switch_lost")[0]["what"]
        assert not switch.events("shard_died"), "it is not ours to start again"


def test_a_tofino_is_driven_over_bf_runtime_and_said_to_be_untried(network: Path, tmp_path: Path) -> None:
    words = ["--target", "tofino", "--network", str(network), "--log-format", "human"]
    with (
        BfRuntimeServer() as server,
        Switch(tmp_path / "switch", *words, "--bfrt", server.target) as switch,
        switch.client() as client,
    ):
        assert (switch.ready["target"], switch.ready["formats"]) == ("tofino", ["nat8"])
        lanes = switch.ready["lanes"]
        said = switch.out_file.read_text()
        assert f"on the tofino switch on {server.target}, driven by BF Runtime (never tried on hardware)" in said
        assert "never been tried on a Tofino" in switch.log_file.read_text()
        spec = job_spec("train", lanes=lanes)
        addresses = [[pb.Address(host=f"10.77.0.{rank + 1}", port=5000)] for rank in range(2)]
        joins = [Call(partial(client.join, join_request(k, spec, addresses=addresses[k]))) for k in range(2)]
        tokens = {call.result().token for call in joins}
        bound = [entry for entry in server.entries("binding") if entry.data.action_id == BIND]
        assert len(bound) == 2 * 2  # a rank and an op
        assert {int.from_bytes(entry.key.fields[4].ternary.value, "big") for entry in bound} == tokens
        server.counts["outcomes", 5] = (7, 7 * (42 + 24 + lanes))
        server.counts["answers", 2] = (7, 7 * (42 + 24 + lanes))  # to all
        (job,) = json.loads(switch.command("top", "--once", "--json", "--interval", "0.1").stdout)["jobs"]
        assert (job["results"], [worker["contributions"] for worker in job["workers"]]) == (7, [7, 0])
        assert "is not known" in switch.command("why", "train").stdout
        for _ in range(2):  # the second one stops a switch that has jobs
            switch.signal(signal.SIGTERM)
            time.sleep(0.2)
        assert switch.process.wait(20) == 0
        assert server.entries("binding") == []


def test_a_tofino_that_runs_another_program_is_told_with_its_name(network: Path) -> None:
    with BfRuntimeServer("tna_counter") as server:
        done = inagg("switch", "--target", "tofino", "--bfrt", server.target, "--network", str(network))
    assert done.returncode == 1
    assert "runs no program 'inagg' (it runs: tna_counter)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--target", "bmv2", "--network", "NETWORK"], "needs --program, to know which program to load"),
        (["--target", "bmv2", "--program", "nat8-32"], "needs --network, to know what is plugged in where"),
        (
            ["--target", "bmv2", "--program", "nat9", "--network", "NETWORK"],
            "there is no program 'nat9'; choose one of",
        ),
        (["--target", "bmv2", "--shards", "2"], "--shards says nothing to --target bmv2"),
        (["--target", "bmv2", "--record", "x.pcap"], "--record says nothing to --target bmv2"),
        (["--target", "bmv2", "--bfrt", "127.0.0.1:1"], "--bfrt says nothing to --target bmv2"),
        (["--p4runtime", "127.0.0.1:1"], "--p4runtime says nothing to --target software"),
        (["--target", "tofino"], "--target tofino needs --network, to know what is plugged in where"),
        (["--target", "tofino", "--thrift", "127.0.0.1:1"], "--thrift says nothing to --target tofino"),
        (["--target", "tofino", "--bfrt", "127.0.0.1:x", "--network", "NETWORK"], "'x' is no port"),
    ],
)
def test_options_that_cannot_be_are_wrong_usage(
    network: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(network) if word == "NETWORK" else word for word in arguments]
    assert run(make_root(COMMANDS), ["switch", *words]) == 2
    assert says in re.sub(r"\s+", " ", capsys.readouterr().err)
