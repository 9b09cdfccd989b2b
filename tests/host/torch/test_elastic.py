"""torchft over the switch: its integration cases, of three replicas in one process and of processes that are killed.

What must hold in all: replicas end at the same step with the same weights, bit for bit, and the switch did the sums.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
SCRIPT = ("-m", "tests.host.torch.replicas")
STEPS = 40
PATIENCE_S = 120.0

pytestmark = pytest.mark.torchft
modes = pytest.mark.parametrize("mode", [(), ("--sync",)], ids=["async", "sync"])


def started(switch: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *SCRIPT, "--steps", str(STEPS), *arguments], cwd=REPOSITORY, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "INAGG_SWITCH": switch},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the replicas of a process end with, when they end."""
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    last: dict[str, Any] = json.loads(out.splitlines()[-1])
    return last


def check(ends: list[dict[str, Any]], replicas: int) -> None:
    assert len(ends) == replicas
    assert {end["step"] for end in ends} == {STEPS}
    assert len({end["state"] for end in ends}) == 1
    assert all(end["summed"] > 0 for end in ends)


@modes
def test_all_stay(switch: str, mode: tuple[str, ...]) -> None:
    told = ended(started(switch, *mode))
    check(told["ends"], 3)
    assert told["failed"] == 0
    assert all(set(end["workers"]) == {3} for end in told["ends"])


@modes
def test_one_crashes_and_recovers_from_the_others(switch: str, mode: tuple[str, ...]) -> None:
    told = ended(started(switch, *mode, "--crash", "2@5"))
    check(told["ends"], 3)
    assert [end["life"] for end in told["ends"]] == [0, 0, 1]
    assert told["ends"][2]["workers"][-1] == 3, "and takes part again"


@modes
def test_a_step_whose_sum_fails_does_not_count_and_the_next_does(switch: str, mode: tuple[str, ...]) -> None:
    told = ended(started(switch, *mode, "--break-job", "0@5"))
    check(told["ends"], 3)
    assert told["failed"] >= 3, "on each of them"
    assert all(len(end["workers"]) == STEPS for end in told["ends"])


@modes
def test_one_comes_late(switch: str, mode: tuple[str, ...]) -> None:
    told = ended(started(switch, *mode, "--late", "2@5"))
    check(told["ends"], 3)
    assert told["ends"][0]["workers"][0] == 2
    assert told["ends"][0]["workers"][-1] == 3
    assert len(told["ends"][2]["workers"]) < STEPS, "it did not do the first steps"


def test_one_that_is_killed_is_left_out(switch: str) -> None:
    lighthouse = started(switch, "--serve")
    assert lighthouse.stdout is not None
    address = lighthouse.stdout.readline().strip()
    processes = [started(switch, "--lighthouse", address, "--replicas", str(index)) for index in range(3)]
    try:
        victim = processes[2]
        assert victim.stdout is not None
        for line in victim.stdout:
            if json.loads(line).get("did", 0) >= 5:
                break
        victim.send_signal(signal.SIGKILL)
        ends = [end for process in processes[:2] for end in ended(process)["ends"]]
    finally:
        for process in (*processes, lighthouse):
            process.kill()
            process.communicate()
    check(ends, 2)
    assert all(3 in end["workers"] and end["workers"][-1] == 2 for end in ends)
