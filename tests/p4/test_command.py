"""`inagg switch --target bmv2`, as its users start it, against a P4Runtime server in this process."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.switch.e2e.running import Switch, inagg

from inagg_switch.p4.builds import build
from inagg_switch.p4.network import network_toml
from inagg_testbed.cli import COMMANDS, make_root, run

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
        assert "INAGG_LANES=32, INAGG_WINDOW=16" in said
        assert server.switch is not None
        assert sorted(server.switch.groups) == [1]
        assert "no jobs" in inagg("jobs", "--switch", ready["control"]).stdout.lower()
        switch.process.send_signal(signal.SIGTERM)
        assert switch.process.wait(20) == 0


def test_a_bmv2_switch_that_goes_away_ends_the_command(server: P4RuntimeServer, network: Path, tmp_path: Path) -> None:
    with Switch(tmp_path / "switch", *options(server, network)) as switch:
        server.close()
        assert switch.process.wait(20) == 1
        assert "serves no more" in switch.log_file.read_text()


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
        (["--p4runtime", "127.0.0.1:1"], "--p4runtime says nothing to --target software"),
    ],
)
def test_options_that_cannot_be_are_wrong_usage(
    network: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(network) if word == "NETWORK" else word for word in arguments]
    assert run(make_root(COMMANDS), ["switch", *words]) == 2
    assert says in re.sub(r"\s+", " ", capsys.readouterr().err)
