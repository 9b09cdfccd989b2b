"""Namespaces and shaped links: made as asked, and gone afterwards. Needs root."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.testbed.leftovers import network_of, processes_marked, run_and_signal

from inagg_testbed.switch_process import COMMAND
from inagg_testbed.topology import Topology, TopologyError, open_topology, state
from inagg_testbed.topology.launch import launcher
from inagg_testbed.topology.namespaces import create, existing, remove, run_inside, with_route
from inagg_testbed.topology.processes import processes_of

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "folder", lambda: tmp_path)


@pytest.fixture
def topology() -> Iterator[Topology]:
    with open_topology(2, "100mbit") as topology:
        yield topology


SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(17, 103, 1472)  # UDP_SEGMENT
s.setsockopt(socket.SOL_SOCKET, 32, 32 << 20)  # SO_SNDBUFFORCE: else the socket waits for the queue
for _ in range(int(sys.argv[3])):
    s.sendto(bytes(44 * 1472), (sys.argv[1], int(sys.argv[2])))
    time.sleep(float(sys.argv[4]))
"""


def receive_from(topology: Topology, trains: int, pause_s: float) -> tuple[int, float]:
    """Send trains of 44 datagrams from w0 to the switch: how many came, and seconds from the first to the last."""
    receiver = run_inside(str(topology.switch.namespace), lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with receiver:
        receiver.bind((topology.switch.host, 0))
        receiver.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
        receiver.settimeout(30.0)  # until the sender is there
        argv = [sys.executable, "-S", "-c", SEND, topology.switch.host, str(receiver.getsockname()[1])]
        sender = subprocess.Popen(topology.workers[0].command([*argv, str(trains), str(pause_s)]))
        times = []
        while True:
            try:
                receiver.recv(2000)
            except TimeoutError:
                break
            times.append(time.monotonic())
            receiver.settimeout(1.0)
        assert sender.wait() == 0
    return len(times), times[-1] - times[0]


def test_a_link_has_its_rate_and_counts_the_headers_of_each_datagram_of_a_train(topology: Topology) -> None:
    link = topology.link
    assert link is not None
    count, seconds = receive_from(topology, 60, 0.005)
    assert count == 60 * 44  # nothing is lost: the queue holds what the rate does not let pass
    at_rate = (count * 1514 - link.burst_bytes) / link.bytes_per_s
    assert at_rate * 0.97 < seconds < at_rate * 1.25  # no faster than the rate; a busy machine may be slower


def test_a_link_that_is_overrun_drops_and_tells(topology: Topology) -> None:
    link, worker = topology.link, str(topology.workers[0].namespace)
    assert link is not None
    trains = 2 * link.queue_bytes // (44 * 1514)
    count, _ = receive_from(topology, trains, 0.0)
    assert link.queue_bytes // 1514 <= count < trains * 44
    assert queue_drops(worker, "eth0") > 0, "its queue had no room"


def queue_drops(namespace: str, interface: str) -> int:
    """Packets that the queue of a shaped interface had no room for, since it was made."""

    def read(route: Any) -> int:
        stats = [q.get_attr("TCA_STATS2") for q in route.get_qdiscs(index=route.link_lookup(ifname=interface)[0])]
        queues = [s.get_attr("TCA_STATS_QUEUE") for s in stats if s is not None]
        return sum(queue["drops"] for queue in queues if queue is not None)

    return with_route(namespace, read)


def test_workers_reach_one_another_and_not_the_machine(topology: Topology) -> None:
    source = (
        "import socket, sys\n"
        "s = socket.socket(); s.settimeout(2)\n"
        "try: s.connect((sys.argv[1], int(sys.argv[2])))\n"
        "except OSError as error: print(type(error).__name__)\n"
    )

    def connect(host: str) -> str:
        command = topology.workers[0].command([sys.executable, "-S", "-c", source, host, "9"])
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()

    assert connect(topology.workers[1].host) == "ConnectionRefusedError"  # there, and nobody listens
    assert connect("192.0.2.1") == "OSError"  # no route


def test_bare_ports_have_no_bridge_no_offloads_and_a_network_for_control() -> None:
    with open_topology(2, "1gbit", wiring="ports") as topology:
        assert topology.switch.interfaces == ("w0", "w1")
        shown = subprocess.run(
            topology.switch.command(["ip", "-details", "-json", "link", "show", "w0"]), capture_output=True, text=True
        )
        (link,) = json.loads(shown.stdout)
        assert link["gso_max_segs"] == 1
        assert "master" not in link
        assert link["address"] != ""
        assert topology.workers[0].management == "10.78.0.1"


def test_all_is_gone_afterwards_also_after_an_error_and_with_processes_in_it() -> None:
    with pytest.raises(ZeroDivisionError), open_topology(2, "1gbit") as topology:  # noqa: PT012
        node = topology.workers[0]
        sleeper = subprocess.Popen(node.command(["sleep", "60"]))
        while not processes_of(node.mark, [str(node.namespace)]):
            time.sleep(0.01)
        raise ZeroDivisionError
    assert network_of(topology.name) == []
    assert sleeper.wait() == -signal.SIGTERM


def test_a_namespace_that_somebody_else_made_is_refused_and_stays() -> None:
    create("inagg-taken-w0")
    try:
        with pytest.raises(TopologyError, match="ip netns delete inagg-taken-w0"):
            open_topology(1, "1gbit", name="taken").__enter__()
        assert existing("inagg-taken") == ["inagg-taken-w0"]
        assert state.load("taken") is None
    finally:
        remove("inagg-taken-w0")


def test_status_tells_to_delete_an_unknown_namespace_when_nobody_lives_there() -> None:
    name = f"inagg-stray-{os.getpid()}-w0"
    create(name)
    try:
        sleeper = subprocess.Popen(launcher(name, ["sleep", "60"]))
        while not processes_of("", [name]):
            time.sleep(0.01)
        assert f"ip netns delete {name}" not in inagg("status").stdout
        sleeper.kill()
        sleeper.wait()
        assert f"ip netns delete {name}" in inagg("status").stdout
    finally:
        remove(name)


def inagg(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "testbed", *arguments], capture_output=True, text=True, timeout=120)


