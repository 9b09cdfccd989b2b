"""The software driver and its shards: processes that answer, are late, or die."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.link.signalling import Interrupted, come_in_the_midst_of_a_start, handled
from tests.switch.aggregation.world import make_binding

from inagg_link.faults import Faults
from inagg_link.udp import UdpLink
from inagg_switch.driver import Counters, DriverError
from inagg_switch.software import shard_process
from inagg_switch.software.config import SoftwareConfig
from inagg_switch.software.shard import LinkStack
from inagg_switch.software.software_driver import SoftwareDriver
from inagg_wire.errors import Reason

KILLED = "signal SIGKILL: was memory short? Look at dmesg, and at the limit of memory of the container or unit"


@pytest.fixture
def driver() -> Iterator[SoftwareDriver]:
    driver = SoftwareDriver(SoftwareConfig(slots=4))
    yield driver
    driver.close()


def until(condition: object, timeout_s: float = 10) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def test_a_shard_says_where_it_serves_and_what_it_was_granted(driver: SoftwareDriver) -> None:
    (started,) = driver.started
    assert driver.shards[0].address == started.address
    assert started.receive_buffer_bytes > 0
    os.kill(started.pid, 0)
    assert driver.died() is None


def test_a_shard_takes_no_core_from_others_for_each_datagram(driver: SoftwareDriver) -> None:
    (started,) = driver.started
    assert os.sched_getscheduler(started.pid) == os.SCHED_BATCH


def test_a_scheduling_policy_that_somebody_chose_is_kept() -> None:
    chosen = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))"
    shard = "from inagg_switch.software.shard import batches_only; batches_only(); print(os.sched_getscheduler(0))"
    done = subprocess.run([sys.executable, "-c", f"{chosen}; {shard}"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{os.SCHED_IDLE}\n"


def test_the_parent_of_shards_imports_no_arrays_or_compiler_and_a_shard_no_scipy(driver: SoftwareDriver) -> None:
    """Each would make a start take longer, and the process larger."""
    parent = (
        "import sys, inagg_switch.cli.serve, inagg_switch.cli.root, inagg_switch.cli.leaf;"
        "print('imported:', sorted({'numpy', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True)
    assert done.stdout == "imported: []\n"
    (started,) = driver.started
    maps = Path(f"/proc/{started.pid}/maps").read_text()
    assert "llvmlite" in maps
    assert "/scipy/" not in maps
    assert "_cffi_backend" not in maps


def test_a_late_answer_is_not_taken_for_that_to_a_later_question(
    driver: SoftwareDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (started,) = driver.started
    os.kill(started.pid, signal.SIGSTOP)
    monkeypatch.setattr(shard_process, "ANSWER_S", 0.05)
    with pytest.raises(DriverError, match="has not answered"):
        driver.waiting(0, 1, 1)
    os.kill(started.pid, signal.SIGCONT)
    monkeypatch.setattr(shard_process, "ANSWER_S", 10.0)
    assert driver.counters(0).datagrams_in == 0


def test_a_shard_that_died_is_named_with_its_signal(driver: SoftwareDriver) -> None:
    (started,) = driver.started
    os.kill(started.pid, signal.SIGKILL)
    until(driver.died)
    assert driver.died() == f"shard 0 has died ({KILLED})"
    with pytest.raises(DriverError, match=f"^{re.escape(f'shard 0 has died ({KILLED})')}$"):
        driver.counters(0)


def test_of_a_shard_that_was_killed_for_a_reason_that_is_told(driver: SoftwareDriver) -> None:
    driver.kill(0, "it was to end")
    assert driver.wait_for_death(0) == "shard 0 has died (signal SIGKILL: it was to end)"


def test_a_message_is_waited_for_only_while_somebody_asks(
    driver: SoftwareDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, waited_for = driver.messages_of(0)
    assert not waited_for
    driver.counters(0)
    assert driver.messages_of(0) == (before + 1, False)
    os.kill(driver.started[0].pid, signal.SIGSTOP)
    monkeypatch.setattr(shard_process, "ANSWER_S", 30.0)
    asking = threading.Thread(target=driver.counters, args=(0,))
    asking.start()
    until(lambda: driver.messages_of(0) == (before + 1, True))
    os.kill(driver.started[0].pid, signal.SIGCONT)
    asking.join(30)
    assert driver.messages_of(0) == (before + 2, False)


def test_a_shard_that_died_is_started_again_at_its_address_and_knows_no_job(driver: SoftwareDriver) -> None:
    (before,) = driver.started
    driver.bind(0, make_binding(7, n=2))
    with pytest.raises(DriverError, match="has not died"):
        driver.restart(0)
    os.kill(before.pid, signal.SIGKILL)
    assert driver.wait_for_death(0) == f"shard 0 has died ({KILLED})"
    driver.restart(0)
    (after,) = driver.started
    assert after.address == before.address
    assert after.pid != before.pid
    assert driver.died() is None
    assert driver.counters(0).jobs == {}


def test_a_shard_that_died_is_started_again_where_the_working_directory_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    with closing(SoftwareDriver(SoftwareConfig(slots=4))) as driver:
        gone.rmdir()
        os.kill(driver.started[0].pid, signal.SIGKILL)
        driver.wait_for_death(0)
        driver.restart(0)
        assert driver.died() is None


def test_who_stops_a_shard_waits_for_who_learns_its_end(driver: SoftwareDriver) -> None:
    """Else the other could find the process gone, and take it for one that lives."""
    shard, stat = driver._shards[0], Path(f"/proc/{driver.started[0].pid}/stat")
    stopping = threading.Thread(target=shard.stop)
    with shard._reaping:
        shard.tell_to_stop()
        stopping.start()
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        stopping.join(0.2)
        assert stopping.is_alive()
        assert stat.exists()
    stopping.join(10)
    assert not stat.exists()


def test_of_a_shard_that_was_replaced_no_descriptor_is_kept(driver: SoftwareDriver) -> None:
    """Also where something still names it."""
    named, before = driver._shards[0], len(os.listdir("/proc/self/fd"))
    os.kill(driver.started[0].pid, signal.SIGKILL)
    driver.wait_for_death(0)
    driver.restart(0)
    assert driver._shards[0] is not named
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_worker_that_the_socket_cannot_reach_is_not_admitted(driver: SoftwareDriver) -> None:
    assert driver.admit([(("127.0.0.1", 1),)]) is None
    assert driver.admit([(("127.0.0.1", 1),), (("::1", 1),)]) == (
        "::1 cannot be reached from 127.0.0.1, where this switch sends from; INAGG_HOST says which address of its own "
        "a rank uses"
    )


@pytest.mark.parametrize(
    ("own", "host", "alone", "data"), [("::", "10.0.0.7", "IPv6", "0.0.0.0"), ("0.0.0.0", "fd00::7", "IPv4", "[::]")]
)
def test_a_worker_of_the_other_family_is_told_what_a_switch_at_all_addresses_takes(
    driver: SoftwareDriver, own: str, host: str, alone: str, data: str
) -> None:
    driver.shards = (replace(driver.shards[0], address=(own, 47101), anywhere=True),)
    why = driver.admit([((host, 1),)])
    assert why is not None
    assert why.startswith(
        f"{host} cannot be reached: this switch takes data over {alone} alone. Name it by its {alone} "
    )
    assert why.endswith(f"start it with --data {data}")


def test_what_a_shard_that_was_started_again_captures_goes_to_a_new_file() -> None:
    config = SoftwareConfig(capture=Path("run.pcap"), record=Path("run.rec"), starts=3)
    assert config.capture_of(0) == Path("run.start3.pcap")
    assert config.record_of(1) == Path("run.shard1.start3.rec")


def test_a_signal_to_the_whole_group_does_not_end_a_shard(driver: SoftwareDriver) -> None:
    (started,) = driver.started
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(started.pid, number)
    assert driver.counters(0).datagrams_in == 0
    driver.close()
    until(lambda: driver.died() == "shard 0 has died (exit code 0)")


def test_a_port_in_use_is_told() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(DriverError, match=f"cannot serve on 127.0.0.1 port {port}: .*in use"):
            SoftwareDriver(SoftwareConfig(port=port))


def test_an_address_that_this_machine_does_not_have_is_told_with_what_to_do() -> None:
    with pytest.raises(DriverError, match=r"cannot serve on 192\.0\.2\.1 .*assign.*; no interface .* --data"):
        SoftwareDriver(SoftwareConfig(host="192.0.2.1"))


def test_a_bug_in_one_command_ends_nothing_but_this_and_is_logged_as_the_switch_logs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with closing(SoftwareDriver(SoftwareConfig(slots=4, log_format="json"))) as driver:
        with pytest.raises(DriverError, match="unexpected KeyError in nonsense"):
            driver._shards[0].ask("nonsense")
        assert driver.counters(0).datagrams_in == 0
    (line,) = capfd.readouterr().err.splitlines()
    logged = json.loads(line)
    assert (logged["level"], logged["event"]) == ("error", "unexpected KeyError in nonsense: 'nonsense'")
    assert "Traceback" in logged["exception"]


def test_datagrams_without_payload_are_counted_too(driver: SoftwareDriver) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for payload in (b"", b"x", b""):
            sender.sendto(payload, driver.shards[0].address)
    until(lambda: driver.counters(0).datagrams_in == 3)
    assert driver.counters(0).drops == {Reason.TOO_SHORT: 3}


def test_faults_are_counted_and_seeded_for_each_shard(tmp_path: Path) -> None:
    config = SoftwareConfig(faults=Faults(drop=1.0), fault_seed=5, capture=tmp_path / "run.pcap")
    wires = [LinkStack(config, shard) for shard in range(2)]
    try:
        assert [repr(w.link).count(f"seed={5 + shard}") for shard, w in enumerate(wires)] == [1, 1]
        with UdpLink() as sender, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
            assert sender.address
            plain.sendto(b"lost", wires[0].link.address)
            until(lambda: not wires[0].link.receive(0.05) and wires[0].link.counters.datagrams_in == 1)
        assert wires[0].complete(Counters()).faults == {
            "dropped": 1,
            "corrupted": 0,
            "duplicated": 0,
            "reordered": 0,
        }
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run.pcap", "run.shard1.pcap"]
    finally:
        for w in wires:
            w.link.close()


def test_a_recording_that_cannot_be_written_is_told_as_what_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=r"cannot record to .*: No such file"):
        LinkStack(SoftwareConfig(record=tmp_path / "missing" / "run.pcap"), 0)


@pytest.mark.parametrize("which", [1, 2])
def test_a_signal_while_shards_start_leaves_none_and_no_traceback(
    which: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(multiprocessing.active_children())
    come_in_the_midst_of_a_start(monkeypatch, which)
    with handled(), pytest.raises(Interrupted):
        shard_process.start_shards(SoftwareConfig(slots=4, shards=2))
    assert set(multiprocessing.active_children()) <= before
    assert capfd.readouterr().err == ""


def test_a_capture_that_cannot_be_written_closes_the_socket(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=r"cannot capture to .*: No such file"):
        LinkStack(SoftwareConfig(capture=tmp_path / "missing" / "run.pcap"), 0)
