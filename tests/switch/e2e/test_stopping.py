"""How a switch ends: it drains, it stops at once, or it says that it has lost a shard. It never hangs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
from tests.switch.e2e.running import Array, Rank, Run, Switch, gradients, held_back, until, wait_for_slots
from tests.switch.service.serving import job_spec

from inagg_host.allreduce import AllReduceError
from inagg_switch.cli.priority import LESS
from inagg_switch.service.control_client import ControlCallError
from inagg_switch.software.shard_process import SHORT_OF_MEMORY

KILLED = f"signal SIGKILL: {SHORT_OF_MEMORY}"


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def waiting_job(switch: Switch) -> list[Rank]:
    """A job of two ranks, of which the second sums less than the first, which waits."""
    few, many = gradients(1, [1000], 1)[0], gradients(1, [1000, 1000], 1)[0]
    ranks = [
        Rank(arrays, switch=switch.address, job="train", rank=rank, workers=2, reconnect_s=0.1, timeout_s=20)
        for rank, arrays in enumerate((many, few))
    ]
    until(lambda: ranks[0].sums)
    return ranks


def test_without_jobs_ctrl_c_ends_it_with_status_0(start: Callable[..., Switch]) -> None:
    switch = start()
    switch.signal(signal.SIGINT)
    assert switch.ended() == 0
    assert not switch.ready_file.exists()
    assert not any(alive(pid) for pid in switch.shard_pids)


def test_a_signal_lets_running_jobs_end_and_takes_no_new_ones(start: Callable[..., Switch]) -> None:
    switch = start("--drain", "20")
    first, second = gradients(2, [200_000] * 15, 1)
    over = threading.Event()
    run = Run(switch.address, [first, held_back(second, over)], job="train")
    until(lambda: run.ranks[0].sums)
    switch.signal(signal.SIGTERM)
    until(lambda: switch.events("draining"))
    with switch.client() as client:
        with pytest.raises(ControlCallError, match="only running jobs finish"):
            client.create(job_spec("late"))
        assert not client.healthy()
    assert "train" in switch.events("draining")[0]["waits_for"]
    over.set()
    assert len(run.results()[0]) == len(first)
    assert switch.ended() == 0
    assert not switch.events("stopping_with_jobs")


def test_a_second_signal_ends_it_at_once_with_status_0(start: Callable[..., Switch]) -> None:
    switch = start("--drain", "60")
    ranks = waiting_job(switch)
    switch.signal()
    until(lambda: switch.events("draining"))
    assert switch.process.poll() is None
    switch.signal()
    assert switch.ended(5) == 0
    assert switch.events("stopping_with_jobs")[0]["jobs"] == ["train"]
    with pytest.raises(AllReduceError, match="switch is stopping"):
        ranks[0].result()


def sums_of(switch: Switch, during: Callable[[Run], None]) -> list[Array]:
    """Of a job of three ranks with one seed, which is not over before ``during`` is."""
    first, second, third = gradients(3, [100_000] * 12, 1)
    over = threading.Event()
    run = Run(switch.address, [first, second, held_back(third, over)], job="train", seed=5)
    until(lambda: run.ranks[0].sums)
    during(run)
    over.set()
    sums = run.results()[0]
    with switch.client() as client:
        wait_for_slots(client, 0)
    return sums


def test_a_shard_that_dies_is_started_again_and_the_job_goes_on_with_the_same_bits(
    start: Callable[..., Switch],
) -> None:
    switch = start("--shards", "2")
    undisturbed = sums_of(switch, lambda run: None)

    def kill(run: Run) -> None:
        for shard in (1, 0):
            count = len(switch.events("shard_restarted")) + 1
            pid = [*switch.shard_pids, *(e["pid"] for e in switch.events("shard_restarted"))][shard]
            os.kill(pid, signal.SIGKILL)
            until(partial(lambda count: len(switch.events("shard_restarted")) == count, count))

    disturbed = sums_of(switch, kill)
    for a, b in zip(disturbed, undisturbed, strict=True):
        np.testing.assert_array_equal(a, b)
    died = switch.events("shard_died")
    assert [e["what"] for e in died] == [f"shard {i} has died ({KILLED})" for i in (1, 0)]
    assert died[0]["jobs"] == ["train"]
    switch.signal()
    assert switch.ended() == 0
    assert not any(alive(e["pid"]) for e in switch.events("shard_restarted"))


def test_data_planes_come_before_calls_where_processors_are_scarce_also_when_started_again(
    start: Callable[..., Switch],
) -> None:
    switch = start()

    def nice(pid: int) -> int:
        return os.getpriority(os.PRIO_PROCESS, pid)

    own = nice(0)
    assert (nice(switch.process.pid), nice(switch.shard_pids[0])) == (min(own + LESS, 19), own)
    os.kill(switch.shard_pids[0], signal.SIGKILL)
    until(lambda: switch.events("shard_restarted"))
    assert nice(switch.events("shard_restarted")[0]["pid"]) == own


def test_a_switch_whose_shards_die_again_and_again_ends_with_status_1_and_says_why(
    start: Callable[..., Switch],
) -> None:
    """Also one that is idle."""
    switch = start()
    pids = [switch.shard_pids[0]]
    while switch.process.poll() is None and len(pids) < 10:
        os.kill(pids[-1], signal.SIGKILL)
        count = len(pids)
        until(partial(lambda n: len(switch.events("shard_restarted")) == n or switch.process.poll() is not None, count))
        pids += [e["pid"] for e in switch.events("shard_restarted")[len(pids) - 1 :]]
    assert switch.ended(5) == 1
    assert len(pids) == 6
    assert switch.events("switch_lost")[0]["what"] == f"shard 0 has died ({KILLED}), as often before"
    assert not any(alive(pid) for pid in pids)


def test_shards_end_when_the_switch_is_killed(start: Callable[..., Switch]) -> None:
    switch = start()
    switch.signal(signal.SIGKILL)
    switch.ended()
    until(lambda: not any(alive(pid) for pid in switch.shard_pids), what="the end of the shards")


def test_the_root_of_a_tree_ends_without_an_error(start: Callable[..., Switch]) -> None:
    """All that it says is JSON, as `Switch.log` needs it."""
    root = start()
    leaf = start("--parent", root.address, "--name", "leaf")
    root.signal(signal.SIGTERM)
    assert root.ended() == 0
    assert [event for event in root.log() if event["level"] == "error"] == []
    until(lambda: leaf.events("parent_lost"))
    leaf.signal()
    assert leaf.ended() == 0


def test_who_calls_a_leaf_that_ends_finds_nobody_there(start: Callable[..., Switch]) -> None:
    """Ranks then call the next one. The leaf has to wait for its shard, which hangs."""
    root = start()
    leaf = start("--parent", root.address, "--name", "leaf")
    codes: list[grpc.StatusCode] = []
    with leaf.client() as client:
        os.kill(leaf.shard_pids[0], signal.SIGSTOP)
        until(lambda: leaf.events("order_failed"))
        leaf.process.terminate()
        while not codes:
            try:
                client.list()
            except ControlCallError as error:
                codes.append(error.code)
    os.kill(leaf.shard_pids[0], signal.SIGKILL)
    assert leaf.ended() == 0
    assert codes[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert not [event for event in leaf.log() if "exception" in event]


def test_why_and_top_name_a_shard_that_hangs_and_say_what_the_others_do(start: Callable[..., Switch]) -> None:
    switch = start("--shards", "2", "--shard-restarts", "0", "--metrics", "127.0.0.1:0")
    over = threading.Event()
    arrays = gradients(2, [20_000, 20_000], 1)
    run = Run(switch.address, [held_back(array, over) for array in arrays], job="train")
    until(lambda: all(rank.sums for rank in run.ranks))
    os.kill(switch.shard_pids[1], signal.SIGSTOP)
    why, top = switch.command("why", "train"), switch.command("top", "--once")
    plain = json.loads(switch.command("why", "train", "--json").stdout)
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(switch.ready["metrics"].replace("/metrics", "/healthz"), timeout=10)
    os.kill(switch.shard_pids[1], signal.SIGCONT)
    over.set()
    run.results()
    assert why.returncode == 4, why.stderr
    assert re.search(
        r"- Shard 1 has not answered for \d+ s: its slots are not known here, and its sums",
        " ".join(why.stdout.split()),
    )
    assert "Nothing waits" not in why.stdout
    assert re.fullmatch(r"shard 1 has not answered for \d+ s", plain["silent"][0])
    assert top.returncode == 0, top.stderr
    assert "Does not answer: shard 1 has not answered for " in top.stdout
    assert "train" in top.stdout
    until(lambda: switch.command("why", "train").returncode != 4)
    assert "driver_unhealthy" in [event["event"] for event in switch.log()]


SECOND_SIGNAL = """
import os, signal
from inagg_switch.cli.signals import Stopped, signals_raise

try:
    with signals_raise():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
except Stopped:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(os.getpid(), number)
"""


def test_a_signal_after_the_end_does_not_change_the_exit_status() -> None:
    """While the interpreter ends: the second of a service manager, or Ctrl-C again."""
    assert subprocess.run([sys.executable, "-c", SECOND_SIGNAL], timeout=60, check=False).returncode == 0
