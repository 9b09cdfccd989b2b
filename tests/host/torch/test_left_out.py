"""What becomes of sums after a tensor that one rank could not submit, for want of memory. On the CPU as a device."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.cpu_platform import CpuPlatform, HostStream
from tests.host.torch.ranks import LARGE
from tests.host.torch.world import World

from inagg_host.allreduce import AllReduceError
from inagg_host.torch import Options, TensorAllReduce, tensors
from inagg_host.torch.hosts import HostAllReduce

LEFT_OUT = "has left that out"


def no_memory(*_: Any, **__: Any) -> NoReturn:
    raise torch.OutOfMemoryError("CUDA out of memory")


def sum_without_memory(name: str, copied_bytes: int | None) -> str:
    """What a sum becomes after one of the same shape for which rank 0 had no memory. ``copied_bytes``: of the CPU as a
    device; None: it is none."""
    rank = dist.get_rank()
    with TensorAllReduce(rank=rank, workers=2, job=name, format="fix32", timeout_s=20.0) as all_reduce:
        fails: Any = patch.object(tensors, "is_plain", no_memory)
        if copied_bytes is not None:
            all_reduce._platforms = {"cpu": partial(CpuPlatform, copied_bytes=copied_bytes)}
            fails = patch.object(HostStream, "pinned", no_memory)
        all_reduce(torch.ones(LARGE))
        first, second = torch.ones(LARGE), torch.full((LARGE,), 10.0)
        with fails if rank == 0 else nullcontext():
            if rank == 0:
                with pytest.raises(torch.OutOfMemoryError):
                    all_reduce.submit(first)
            else:
                all_reduce.submit(first)
        try:
            all_reduce.submit(second).result()
        except AllReduceError as error:
            return str(error)
        return f"sums of {float(second[0])}"


@pytest.mark.parametrize("copied_bytes", [None, 0, 1 << 30], ids=["cpu", "encoded", "copied"])
def test_after_a_tensor_for_which_one_rank_had_no_memory_all_get_an_error(two: World, copied_bytes: int | None) -> None:
    for said in two.run(sum_without_memory, f"memory-{copied_bytes}-{os.getpid()}", copied_bytes):
        assert LEFT_OUT in said


def average_without_memory() -> str:
    """The same of a mean of float16, whose values are divided first, in a group."""
    group: Any = dist.new_group(backend="inagg")
    first, second = torch.ones(LARGE, dtype=torch.float16), torch.ones(LARGE, dtype=torch.float16)
    average = partial(dist.all_reduce, op=dist.ReduceOp.AVG, group=group)
    average(first.clone())
    if dist.get_rank() == 0:
        with patch.object(torch.Tensor, "__truediv__", no_memory), pytest.raises(torch.OutOfMemoryError):
            average(first)
    else:
        average(first, async_op=True)
    with pytest.raises(RuntimeError) as caught:
        average(second)
    dist.barrier()
    dist.destroy_process_group(group)
    return str(caught.value)


def test_after_a_mean_for_which_one_rank_had_no_memory_all_get_an_error(two: World) -> None:
    for said in two.run(average_without_memory):
        assert LEFT_OUT in said


def sum_over_hosts_without_memory(scatter: bool) -> tuple[str, bool]:
    """What the next sum says where rank 3, of two hosts of two, had no memory for one; whether all heard of it before
    Gloo's time limit. ``scatter``: a reduce-scatter, for which no rank needs sums of another's host."""
    group: Any = dist.new_group(backend="inagg", pg_options=Options(min_bytes=0, window=16, local_size=2))
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def begin() -> Any:
        values = torch.ones(ranks * LARGE)
        if scatter:
            return group.jobs.current().join().submit(values, torch.empty(LARGE), scatter=True)
        return group.jobs.current().join().submit(values)

    begin().wait()
    dist.barrier()
    began_s = time.monotonic()
    name = "_by_place" if scatter else "_in_equal_parts"
    if rank == 3:
        with patch.object(HostAllReduce, name, no_memory), pytest.raises(torch.OutOfMemoryError):
            begin()
        with pytest.raises(RuntimeError) as caught:
            begin()
    else:
        begin()
        with pytest.raises(RuntimeError) as caught:
            begin().wait()
    in_time = time.monotonic() - began_s < 20.0
    group.abort()
    dist.barrier()
    return str(caught.value), in_time


@pytest.mark.parametrize("scatter", [False, True])
def test_where_one_rank_of_a_host_had_no_memory_the_job_ends_for_all(four: World, scatter: bool) -> None:
    found = four.run(sum_over_hosts_without_memory, scatter)
    assert [in_time for _, in_time in found] == [True] * 4
    assert "OutOfMemoryError: CUDA out of memory" in found[3][0]
