"""`inagg doctor`: each thing that is wrong is found, and what to do about it is said; nothing else is."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import grpc
import numba
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from numba.core import caching
from tests.switch.service.certificates import Authority

from inagg.cli import COMMANDS, make_root, run
from inagg_link import first_start, kept_code
from inagg_link.udp import UdpLink
from inagg_proto import PROTOCOL, SERVICE
from inagg_proto.v1 import control_pb2 as pb
from inagg_proto.v1 import control_pb2_grpc
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlCallError, ControlClient
from inagg_testbed.doctor import command, kernel, network, software
from inagg_testbed.doctor.finding import Finding, Verdict
from inagg_testbed.switch_process import SwitchProcess


def only(found: Iterable[Finding]) -> Finding:
    (finding,) = found
    return finding


def doctor(*arguments: str) -> int:
    """Run it; the exit status."""
    return run(make_root(COMMANDS), ["doctor", *arguments])


def test_this_machine_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever it is like: every check ends, and what is bad has something to do about it."""
    status = doctor("--json")
    answer = json.loads(capsys.readouterr().out)
    assert status == answer["exit_code"]
    found = [Finding(**finding) for finding in answer["findings"]]
    assert answer["exit_code"] == any(finding.bad for finding in found)
    assert all(finding.do for finding in found if finding.bad)
    assert {"python", "inagg", "compiled code", "ports"} <= {finding.check for finding in found}


@pytest.mark.parametrize(
    ("found", "status"), [(Verdict.OK, 0), (Verdict.NOTE, 0), (Verdict.SLOW, 1), (Verdict.WRONG, 1)]
)
def test_the_exit_status_says_whether_something_is_to_be_done(
    found: Verdict, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "CHECKS", [lambda: [Finding("thing", found, "as it is", "mend it")]])
    monkeypatch.setattr(command, "CHECKS_OF_SWITCHES", [])
    assert doctor() == status
    assert doctor("--json") == status


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_switch_is_looked_at_that_is_named(
    by: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "CHECKS", [])
    monkeypatch.setattr(command, "CHECKS_OF_SWITCHES", [network.check_switches])
    monkeypatch.setenv("INAGG_SWITCH", "nowhere" if by == "variable" else "another:1")
    assert doctor("--json", *(["--switch", "nowhere"] if by == "option" else [])) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["check"] == "switch nowhere"


def test_a_command_can_be_copied_whole_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = "sudo " + "x" * 100
    monkeypatch.setattr(command, "CHECKS", [lambda: [Finding("thing", Verdict.SLOW, "y " * 60, long)]])
    doctor()
    lines = capsys.readouterr().out.splitlines()
    assert f"       -> {long}" in lines
    assert all(len(line) <= 80 for line in lines if long not in line)


def test_small_buffers_are_found_with_the_command_that_mends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "sysctl", lambda name: 212_992)
    found = list(kernel.check_buffers())
    assert [(f.check, f.verdict) for f in found] == [(name, Verdict.SLOW) for name in kernel.LIMITS]
    assert "net.core.rmem_max = 33554432" in found[0].do
    monkeypatch.setattr(kernel, "sysctl", lambda name: kernel.LIMITS[name])
    assert {f.verdict for f in kernel.check_buffers()} == {Verdict.OK}


@pytest.mark.parametrize(
    ("clients", "reserved", "verdict", "setting"),
    [
        ("32768\t60999", "", Verdict.NOTE, "= 47098-47164'"),
        ("32768\t60999", "8080,47100-47164", Verdict.NOTE, "= 8080,47100-47164,47098-47164'"),
        ("32768\t60999", "8080,47000-47200", Verdict.OK, ""),
        ("50000\t60999", "", Verdict.OK, ""),
    ],
)
def test_ports_of_a_switch_that_connections_may_get_are_worth_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clients: str, reserved: str, verdict: Verdict, setting: str
) -> None:
    for name, text in (("CLIENT_PORTS", clients), ("RESERVED_PORTS", reserved)):
        (tmp_path / name).write_text(f"{text}\n")
        monkeypatch.setattr(kernel, name, tmp_path / name)
    found = only(kernel.check_reserved_ports())
    assert found.verdict is verdict
    assert setting in found.do


