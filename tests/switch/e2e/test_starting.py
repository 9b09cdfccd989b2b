"""How a switch starts, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.utils import rdpcap
from tests.switch.e2e.running import INAGG, Run, Switch, environment, gradients, inagg, until
from tests.switch.service.certificates import Authority

from inagg_switch.addresses import split_address
from inagg_switch.service.access import Access
from inagg_switch.service.control_client import ControlClient
from inagg_switch.service.http_server import Listener
from inagg_wire.dissect.scapy_layer import Inagg, bind, unbind
from inagg_wire.layout import CONTROL_PORT, DATA_PORT, Kind

FREE = ("--listen", "127.0.0.1:0")


def test_a_port_in_use_is_named_with_what_to_do(good: Switch) -> None:
    shard = good.ready["shards"][0]
    hints = (
        ("--listen", ("--listen", good.address, "--data", "127.0.0.1:0")),
        ("--data", (*FREE, "--data", f"127.0.0.1:{shard['port']}")),
        ("--metrics", (*FREE, "--metrics", good.ready["metrics"].split("/")[2])),
        ("--web", (*FREE, "--web", good.ready["metrics"].split("/")[2])),
    )
    with ThreadPoolExecutor() as pool:
        ends = [(hint, pool.submit(inagg, "switch", *options)) for hint, options in hints]
    for hint, end in ends:
        said = end.result().stderr
        assert end.result().returncode == 1
        assert "Traceback" not in said
        assert said.splitlines()[-1].startswith("Error: ")
        assert f"choose another address with {hint}" in said
        assert said.splitlines()[-1].count("choose") == said.splitlines()[-1].count(hint) == 1


def test_all_addresses_that_another_switch_has_are_named_at_once(good: Switch) -> None:
    """As where two start with the usual ones: who has mended one would be told of the other."""
    data = f"127.0.0.1:{good.ready['shards'][0]['port']}"
    ended = inagg("switch", "--listen", good.address, "--data", data)
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert f"port {good.ready['shards'][0]['port']}" in said
    assert f"and so is {good.address}: is another switch running?" in said
    assert "Choose other addresses with --data and --listen" in said
    assert said.lower().count("choose") == said.count("--data") == 1


def test_who_moved_the_control_service_alone_is_told_once_what_moves_data() -> None:
    """Data stay at their usual port, as firewalls know it: beside another switch --data has to say another."""
    host = "127.9.8.7"  # where no other test is
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((host, DATA_PORT))
        ended = inagg("switch", "--listen", f"{host}:{CONTROL_PORT + 50}")
    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert f"port {DATA_PORT}: Address already in use" in said
    assert said.endswith("choose another address with --data, as --listen is that of the control service alone")
    assert said.count("--data") == said.count("--listen") == 1


def test_why_it_could_not_start_is_json_for_who_reads_json(good: Switch) -> None:
    taken = good.ready["metrics"].split("/")[2]
    ended = inagg("switch", *FREE, "--web", taken, "--log-format", "json")
    *_, last = map(json.loads, ended.stderr.splitlines())
    assert ended.returncode == 1
    assert (last["event"], last["level"]) == ("switch_failed", "error")
    assert "choose another address with --web" in last["why"]


def test_a_limit_of_descriptors_that_is_too_small_is_named(tmp_path: Path) -> None:
    """gRPC ended the process with words of its own."""
    command = f"ulimit -n 16; exec {shlex.join(INAGG)} switch --listen 127.0.0.1:0"
    ended = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, env=environment(), check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "Error: this process may have 16 files and connections open, and needs 33, and one more for each worker: raise "
        "the limit of open files (ulimit -n, LimitNOFILE=)\n"
    )


FEW_THREADS = """
import threading
start = threading.Thread.start
def limited(thread):
    if thread.name.startswith("inagg-driver"):
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = limited
from inagg.cli import main
raise SystemExit(main())
"""


def test_a_limit_of_threads_that_is_too_small_is_named() -> None:
    command = [sys.executable, "-c", FEW_THREADS, "switch", *FREE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(), check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "Error: can't start new thread: raise the limit of processes (ulimit -u, TasksMax=, a pod's pids)"
    )


def test_the_first_lines_say_what_runs_and_how_to_join(start: Callable[..., Switch]) -> None:
    switch = start("--log-format", "human", "--shards", "2", "--loss", "0.1", "--fault-seed", "9")
    said = switch.out_file.read_text()
    for word in (
        switch.address,
        "2 shards of 8192 slots",
        "13064 lanes",
        "UDP offload",
        f"INAGG_SWITCH={switch.address}",
        "Ctrl-C",
    ):
        assert word in said
    assert all(str(shard["port"]) in said for shard in switch.ready["shards"])
    warning = next(line for line in switch.log_file.read_text().splitlines() if "faults_injected" in line)
    assert "--fault-seed 9" in warning
    assert "ON PURPOSE" in warning


@pytest.mark.parametrize("out", ["full", "pipe that nobody reads"])
def test_a_switch_serves_whose_standard_output_cannot_be_written_and_says_so_on_standard_error(
    out: str, tmp_path: Path
) -> None:
    ready, log = tmp_path / "ready.json", tmp_path / "log"
    with ExitStack() as stack:
        if out == "full":
            written = os.open("/dev/full", os.O_WRONLY)
        else:
            read, written = os.pipe()
            os.close(read)
        stack.callback(os.close, written)
        errors = stack.enter_context(open(log, "wb"))
        command = [*INAGG, "switch", *FREE, "--ready-file", str(ready)]
        switch = stack.enter_context(
            subprocess.Popen(command, stdout=written, stderr=errors, env=environment(), start_new_session=True)
        )
        stack.callback(switch.kill)
        until(lambda: ready.exists() or switch.poll() is not None)
        with ControlClient(json.loads(ready.read_text())["control"]) as client:
            assert client.healthy()
        switch.terminate()
        assert switch.wait(10) == 0
    said = log.read_text()
    assert "standard output cannot be written" in said
    assert "join:  INAGG_SWITCH=" in said


def test_a_compiler_that_is_off_is_said_in_one_line() -> None:
    ended = inagg("switch", *FREE, NUMBA_DISABLE_JIT="1")
    assert ended.returncode == 1
    (said,) = ended.stderr.splitlines()
    assert said.startswith("Error: shard 0: NUMBA_DISABLE_JIT is set")


def test_a_web_address_that_cannot_be_is_told_before_anything_starts() -> None:
    ended = inagg("switch", *FREE, "--web", "127.0.0.1:1x")
    assert (ended.returncode, "is no port" in ended.stderr) == (2, True)
    ended = inagg("switch", *FREE, "--web", "192.0.2.1:0", "--insecure")  # of nobody: RFC 5737
    assert ended.returncode == 1
    assert "cannot serve the live view on 192.0.2.1:0" in ended.stderr
    assert "choose another address with --web" in ended.stderr
    assert ended.stdout == ""


def test_the_live_view_is_announced_and_served(start: Callable[..., Switch]) -> None:
    switch = start("--web", "127.0.0.1:0", "--log-format", "human")
    assert f"{switch.ready['web']} in a browser" in switch.out_file.read_text()
    with urllib.request.urlopen(switch.ready["web"], timeout=5) as reply:
        assert b"<title>inagg</title>" in reply.read()
    with urllib.request.urlopen(f"{switch.ready['web']}api/live", timeout=5) as reply:
        assert json.load(reply)["control"] == switch.address


def test_the_live_view_can_have_a_socket_that_another_has_opened(start: Callable[..., Switch]) -> None:
    with Listener("127.0.0.1:0") as listener:
        os.set_inheritable(listener.socket.fileno(), True)
        switch = start("--web", f"fd:{listener.socket.fileno()}", pass_fds=(listener.socket.fileno(),))
        assert switch.ready["web"] == f"http://{listener.place}/"
        with urllib.request.urlopen(switch.ready["web"], timeout=5) as reply:
            assert reply.status == 200


def test_without_offload_the_sums_are_the_same(
    start: Callable[..., Switch], good: Switch, client: ControlClient
) -> None:
    switch = start("--no-offload")
    assert not switch.ready["offload"]
    arrays = gradients(3, [40_000, 7], 1)
    options = {"job": "same", "seed": 1, "format": "nat8"}
    for a, b in zip(
        Run(switch.address, arrays, **options).results()[0],
        Run(good.address, arrays, **options).results()[0],
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    assert client.stats().shards[0].slots_leased == 0


def test_a_capture_can_be_read_with_scapy(start: Callable[..., Switch], tmp_path: object) -> None:
    path = f"{tmp_path}/run.pcap"
    switch = start("--capture", path)
    Run(switch.address, gradients(2, [5000], 1), job="seen").results()
    with switch.client() as client:
        shard = client.stats().shards[0]
    switch.signal()
    assert switch.ended() == 0
    port = switch.ready["shards"][0]["port"]
    bind(port)
    try:
        packets = rdpcap(path)
    finally:
        unbind(port)
    assert len(packets) == shard.datagrams_in + shard.datagrams_out
    kinds = [packet[Inagg].kind for packet in packets]
    assert kinds.count(Kind.CONTRIBUTION) == shard.datagrams_in
    assert all(packet[Inagg].wrong() is None for packet in packets)
    assert {packet[IP].src for packet in packets} == {"127.0.0.1"}
    assert all(port in (packet[UDP].sport, packet[UDP].dport) for packet in packets)


@pytest.mark.parametrize(
    "options", [("--listen", "0.0.0.0:0"), ("--metrics", "0.0.0.0:0", *FREE), ("--web", "0.0.0.0:0", *FREE)]
)
def test_other_machines_are_served_without_tls_only_if_asked_for(options: tuple[str, ...]) -> None:
    ended = inagg("switch", *options)
    assert ended.returncode == 2
    assert "--insecure" in ended.stderr


def test_the_ready_file_says_where_it_serves(good: Switch) -> None:
    assert json.loads(good.ready_file.read_text()) == good.ready
    assert good.ready["pid"] == good.process.pid
    assert good.ready["slots"] == 8192


def test_systemd_is_told_when_it_serves_and_when_it_stops(
    start: Callable[..., Switch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        switch = start()
        assert systemd.recv(100) == b"READY=1"
        switch.signal(signal.SIGTERM)
        assert systemd.recv(100) == b"STOPPING=1"
        assert switch.ended() == 0


def test_sighup_while_it_starts_does_not_end_it(tmp_path: Path) -> None:
    switch = Switch(tmp_path)
    children = Path(f"/proc/{switch.process.pid}/task/{switch.process.pid}/children")
    until(children.read_text, what="a shard")
    switch.signal(signal.SIGHUP)
    with switch:
        assert len(switch.shard_pids) == 1


def test_more_slots_than_there_is_memory_for_are_an_error_in_one_line() -> None:
    done = inagg("switch", "--listen", "127.0.0.1:0", "--slots", "16777216", "--datagram-bytes", "65507")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: shard 0: 16777216 slots of 65")
    assert "choose fewer with --slots" in done.stderr
    assert "Traceback" not in done.stderr


def test_secrets_are_read_again_on_sighup_and_stay_if_the_file_cannot_be(
    start: Callable[..., Switch], tmp_path: Path
) -> None:
    file = tmp_path / "secrets"
    file.write_text("alice: a-secret\n")
    switch = start("--secret-file", str(file))
    file.write_text("alice: new-secret\nbob: b-secret\n")
    os.kill(switch.process.pid, signal.SIGHUP)
    until(lambda: switch.events("reloaded"))
    assert switch.events("reloaded")[0]["secrets"] == 2
    with ControlClient(switch.address, Access(secret="new-secret")) as client:
        client.list()
        file.write_text("")
        os.kill(switch.process.pid, signal.SIGHUP)
        until(lambda: switch.events("not_reloaded"))
        assert "there is no secret in it" in switch.events("not_reloaded")[0]["why"]
        client.list()


def test_a_file_that_cannot_be_read_to_its_end_holds_up_no_job_and_no_signal(
    start: Callable[..., Switch], tmp_path: Path
) -> None:
    file = tmp_path / "secrets"
    file.write_text("a-secret\n")
    switch = start("--secret-file", str(file))
    file.unlink()
    os.mkfifo(file)  # that nobody writes to: as a file on a network file system that is gone

    def complains() -> bool:
        os.kill(switch.process.pid, signal.SIGHUP)
        return bool(switch.events("not_reloaded"))

    until(complains)
    assert "since an earlier SIGHUP: look at their file system" in switch.events("not_reloaded")[0]["why"]
    with ControlClient(switch.address, Access(secret="a-secret")) as client:
        client.list()
    os.kill(switch.process.pid, signal.SIGTERM)
    assert switch.ended() == 0


def test_a_key_with_a_passphrase_is_an_error_in_one_line(authority: Authority) -> None:
    pair = authority.issue("locked", passphrase=b"x")
    done = inagg("switch", *FREE, "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key), timeout_s=60)
    assert done.returncode == 1
    assert "is encrypted: give a key without a passphrase" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_key_with_a_passphrase_is_not_read_again_and_the_switch_serves_on(
    start: Callable[..., Switch], authority: Authority, tmp_path: Path
) -> None:
    pair, locked = authority.issue("localhost"), authority.issue("locked", passphrase=b"x")
    switch = start("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
    for old, new in ((pair.certificate, locked.certificate), (pair.key, locked.key)):
        old.write_bytes(new.read_bytes())
    os.kill(switch.process.pid, signal.SIGHUP)
    until(lambda: switch.events("not_reloaded"), 10)
    assert "is encrypted" in switch.events("not_reloaded")[0]["why"]
    with ControlClient(switch.address, Access(True, authority.pair.certificate)) as client:
        client.list()


def test_all_serve_the_certificates_that_sighup_has_read(start: Callable[..., Switch], authority: Authority) -> None:
    pair, new = authority.issue("localhost"), authority.issue("renewed")
    files = "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)
    switch = start(*files, "--metrics", "127.0.0.1:0", "--web", "127.0.0.1:0")
    urls = [switch.ready[name].split("/")[2] for name in ("metrics", "web")]
    addresses = [split_address(address) for address in (switch.address, *urls)]
    pair.certificate.write_bytes(new.certificate.read_bytes())
    pair.key.write_bytes(new.key.read_bytes())
    served = new.certificate.read_text()
    assert served not in map(ssl.get_server_certificate, addresses)
    os.kill(switch.process.pid, signal.SIGHUP)
    until(lambda: switch.events("reloaded"), 10)
    assert {*map(ssl.get_server_certificate, addresses)} == {served}


def test_a_ready_file_of_a_switch_that_runs_stays_its_own(good: Switch) -> None:
    before = good.ready_file.read_text()
    done = inagg("switch", *FREE, "--ready-file", str(good.ready_file))
    assert done.returncode == 1
    said = f"is the ready file of another switch, which runs (process {good.process.pid}): name another"
    assert said in done.stderr.splitlines()[-1]
    assert good.ready_file.read_text() == before


@pytest.mark.parametrize("left", ['{"pid": 1}', "{", "[]", '{"pid": "x"}', '{"pid": 4194304}', ""])
def test_a_ready_file_that_a_switch_has_left_behind_is_in_nobodys_way(tmp_path: Path, left: str) -> None:
    (tmp_path / "ready.json").write_text(left)
    switch = Switch(tmp_path)
    try:
        until(lambda: switch.process.poll() is not None or switch.log_file.read_text().count("switch_serving"))
        switch.wait_ready()
        assert switch.ready["pid"] == switch.process.pid
    finally:
        switch.close()


def test_a_switch_removes_no_ready_file_that_another_has_written_since(start: Callable[..., Switch]) -> None:
    switch = start()
    others = json.dumps({**switch.ready, "pid": 1})
    switch.ready_file.write_text(others)
    switch.signal(signal.SIGINT)
    assert switch.ended() == 0
    assert switch.ready_file.read_text() == others


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        (("--listen", "0.0.0.0:0", "--insecure"), ["open_to_all"]),
        (("--listen", "0.0.0.0:0", "--insecure", "--data", "127.0.0.1:0"), ["open_to_all", "out_of_reach"]),
        (("--data", "0.0.0.0:0"), ["out_of_reach"]),
        ((), []),
    ],
)
def test_what_is_open_to_all_or_out_of_reach_is_told(
    start: Callable[..., Switch], options: tuple[str, ...], warns: list[str]
) -> None:
    switch = start(*options)
    assert [event["event"] for event in switch.log() if event["event"] in ("open_to_all", "out_of_reach")] == warns
