"""Processes that are forked from one with the PyTorch adapters can use gRPC, as a DataLoader's workers may."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys
import numpy as np
import inagg_host.torch
from inagg_host.allreduce import AllReduce


def sum_in(job):
    with AllReduce(switch=sys.argv[1], rank=0, workers=1, job=job) as all_reduce:
        return float(all_reduce(np.ones(1000, np.float32))[0])


with AllReduce(switch=sys.argv[1], rank=0, workers=1, job="forks-torch") as all_reduce:
    all_reduce(np.ones(1000, np.float32))
    child = os.fork()
    if child == 0:
        os._exit(0 if sum_in("forks-torch-child") == 1.0 else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    all_reduce(np.ones(1000, np.float32))
sys.exit(code)
"""


def test_a_process_that_is_forked_from_a_rank_can_have_a_job_of_its_own(switch: str) -> None:
    """And gRPC has nothing to say of that."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, switch], capture_output=True, text=True, timeout=60.0)
    assert (done.returncode, done.stderr) == (0, "")
