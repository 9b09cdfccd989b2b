"""The demo, as a newcomer runs it: a real switch, real worker processes, a real training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from inagg_testbed.switch_process import COMMAND


def processes_of_group(group: int) -> list[int]:
    """The processes that are alive in a process group (proc(5), /proc/PID/stat, field 5)."""
    alive = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if int(fields[2]) == group and fields[0] != "Z":
            alive.append(int(entry))
    return alive


def test_the_demo_trains_and_leaves_the_same_parameters_on_all_workers() -> None:
    command = [*COMMAND, "demo", "--workers", "2", "--epochs", "2", "--no-gloo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (outcome,) = map(json.loads, done.stdout.splitlines())
    assert outcome["same_parameters"]
    assert outcome["accuracy"] > 0.5  # ten classes
    assert outcome["bytes_up_per_step"] < 4 * 71_754 / 3  # a third of float32, headers included


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [1.0, 4.0, 8.0, 14.0])
def test_ctrl_c_ends_the_demo_and_all_its_processes(after_s: float) -> None:
    demo = subprocess.Popen([*COMMAND, "demo"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    time.sleep(after_s)
    os.killpg(demo.pid, signal.SIGINT)
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 130, errors
    assert b"Traceback" not in errors
    assert processes_of_group(demo.pid) == []