def test_a_container_that_hides_the_ports_gets_no_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel, "RESERVED_PORTS", tmp_path / "none")
    assert not list(kernel.check_reserved_ports())


def test_a_kernel_without_offloads_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(kernel.check_offloads()).verdict is Verdict.OK
    monkeypatch.setattr("inagg_link.sockopt.enable", lambda *_: False)
    found = only(kernel.check_offloads())
    assert found.verdict is Verdict.SLOW
    assert "UDP_SEGMENT and UDP_GRO" in found.found


def test_a_loopback_that_loses_datagrams_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UdpLink, "send", lambda *_: None)
    monkeypatch.setattr(kernel, "PATIENCE_S", 0.01)
    assert only(kernel.check_offloads()).verdict is Verdict.WRONG


def test_a_switch_that_serves_is_reached() -> None:
    with SwitchProcess() as switch:
        found = list(network.check_switches({"INAGG_SWITCH": f"127.0.0.1:1, {switch.control}"}))
    dead, alive, way = found[:3]
    assert dead.verdict is Verdict.WRONG
    assert "inagg switch --listen 127.0.0.1:1" in dead.do
    assert (alive.check, alive.verdict) == (f"switch {switch.control}", Verdict.OK)
    assert way.verdict is Verdict.OK
    assert "by lo with address 127.0.0.1" in way.found


