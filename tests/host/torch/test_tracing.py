"""Phases of operations in a trace of torch.profiler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from inagg_host.torch.tensors import TensorAllReduce

ELEMENTS = 100_000


@pytest.fixture
def alone(switch: str) -> Iterator[TensorAllReduce]:
    """A job of one rank."""
    with TensorAllReduce(switch=switch, job="tracing", rank=0, workers=1) as all_reduce:
        yield all_reduce


PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile
from inagg_host.torch.tensors import TensorAllReduce

with TensorAllReduce(switch={switch!r}, job="profiled", rank=0, workers=1) as all_reduce:
    for _ in range(100):
        with profile(activities=[ProfilerActivity.CPU]) as trace:
            works = [all_reduce.submit(torch.ones(40_000)) for _ in range(4)]
            if {inside}:
                [work.wait() for work in works]
        trace.key_averages()
        del trace
        [work.wait() for work in works]
"""


@pytest.mark.parametrize("inside", [True, False], ids=["waited for while it records", "later"])
def test_sums_outlive_the_profiler_that_saw_them_begin(switch: str, inside: bool) -> None:
    """In a process of its own: what a range of an earlier recording is written into is memory of others."""
    script = PROFILED.format(switch=switch, inside=inside)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]


# so says torch 2.11, and it is the only cycle
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events at the end of each cycle:UserWarning")
def test_the_phases_are_in_a_trace_of_all_threads(alone: TensorAllReduce) -> None:
    everything = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=everything) as trace:
        for _ in range(20):  # phases of the loop are shown now and then
            alone(torch.ones(100 * ELEMENTS))
    names = {event.key for event in trace.key_averages()}
    assert {"inagg::encode", "inagg::network", "inagg::decode", "inagg::submit", "inagg::wait"} <= names
