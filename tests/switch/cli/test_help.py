"""The help of the commands: quick, 80 columns wide, with examples and exit status."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from inagg.cli import COMMANDS, make_root, run
from inagg_switch.cli.commands import switch
from inagg_switch.cli.settings import policy_options
from inagg_switch.cli.software_settings import usual_datagram_bytes, usual_slots
from inagg_switch.control.policy import Policy
from inagg_switch.defaults import DRAIN_S
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500

NAMES = ("switch", "jobs", "top", "why")


def help_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(make_root(COMMANDS), [name, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_80_columns_and_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(name, capsys)
    assert max(map(len, text.splitlines())) <= 80
    assert "Examples:" in text
    assert f"  inagg {name}" in text


@pytest.mark.parametrize("name", ["switch", "top", "why"])
def test_help_tells_the_exit_status(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "exit status" in help_of(name, capsys).lower()


@pytest.mark.parametrize("name", ["top", "why"])
def test_help_tells_what_ctrl_c_ends_with(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "also when Ctrl-C ends it" in " ".join(help_of(name, capsys).split())


@pytest.mark.parametrize("name", [*NAMES, "evict", "drain"])
def test_help_has_no_fragments_that_need_the_option_above(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(help_of(name, capsys).split())
    assert not re.search(r" (?:FILE|N|NAME|P|RATE) (?:Of|Its|It|In)\b", text)


@pytest.mark.parametrize("name", NAMES)
def test_the_root_has_a_line_for_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(make_root(COMMANDS), ["--help"]) == 0
    assert COMMANDS[name].help in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from inagg.cli import COMMANDS, make_root, run;"
        f"[run(make_root(COMMANDS), [name, '--help']) for name in {NAMES}];"
        "heavy = {'numpy', 'numba', 'grpc', 'torch', 'scapy', 'rich', 'prometheus_client', 'structlog'};"
        "print('imported:', sorted(heavy & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.endswith("imported: []\n")


def test_asking_a_switch_imports_no_arrays_or_compiler() -> None:
    script = (
        "import sys; from inagg.cli import COMMANDS, make_root, run;"
        "run(make_root(COMMANDS), ['jobs', '--switch', '127.0.0.1:1']);"
        "print('imported:', sorted({'numpy', 'numba', 'torch', 'scapy'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "imported: []\n"


def test_the_defaults_that_help_tells_are_those_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(help_of("switch", capsys).split())
    assert f"[default: {UDP_PAYLOAD_BYTES_1500}; {usual_datagram_bytes('127.0.0.1')} on loopback]" in text
    assert f"larger, {usual_slots(usual_datagram_bytes('127.0.0.1'))} on loopback]" in text
    defaults: dict[str, float | None] = {"drain": DRAIN_S, "shard_restarts": 5}
    policy = Policy()
    for field, option in policy_options({str(parameter.name): None for parameter in switch.params}).items():
        defaults[option] = getattr(policy, field)
    assert len(defaults) == 13
    for option, default in defaults.items():
        words = text.partition(f"--{option.replace('_', '-')} ")[2].partition(" --")[0]
        assert ("[default: a" if default is None else f"[default: {default:g}]") in words