@contextmanager
def answering(control: control_pb2_grpc.ControlServicer | None) -> Iterator[str]:
    """The address of a gRPC service: of a switch with these calls, or of another. Both say that they are well."""
    server = grpc.server(ThreadPoolExecutor(2))
    well = health.HealthServicer()
    well.set("another.Service" if control is None else SERVICE, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(well, server)
    if control is not None:
        control_pb2_grpc.add_ControlServicer_to_server(control, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield address
    finally:
        server.stop(None)


class Oldest(control_pb2_grpc.ControlServicer):
    """Knows no call."""


class Older(control_pb2_grpc.ControlServicer):
    """Says that it has the protocol before this one."""

    protocol = PROTOCOL - 1

    def Stats(self, request: pb.StatsRequest, context: object) -> pb.StatsResponse:  # noqa: N802
        return pb.StatsResponse(driver="software")

    def DataPlanes(self, request: pb.DataPlanesRequest, context: object) -> pb.DataPlanesResponse:  # noqa: N802
        return pb.DataPlanesResponse(protocol=self.protocol)


class Newer(Older):
    """Says that it has the next protocol."""

    protocol = PROTOCOL + 1


@pytest.mark.parametrize(("kind", "age"), [(Oldest, "an older"), (Older, "an older"), (Newer, "a newer")])
def test_a_switch_of_another_version_is_to_be_replaced_and_not_to_be_started(
    kind: type[control_pb2_grpc.ControlServicer], age: str
) -> None:
    with answering(kind()) as address:
        found = only(network.check_switches({"INAGG_SWITCH": address}))
    assert found.verdict is Verdict.WRONG
    assert found.found.startswith(f"the switch at {address} ")
    assert f"has {age} inagg than this" in found.found
    assert "install the same on both" in found.do
    assert "inagg switch" not in found.do


def test_another_service_at_the_address_is_not_to_be_taken_for_a_switch() -> None:
    with answering(None) as address:
        found = only(network.check_switches({"INAGG_SWITCH": address}))
    assert found.verdict is Verdict.WRONG
    assert found.found == f"what listens at {address} is no inagg switch, but another gRPC service"
    assert found.do.startswith("export INAGG_SWITCH=HOST:PORT")


def test_who_does_not_know_the_secret_is_told_where_it_is_taken_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlClient, "healthy", refuse)
    found = only(network.check_switches({"INAGG_SWITCH": "127.0.0.1:1"}))
    assert (found.found, found.do) == ("no such secret", network.SEE_VARIABLES)


SAID = "cannot reach the switch at 127.0.0.1:1: is `inagg switch` running there, without TLS?"


@pytest.mark.parametrize(
    ("code", "text", "words", "tls"),
    [
        ("UNAVAILABLE", f"{SAID} (Connection refused)", "inagg switch --listen 127.0.0.1:1", False),
        ("UNAVAILABLE", f"{SAID} (Connection refused)", "inagg switch --listen 127.0.0.1:1", True),
        ("UNAVAILABLE", f"{SAID} (No route to host)", "inagg switch --listen 127.0.0.1:1", False),
        ("UNAVAILABLE", f"{SAID} (Socket closed)", "export INAGG_CA=FILE", False),
        ("UNAVAILABLE", f"{SAID} (Ssl handshake failed)", "see INAGG_CA", True),
        ("UNAVAILABLE", "switch 'rack3' does not reach its parent", "the switch above it", False),
        ("DEADLINE_EXCEEDED", "the switch did not answer in time", "if it hangs, stop it and start it again", False),
        ("UNAVAILABLE", f"{SAID} (timed out before receiving SETTINGS frame)", "if it hangs, stop it and start", False),
        ("INTERNAL", "the switch does not answer: shard 0 has not answered", "start it again: ranks go on", False),
        ("RESOURCE_EXHAUSTED", "too much", "look at the log of the switch", False),
    ],
)
def test_what_is_to_be_done_depends_on_how_the_switch_fails(
    code: str, text: str, words: str, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second switch is to be started only where nobody listens."""

    def fail(*_: object) -> NoReturn:
        raise ControlCallError(grpc.StatusCode[code], text)

    monkeypatch.setattr(ControlClient, "healthy", fail)
    monkeypatch.setattr(network, "access_of", lambda environ: Access(tls=tls))
    found = only(network.check_switches({"INAGG_SWITCH": "127.0.0.1:1"}))
    assert words in found.do
    assert ("inagg switch" in found.do) == ("inagg switch" in words)


def test_what_is_to_be_done_about_tls_depends_on_how_it_fails(tmp_path: Path) -> None:
    """And is not always to see to all that may be wrong."""
    authority = Authority(tmp_path, "authority")
    ca, own = str(authority.pair.certificate), authority.issue("own")
    late = authority.issue("late", begins=timedelta(days=-2), ends=timedelta(days=-1))
    shown = {"INAGG_CERTIFICATE": str(own.certificate), "INAGG_KEY": str(own.key)}

    def found(switch: SwitchProcess, **environ: str) -> Finding:
        return next(iter(network.check_switches({"INAGG_SWITCH": switch.control, **environ})))

    mutual = ("--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--client-ca", ca)
    with SwitchProcess(*mutual) as switch:
        assert found(switch).do.startswith("export INAGG_CA=FILE")
        assert found(switch, INAGG_CA=ca).do == "export INAGG_CERTIFICATE=FILE INAGG_KEY=FILE"
        assert found(switch, INAGG_CA=ca, **shown).verdict is Verdict.OK
        refused = found(switch, INAGG_CA=ca, INAGG_CERTIFICATE=str(late.certificate), INAGG_KEY=str(late.key))
        assert "it has expired, on" in refused.found
        broken = found(switch, INAGG_CA=str(own.key))
        assert broken.found.endswith("own.key holds a key, and no certificate")
    with SwitchProcess("--tls-cert", str(late.certificate), "--tls-key", str(late.key)) as switch:
        assert "certificate has expired" in found(switch, INAGG_CA=ca).found
        assert "kill -HUP" in found(switch, INAGG_CA=ca).do
    with SwitchProcess() as switch:
        assert "with --tls-cert and --tls-key" in found(switch, INAGG_CA=ca).do


def test_a_certificate_without_an_authority_is_wrong_and_the_variable_is_named() -> None:
    environ = {"INAGG_SWITCH": "127.0.0.1:1", "INAGG_CERTIFICATE": "a", "INAGG_KEY": "b"}
    finding = only(network.check_switches(environ))
    assert finding.verdict is Verdict.WRONG
    assert finding.do.startswith("export INAGG_CA=FILE")
    assert "--tls" not in finding.found + finding.do, "which a rank has not"


@pytest.mark.parametrize("patience_s", [0.2, network.PATIENCE_S])
def test_a_switch_that_is_stopped_is_not_to_be_started_beside_itself(
    patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of them gives up first, the call or the connection, decides what gRPC says."""
    monkeypatch.setattr(network, "PATIENCE_S", patience_s)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # and nobody accepts
        host, port = listening.getsockname()
        found = only(network.check_switches({"INAGG_SWITCH": f"{host}:{port}"}))
    assert "if it hangs, stop it and start it again" in found.do
    assert "inagg switch" not in found.do


def refuse(*_: object) -> NoReturn:
    raise ControlCallError(grpc.StatusCode.UNAUTHENTICATED, "no such secret")


@pytest.mark.parametrize(
    ("address", "words"),
    [("no.such.host.invalid:1", "has no address here"), ("host:port", "is no port"), ("host", "give host:port")],
)
def test_an_address_that_is_none_is_wrong(address: str, words: str) -> None:
    found = only(network.check_switches({"INAGG_SWITCH": address}))
    assert found.verdict is Verdict.WRONG
    assert words in found.found


def test_without_a_switch_none_is_looked_for() -> None:
    assert only(network.check_switches({})).verdict is Verdict.NOTE


def test_a_narrow_route_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "MTU_USUAL", 1 << 17)
    found = next(iter(network.check_way("127.0.0.1", 9)))
    assert found.verdict is Verdict.WRONG
    assert "mtu 131072" in found.do
    assert "--datagram-bytes 65507" in found.do, "the most that IPv4 has, without its header and that of UDP"


def test_a_narrow_route_of_ipv6_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "MTU_USUAL", 1 << 17)
    found = next(iter(network.check_way("::1", 9)))
    assert found.verdict is Verdict.WRONG
    assert "ip link set lo mtu 131072" in found.do
    assert "--datagram-bytes 65488" in found.do, "65536 bytes without the headers of IPv6 and UDP"


