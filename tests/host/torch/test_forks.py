"""Processes that are forked from one with the PyTorch adapters, as a DataLoader's workers are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SCRIPT = """
import os, sys
import numpy as np
import inagg_host.torch
from inagg_host.allreduce import AllReduce
from inagg_host.config import ConfigError


def sum_in(job):
    with AllReduce(switch=sys.argv[1], rank=0, workers=1, job=job) as all_reduce:
        return float(all_reduce(np.ones(1000, np.float32))[0])


with AllReduce(switch=sys.argv[1], rank=0, workers=1, job="forks-torch") as all_reduce:
    all_reduce(np.ones(1000, np.float32))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sum_in("forks-torch-child")
            code = 0
        except ConfigError as error:
            print(error, flush=True)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    all_reduce(np.ones(1000, np.float32))
sys.exit(code)
"""


@pytest.mark.parametrize("cares", [False, True])
def test_a_job_of_a_process_that_was_forked_from_a_rank_is_refused_unless_grpc_cares_for_forks(
    switch: str, cares: bool
) -> None:
    environment = os.environ | ({"GRPC_ENABLE_FORK_SUPPORT": "1"} if cares else {})
    command = [sys.executable, "-c", SCRIPT, switch]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, env=environment)
    assert done.stderr == ""
    assert done.returncode == (0 if cares else 1)
    assert ('"spawn"' in done.stdout) is not cares


LEAVES = """
import os, sys, threading, time
from functools import partial
import torch
from inagg_host.torch import TensorAllReduce
from tests.host.torch.cpu_platform import CpuPlatform

LIMIT_S = 20.0
with TensorAllReduce(switch=sys.argv[1], rank=0, workers=1, job="forks-leave", timeout_s=LIMIT_S) as sums:
    sums._platforms = {"cpu": partial(CpuPlatform, copied_bytes=1 << 30)}
    sums(torch.ones(1000))
    late = threading.Event()
    sums.stage(torch.device("cpu")).device.decode_stream.do(late.wait)
    sums.submit(torch.ones(1000))
    began_s, child = time.monotonic(), os.fork()
    if child != 0:
        in_time = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        late.set()
        time.sleep(0.5)
        threads = {thread.name for thread in threading.enumerate()}
        print(in_time, {"inagg-watchdog", "inagg-device", "inagg-transport"} <= threads, flush=True)
if child == 0:
    os._exit(time.monotonic() - began_s > LIMIT_S / 2)
"""


def test_a_forked_process_that_leaves_the_block_of_a_job_does_so_at_once_and_ends_no_thread_of_the_ranks(
    switch: str,
) -> None:
    """Though a sum is on its way, which nobody would complete there."""
    command = [sys.executable, "-c", LEAVES, switch]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, cwd=ROOT)
    assert (done.stderr, done.stdout) == ("", "True True\n")
