"""How groups end that have sums on their way for which a stream waits, and no thread. On the CPU as a device.

On a GPU: `test_gpu_ends.test_sums_for_which_a_stream_waits_come_before_their_group_ends`,
`test_gpu_ends.test_a_stream_that_waits_in_vain_goes_on_after_the_time_limit` (a device that is stuck), and
`test_gpu_ends.test_the_values_of_a_reduce_scatter_may_be_used_again_once_the_sums_are_there`. Who changes the one looks
at the other.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from tests.host.torch.cpu_platform import CpuPlatform, either_way
from tests.host.torch.ranks import LARGE
from tests.host.torch.world import World

from inagg_host.torch.backend import InaggGroup
from inagg_host.torch.cuda import Stage
from inagg_host.torch.tensors import TensorAllReduce

PATIENCE_S = 20.0


def make_group(copied_bytes: int) -> tuple[InaggGroup, Stage]:
    """A group, and what sums its tensors, of which a first one has come."""
    group: Any = dist.new_group(backend="inagg")
    sums = group.jobs.own.join()
    sums._platforms = {"cpu": partial(CpuPlatform, copied_bytes=copied_bytes)}
    dist.all_reduce(torch.ones(LARGE), group=group)
    dist.barrier()
    return group, sums.stage(torch.device("cpu"))


def destroy_at_once(copied_bytes: int) -> tuple[float, float]:
    """The least and the largest sum of a tensor that nobody has waited for when its group was destroyed."""
    group, _ = make_group(copied_bytes)
    tensor = torch.ones(LARGE)
    if dist.get_rank() == 1:
        time.sleep(0.2)
    dist.all_reduce(tensor, async_op=True, group=group)
    dist.destroy_process_group(group)
    return float(tensor.min()), float(tensor.max())


@either_way
def test_sums_that_are_on_their_way_come_before_their_group_ends(two: World, copied_bytes: int) -> None:
    assert two.run(destroy_at_once, copied_bytes) == [(2.0, 2.0)] * 2


def leave_at_once(name: str, copied_bytes: int) -> tuple[float, float]:
    """The same of a job that is left, at the end of a block."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(LARGE)
    with TensorAllReduce(rank=rank, workers=workers, job=name) as all_reduce:
        all_reduce._platforms = {"cpu": partial(CpuPlatform, copied_bytes=copied_bytes)}
        if rank == 1:
            time.sleep(0.2)
        all_reduce.submit(tensor)
    return float(tensor.min()), float(tensor.max())


@either_way
def test_sums_that_are_on_their_way_come_before_a_block_ends(two: World, copied_bytes: int) -> None:
    assert two.run(leave_at_once, f"left-{copied_bytes}-{time.time_ns()}", copied_bytes) == [(2.0, 2.0)] * 2


def abort_while_stuck(copied_bytes: int) -> bool:
    """Whether a group is aborted in time whose device is stuck in what its inner group does."""
    group, stage = make_group(copied_bytes)
    inner, stuck = group.inner, threading.Event()
    if dist.get_rank() == 0:
        group.inner = cast("Any", SimpleNamespace(abort=stuck.set))  # as NCCL's kernels end
        stage.device.scan_stream.do(stuck.wait)
        dist.all_reduce(torch.ones(LARGE), async_op=True, group=group)
    ends = threading.Thread(target=group.abort, daemon=True)
    ends.start()
    ends.join(PATIENCE_S)
    in_time = not ends.is_alive()
    stuck.set()
    ends.join()
    group.inner = inner
    dist.barrier()
    dist.destroy_process_group(group)
    return in_time


@either_way
def test_a_group_is_aborted_though_the_device_is_stuck_in_its_inner_group(two: World, copied_bytes: int) -> None:
    assert two.run(abort_while_stuck, copied_bytes) == [True, True]


def submit_when_all_is_over(copied_bytes: int) -> str:
    """What a tensor is told of a job that is over, while the device is stuck."""
    group, stage = make_group(copied_bytes)
    stuck, told = threading.Event(), list[str]()
    group.jobs.abort()
    stage.device.scan_stream.do(stuck.wait)

    def submit() -> None:
        try:
            stage.submit(torch.ones(LARGE), torch.ones(LARGE), 1, torch.ones(LARGE), 0, 0, False)
        except RuntimeError as error:
            told.append(str(error))

    thread = threading.Thread(target=submit, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    in_time = not thread.is_alive()
    stuck.set()
    thread.join()
    dist.barrier()
    dist.destroy_process_group(group)
    return told[0] if in_time else "not in time"


@either_way
def test_what_comes_after_the_end_is_told_so_though_the_device_is_stuck(two: World, copied_bytes: int) -> None:
    for told in two.run(submit_when_all_is_over, copied_bytes):
        assert "its process group was aborted" in told or "closed" in told


def use_the_values_again(name: str) -> tuple[float, float]:
    """The sums of a rank where another rank's device uses its values again once its own sums are there."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    with TensorAllReduce(rank=rank, workers=workers, job=name, format="fix32", lanes=256) as all_reduce:
        all_reduce._platforms = {"cpu": CpuPlatform}
        values, out = torch.ones(workers, 1 << 20), torch.zeros(1 << 20)
        all_reduce.submit(values.clone(), out.clone(), scatter=True).wait()
        dist.barrier()
        work = all_reduce.submit(values, out, scatter=True)
        if rank == 0:
            stream = all_reduce.stage(values.device).device.decode_stream
            stream.record_event().synchronize()  # for which the training stream waits, see `Arrival`
            values.mul_(0.5)
        work.wait()
        dist.barrier()
    return float(out.min()), float(out.max())


def test_the_values_of_a_reduce_scatter_may_be_used_again_once_the_sums_are_there(two: World) -> None:
    assert two.run(use_the_values_again, f"again-{time.time_ns()}") == [(2.0, 2.0)] * 2