def test_the_way_is_that_to_the_data_not_to_the_control_service() -> None:
    with SwitchProcess(data="127.0.0.5:0") as switch:
        found = list(network.check_switches({"INAGG_SWITCH": switch.control}))
    assert "way to 127.0.0.5" in [finding.check for finding in found]


def test_a_route_is_measured_by_what_the_switch_sends() -> None:
    """Not by 1500 bytes, which a switch for other frames neither needs nor keeps to."""
    assert next(iter(network.check_way("127.0.0.1", 9, 65535 - 28))).verdict is Verdict.OK
    found = next(iter(network.check_way("127.0.0.1", 9, 65536 - 28)))
    assert (found.verdict, found.found[:37]) == (Verdict.WRONG, "MTU 65535, and full datagrams take 65")
    assert "mtu 65536" in found.do
    assert next(iter(network.check_way("::1", 9, 65536 - 47))).verdict is Verdict.WRONG


def test_the_datagrams_of_the_switch_that_is_asked_are_what_the_route_is_measured_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "MTU_USUAL", 1 << 17)
    with SwitchProcess() as switch:
        _, way, _ = network.check_switches({"INAGG_SWITCH": switch.control})
    assert way.verdict is Verdict.OK


def test_data_at_an_address_that_each_machine_has_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "is_loopback", lambda host: host == "127.0.0.5")
    with SwitchProcess(data="127.0.0.5:0") as switch:
        _, way = network.check_switches({"INAGG_SWITCH": switch.control})
    assert (way.check, way.verdict) == ("way to 127.0.0.5", Verdict.WRONG)
    assert "nothing of another machine comes to it" in way.found
    assert "--data 127.0.0.1:" in way.do


