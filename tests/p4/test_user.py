"""bmv2 from a shell, as its users have it: their own scripts, looking on, Ctrl-C, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.switch.e2e.running import INAGG, environment, inagg, until

from inagg_testbed.topology import namespaces
from inagg_testbed.topology.state import PREFIX

LIMIT_S = 300
"""Of a command: the first one on a machine compiles the workers' kernels."""

pytestmark = [pytest.mark.p4, pytest.mark.root]

SUM = """
import os, sys, time
import numpy as np
from inagg_host.allreduce import AllReduce

rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with AllReduce(switch=os.environ["INAGG_SWITCH"], rank=rank, workers=workers, job="user") as all_reduce:
    for step in range(int(sys.argv[1])):
        values = np.full(1000, 2.0 ** rank, np.float32)
        all_reduce(values)
        print(step, values.min(), values.max(), flush=True)
        if rank == 1:
            time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "sum.py"
    path.write_text(SUM)
    return str(path)


class Shell:
    """Commands that must leave nothing behind."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*INAGG, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
        )
        self.pids.append(process.pid)
        return process

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit status, output and error output."""
        with self.start(*words) as process:
            try:
                out, err = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.terminate()  # so that it removes what it has made
                raise
        return process.returncode, out, err

    def left_behind(self) -> list[str]:
        """Namespaces of testbeds that these commands have made."""
        prefixes = tuple(f"{PREFIX}run-{pid}-" for pid in self.pids)
        return [name for name in namespaces.existing(PREFIX) if name.startswith(prefixes)]


@pytest.fixture
def shell() -> Iterator[Shell]:
    mine = Shell()
    yield mine
    assert mine.left_behind() == []


@pytest.fixture
def name() -> Iterator[str]:
    """Of a testbed that is gone after the test."""
    yield (mine := f"test-{os.getpid()}")
    assert inagg("testbed", "down", "--name", mine).returncode == 0


def test_a_script_runs_around_bmv2_in_the_format_that_is_asked_for(script: str, shell: Shell) -> None:
    options = ["--target", "bmv2", "--workers", "2", "--format", "fix32"]
    status, out, err = shell.run("testbed", *options, "--", sys.executable, script, "2", "0")
    assert status == 0, err
    assert sorted(out.splitlines()) == sorted(f"[w{w}] {s} 3.0 3.0" for w in range(2) for s in range(2))
    assert "all 2 ranks ended well" in err


def test_a_running_job_can_be_looked_at(script: str, name: str, shell: Shell) -> None:
    assert inagg("testbed", "up", "--name", name, "--target", "bmv2", "--workers", "2").returncode == 0

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return inagg("testbed", "exec", "--name", name, "switch", "--", *INAGG, *words)

    with shell.start("testbed", "run", "--in", name, "--", sys.executable, script, "1000", "20") as running:
        try:
            until(lambda: "user" in ask("jobs").stdout, what="the job")
            until(lambda: ask("why", "user", "--over", "0.3").returncode == 4, what="a rank that is waited for")
            said = json.loads(ask("why", "user", "--json").stdout)
            assert {rank for wait in said["slots"] for rank in wait["missing"]} == {1}
            assert "that wait miss rank 1" in said["text"][0]
            (job,) = json.loads(ask("top", "--once", "--json", "--interval", "0.1").stdout)["jobs"]
            first, second = (worker["contributions"] for worker in job["workers"])
            assert first > second > 0
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130


def test_ctrl_c_ends_everything(script: str, shell: Shell) -> None:
    options = ["--target", "bmv2", "--workers", "2"]
    with shell.start("testbed", *options, "--", sys.executable, script, "1000", "0.1") as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("[w")  # a sum has come back
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130


def test_an_all_reduce_is_measured_over_bmv2(shell: Shell) -> None:
    options = ["--target", "bmv2", "--workers", "2", "--size", "4K", "--seconds", "0.1"]
    status, out, err = shell.run("bench", "allreduce", *options, "--json")
    assert status == 0, err
    line = json.loads(out)
    assert (line["system"], line["elements"], line["link"]) == ("inagg", 1024, "none")
    assert line["wire_bytes_up"] > 1024  # a byte an element, and headers
