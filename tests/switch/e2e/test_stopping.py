"""How a switch ends: it drains, it stops at once, or it says that a shard died. It never hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.switch.control.serving import job_spec
from tests.switch.e2e.running import Rank, Run, Switch, gradients, until

from inagg_host.allreduce import AllReduceError
from inagg_switch.control.client import ControlCallError


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
    arrays = gradients(2, [200_000] * 15, 1)
    run = Run(switch.address, arrays, job="train")
    until(lambda: run.ranks[0].sums)
    switch.signal(signal.SIGTERM)
    until(lambda: switch.events("draining"))
    with switch.client() as client:
        with pytest.raises(ControlCallError, match="only running jobs finish"):
            client.create(job_spec("late"))
        assert not client.healthy()
    assert "train" in switch.events("draining")[0]["waits_for"]
    assert len(run.results()[0]) == len(arrays[0])
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


def test_a_shard_that_dies_ends_the_switch_with_status_1_and_tells_the_workers(start: Callable[..., Switch]) -> None:
    switch = start("--shards", "2")
    ranks = waiting_job(switch)
    killed_at = time.monotonic()
    os.kill(switch.shard_pids[1], signal.SIGKILL)
    assert switch.ended(5) == 1
    assert time.monotonic() - killed_at < 3
    died = switch.events("shard_died")[0]
    assert died["what"] == "shard 1 has died (signal SIGKILL)"
    assert died["jobs"] == ["train"]
    with pytest.raises(AllReduceError, match="shard 1 has died"):
        ranks[0].result()
    assert not any(alive(pid) for pid in switch.shard_pids)


def test_shards_end_when_the_switch_is_killed(start: Callable[..., Switch]) -> None:
    switch = start()
    switch.signal(signal.SIGKILL)
    switch.ended()
    until(lambda: not any(alive(pid) for pid in switch.shard_pids), what="the end of the shards")