def test_torch_that_is_not_there_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = only(software.check_torch())
    assert (found.verdict, found.do) == (Verdict.NOTE, "pip install '.[torch]' (in inagg's clone)")
    assert {f.check for f in software.check_extras()} == set(software.WHAT_FOR)


def test_an_old_torch_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    monkeypatch.setattr(torch, "__version__", "2.6.0+cpu")
    assert next(iter(software.check_torch())).verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("missing", "verdict", "said", "do"),
    [
        ({}, Verdict.OK, "with the C compiler and Python.h that it needs (no kernel was compiled to see)", ""),
        ({"C compiler": "gcc"}, Verdict.SLOW, "but no C compiler, which it needs", "apt-get install gcc"),
    ],
)
def test_what_triton_needs_is_looked_for(
    missing: dict[str, str], verdict: Verdict, said: str, do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from inagg_host.torch.gpu import platform

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.6.0")
    monkeypatch.setattr(platform, "lacking", lambda: missing)
    found = list(software.check_torch())[-1]
    assert (found.check, found.verdict, found.do) == ("gpu", verdict, do)
    assert said in found.found


def test_of_rocm_it_is_said_where_tensors_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    monkeypatch.setattr(torch.version, "hip", "7.0.51831")
    found = list(software.check_torch())[-1]
    assert (found.check, found.verdict) == ("gpu", Verdict.NOTE)
    assert "the inner group sums tensors on GPUs" in found.found


def test_a_cache_that_does_not_last_is_slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unless all comes from the installed package."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "inagg-cache-1"))
    monkeypatch.setattr(kept_code, "usable", lambda: {tmp_path / "inagg-cache-1": 5})
    found = only(software.check_compiled())
    assert (found.verdict, "NUMBA_CACHE_DIR" in found.do) == (Verdict.SLOW, True)
    monkeypatch.setattr(kept_code, "usable", lambda: {Path("/site-packages"): 5})
    assert only(software.check_compiled()) == Finding(
        "compiled code", Verdict.OK, "5 functions are kept in /site-packages"
    )


def test_compiled_code_that_can_be_kept_nowhere_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/proc/asked")
    monkeypatch.setattr(kept_code, "usable", dict)
    found = only(software.check_compiled())
    assert (found.verdict, "NUMBA_CACHE_DIR" in found.do) == (Verdict.SLOW, True)
    assert "/proc/asked cannot be written: each start compiles" in found.found


def test_no_folder_for_temporary_files_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(software.check_temporary())
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc"])
    found = only(software.check_temporary())
    assert (found.verdict, "TMPDIR" in found.do) == (Verdict.WRONG, True)
    assert software.check_temporary in command.CHECKS


def test_compiled_code_that_nobody_would_load_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    folder = tmp_path / caching.InTreeCacheLocator.get_suitable_cache_subpath(first_start.__file__)  # type: ignore[no-untyped-call]
    folder.mkdir()
    (folder / f"first_start.find_cache-1.py3{sys.version_info[1]}.nbi").write_text("of other sources")
    found = only(software.check_compiled())
    assert (found.verdict, found.do) == (Verdict.NOTE, "inagg warmup")
    assert str(tmp_path) in found.found


def test_a_compiler_that_is_off_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    found = only(software.check_compiled())
    assert (found.verdict, found.do) == (Verdict.WRONG, "unset NUMBA_DISABLE_JIT")


def test_a_home_that_cannot_be_written_is_slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert only(software.check_kept()).verdict is Verdict.OK
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = only(software.check_kept())
    assert (found.verdict, "XDG_CACHE_HOME" in found.do) == (Verdict.SLOW, True)


def test_a_misspelt_variable_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INAGG_SEEED", "3")
    found = only(software.check_variables())
    assert "did you mean INAGG_SEED?" in found.found


def test_few_descriptors_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 256))
    assert only(kernel.check_descriptors()).verdict is Verdict.WRONG


def test_a_busy_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0, 1.0, 1.0))
    assert only(kernel.check_processors()).verdict is Verdict.NOTE
