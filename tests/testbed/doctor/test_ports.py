"""`inagg doctor`: whether `inagg switch` would find its ports free, and whether it is a switch that has them."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.switch.service.certificates import Authority

from inagg.cli import COMMANDS, make_root, run
from inagg_testbed.doctor import command, ports
from inagg_testbed.doctor.finding import Finding, Verdict
from inagg_testbed.doctor.ports import check_ports
from inagg_testbed.switch_process import SwitchProcess

SECRET = "0per4tor"


def only(found: Iterator[Finding]) -> Finding:
    (finding,) = found
    return finding


def bound(kind: socket.SocketKind) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind)
    sock.bind(("127.0.0.1", 0))
    return sock


def bindable(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as sock:
            try:
                sock.bind(("", port))
            except OSError:
                return False
    return True


@pytest.fixture
def free() -> int:
    """A port, of TCP and of UDP, below those that Linux gives to whoever names none, as tests beside this one are."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return next(port for port in random.sample(range(1024, lowest), 100) if bindable(port))


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    """One that answers everybody."""
    with SwitchProcess() as switch:
        yield switch


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SwitchProcess, dict[str, str]]]:
    """A switch with TLS and a secret, and what a worker must know of it."""
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder, "authority")
    pair, secrets = authority.issue("switch"), folder / "secrets"
    secrets.write_text(SECRET)
    options = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key), "--secret-file", str(secrets))
    with SwitchProcess(*options, control="0.0.0.0:0", data="0.0.0.0:0") as switch:
        port = switch.control.rpartition(":")[2]
        known = {"INAGG_CA": str(authority.pair.certificate), "INAGG_SECRET": SECRET}
        yield switch, known | {"INAGG_SWITCH": f"localhost:{port}"}


def take(monkeypatch: pytest.MonkeyPatch, control: int | str, data: int | str) -> None:
    """These are the usual ports; of addresses, those of them."""
    for name, port in (("CONTROL_PORT", control), ("DATA_PORT", data)):
        monkeypatch.setattr(ports, name, int(str(port).rpartition(":")[2]))


def test_ports_that_nobody_has_are_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    take(monkeypatch, free, free)
    assert only(check_ports({})).verdict is Verdict.OK


def test_ports_that_another_program_has_are_found(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    with closing(bound(socket.SOCK_DGRAM)) as taken:
        port = taken.getsockname()[1]
        take(monkeypatch, free, port)
        found = only(check_ports({}))
    assert found.verdict is Verdict.WRONG
    assert f"UDP {port}" in found.found
    assert "TCP" not in found.found


def test_a_switch_that_nobody_has_named_is_found_at_the_usual_port(
    monkeypatch: pytest.MonkeyPatch, switch: SwitchProcess
) -> None:
    take(monkeypatch, switch.control, switch.data)
    assert only(check_ports({})).found == f"an inagg switch serves at {switch.control}"


def test_a_switch_with_tls_and_a_secret_is_no_other_program(
    monkeypatch: pytest.MonkeyPatch, guarded: tuple[SwitchProcess, dict[str, str]]
) -> None:
    switch, known = guarded
    take(monkeypatch, switch.control, switch.data)
    assert only(check_ports(known)) == Finding(
        "ports", Verdict.OK, f"an inagg switch serves at {known['INAGG_SWITCH']}"
    )


@pytest.mark.parametrize("missing", [["INAGG_SWITCH"], ["INAGG_SECRET"], ["INAGG_SWITCH", "INAGG_SECRET"]])
def test_a_switch_that_does_not_tell_its_ports_has_those_that_are_taken(
    monkeypatch: pytest.MonkeyPatch, guarded: tuple[SwitchProcess, dict[str, str]], missing: list[str]
) -> None:
    """It does not answer who does not know the secret, which goes to nobody but to those that INAGG_SWITCH names."""
    switch, known = guarded
    take(monkeypatch, switch.control, switch.data)
    assert only(check_ports({k: v for k, v in known.items() if k not in missing})).verdict is Verdict.OK


def test_who_cannot_know_whether_it_is_a_switch_says_so(
    monkeypatch: pytest.MonkeyPatch, guarded: tuple[SwitchProcess, dict[str, str]]
) -> None:
    """Without the authority that has signed its certificate."""
    switch, _ = guarded
    take(monkeypatch, switch.control, switch.data)
    found = only(check_ports({}))
    assert found.verdict is Verdict.NOTE
    assert "speaks TLS: it may be a switch" in found.found


def test_the_usual_data_port_may_be_that_of_a_switch_elsewhere(
    monkeypatch: pytest.MonkeyPatch, free: int, switch: SwitchProcess
) -> None:
    """As after `inagg switch --listen 127.0.0.1:48100`."""
    take(monkeypatch, free, switch.data)
    assert only(check_ports({"INAGG_SWITCH": switch.control})) == Finding(
        "ports", Verdict.OK, f"an inagg switch serves at {switch.control}"
    )
    assert "that INAGG_SWITCH does not name" in only(check_ports({})).found


def test_a_switch_is_not_blamed_for_the_port_that_another_program_has(
    monkeypatch: pytest.MonkeyPatch, switch: SwitchProcess
) -> None:
    with closing(bound(socket.SOCK_DGRAM)) as taken:
        take(monkeypatch, switch.control, taken.getsockname()[1])
        found = only(check_ports({"INAGG_SWITCH": switch.control}))
    assert found.verdict is Verdict.WRONG
    assert "TCP" not in found.found


def test_the_switch_of_the_command_line_is_asked_for_its_ports(
    monkeypatch: pytest.MonkeyPatch, free: int, switch: SwitchProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "CHECKS", [])
    monkeypatch.delenv("INAGG_SWITCH", raising=False)
    take(monkeypatch, free, switch.data)
    run(make_root(COMMANDS), ["doctor", "--json", "--switch", switch.control])
    found = {one["check"]: one["verdict"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["ports"] == "ok"
