"""Processes that are forked from one with the PyTorch adapters, as a DataLoader's workers are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