def test_a_killed_testbed_is_found_by_status_and_removed_by_down(tmp_path: Path) -> None:
    mark = "a-killed-testbed"
    environment = {**os.environ, "INAGG_TEST_MARK": mark}
    script = ["sh", "-c", f"touch {tmp_path}/ready; exec sleep 60"]
    process = subprocess.Popen(
        [*COMMAND, "testbed", "--workers", "2", "--link", "1gbit", "--", *script], env=environment
    )
    name = f"run-{process.pid}"
    try:
        deadline_s = time.monotonic() + 60
        while not (tmp_path / "ready").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        process.kill()
        process.wait()
        seen = inagg("status", "--json")
        (line,) = [line for line in json.loads(seen.stdout)["testbeds"] if line["name"] == name]
        assert seen.returncode == 1
        assert line["state"] == "left over"
        assert {f"namespace {name}" for name in line["namespaces"]} == set(network_of(name))
    finally:
        removed = inagg("down", "--name", name)
    assert removed.returncode == 0, removed.stderr
    assert f"removed {name} (left over: 3 namespaces" in removed.stdout
    assert network_of(name) == []
    assert processes_marked(mark) == []
    assert inagg("down", "--name", name).returncode == 1


def test_a_testbed_stays_until_down_and_runs_scripts_meanwhile() -> None:
    name = f"test-{os.getpid()}"
    try:
        made = inagg("up", "--name", name, "--workers", "2", "--link", "1gbit", "--json")
        assert made.returncode == 0, made.stderr
        control = json.loads(made.stdout)["control"]
        assert inagg("up", "--name", name).returncode == 1
        ran = inagg("run", "--in", name, "--", "sh", "-c", "echo $RANK $INAGG_SWITCH")
        assert sorted(ran.stdout.splitlines()) == [f"[w{rank}] {rank} {control}" for rank in range(2)]
        jobs = inagg("exec", "--name", name, "switch", "--", *COMMAND, "jobs", "--json")
        assert json.loads(jobs.stdout)["jobs"] == []
        assert inagg("exec", "--name", name, "w7", "--", "true").returncode == 1
        assert inagg("exec", "--name", name, "w1", "--", "not-there").returncode == 127, "as a shell has it"
        assert len(network_of(name)) == 3
    finally:
        assert inagg("down", "--name", name).returncode == 0
    assert network_of(name) == []


def test_what_is_run_on_a_worker_of_a_testbed_finds_the_switch_and_the_format_that_a_script_does() -> None:
    name, echo = f"test-{os.getpid()}", ("--", "sh", "-c", "echo $INAGG_FORMAT $INAGG_SWITCH")
    try:
        made = inagg("up", "--name", name, "--workers", "2", "--racks", "2", "--format", "nat4")
        assert made.returncode == 0, made.stderr
        of_scripts = sorted(inagg("run", "--in", name, *echo).stdout.splitlines())
        found = [inagg("exec", "--name", name, node, *echo).stdout.strip() for node in ("w0", "w1")]
        assert [f"[w{rank}] {line}" for rank, line in enumerate(found)] == of_scripts
        assert found[0].split()[0] == "nat4"
        assert found[0] != found[1]  # each has the switch of its rack first
    finally:
        assert inagg("down", "--name", name).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after_s", [0.5, 0.6, 0.7, 0.8, 1.0, 1.5, 3.0])
def test_a_signal_at_any_time_leaves_no_namespace(tmp_path: Path, number: signal.Signals, after_s: float) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    arguments = ["testbed", "--workers", "2", "--link", "1gbit", "--", "sleep", "60"]
    run = run_and_signal(arguments, number, folder, after_s)
    assert run.left == []
    assert "Traceback" not in run.errors
    assert run.code == 128 + number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_is_taken_down_leaves_no_namespace(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    others = set(existing("inagg-run-"))

    def is_half_gone(files: Sequence[Path]) -> bool:
        if "ended well" not in files[1].read_text():
            return False
        whole, deadline_s = set(existing("inagg-run-")) - others, time.monotonic() + 30
        while set(existing("inagg-run-")) >= whole:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)  # it takes few milliseconds
        return True

    run = run_and_signal(["testbed", "--workers", "8", "--link", "none", "--", "true"], number, folder, is_half_gone)
    assert run.left == []
    # To a shell the two are one. Where all was removed meanwhile, and Python ends, there are no handlers any more.
    assert run.code in (128 + number, -number)
