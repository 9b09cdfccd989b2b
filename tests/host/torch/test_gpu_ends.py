"""On a GPU that ranks share: what is on its way when a group ends or its memory is used again, what does not come, and
hosts of several ranks. What of that needs no GPU is in test_stage_close.py, test_stage_ends.py and test_hosts.py."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.names import reduce_scatter_single
from tests.host.torch.ranks import digest, equal, world
from tests.host.torch.world import World
from torch.nn.parallel import DistributedDataParallel

from inagg_host.allreduce import AllReduceError
from inagg_host.io.watchdog import Watchdog
from inagg_host.torch import InaggState, Options, TensorAllReduce, cuda, inagg_hook

pytestmark = pytest.mark.gpu

COPIED, ENCODED = 1 << 14, 1 << 21
"""Elements of tensors that are copied to the host, and that the device encodes."""
either_way = pytest.mark.parametrize("elements", [COPIED, ENCODED], ids=["copied", "encoded"])


def destroy_at_once(elements: int) -> tuple[float, float]:
    """The least and the largest sum of a tensor for which a stream alone has waited when its group was destroyed."""
    device = torch.device("cuda", 0)
    group = dist.new_group(backend="inagg")
    dist.all_reduce(torch.ones(elements, device=device), group=group)  # compiles
    values = torch.full((elements,), 2.0, device=device)
    torch.cuda.synchronize(device)
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(0.2)
    dist.all_reduce(values, group=group)
    dist.destroy_process_group(group)
    return float(values.min()), float(values.max())


@either_way
def test_sums_for_which_a_stream_waits_come_before_their_group_ends(two: World, elements: int) -> None:
    assert two.run(destroy_at_once, elements) == [(4.0, 4.0)] * 2


def use_the_values_again(elements: int) -> list[tuple[float, float]]:
    """The sums of reduce-scatters whose values are overwritten on the stream as soon as that has this rank's sums."""
    device, n = torch.device("cuda", 0), dist.get_world_size()
    found = []
    for _ in range(10):
        values, out = torch.ones(n * elements, device=device), torch.zeros(elements, device=device)
        torch.cuda.synchronize(device)
        dist.barrier()
        reduce_scatter_single(out, values)
        values.mul_(0.5)
        found.append((float(out.min()), float(out.max())))
    return found


@either_way
def test_the_values_of_a_reduce_scatter_may_be_used_again_once_the_sums_are_there(two: World, elements: int) -> None:
    assert equal(two.run(use_the_values_again, elements)) == [(2.0, 2.0)] * 10


def chain_to_coalesced(elements: int) -> list[float]:
    """What is chained to the future of several tensors finds the sums of all of them on its stream."""
    device = torch.device("cuda", 0)
    tensors = [torch.full((elements + i,), 2.0**i, device=device) for i in range(4)]
    future = world().allreduce_coalesced(tensors).get_future().then(lambda done: [part * 2 for part in done.value()])
    return [float(part.min().cpu()) for part in future.wait()]


@either_way
def test_what_is_chained_to_several_sums_finds_all_of_them(two: World, elements: int) -> None:
    assert equal(two.run(chain_to_coalesced, elements)) == [4.0 * 2.0**i for i in range(4)]


def try_to_capture() -> tuple[str, float, float]:
    """What a graph says that an all-reduce is to be captured into, and sums after it."""
    device = torch.device("cuda", 0)
    values = torch.ones(COPIED, device=device)
    dist.all_reduce(values)
    torch.cuda.synchronize(device)
    said, graph = "", torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            dist.all_reduce(values)
    except RuntimeError as error:
        said = str(error)
    dist.all_reduce(values)
    return said, float(values.min()), float(values.max())


def test_what_cannot_be_captured_says_so_and_nothing_is_lost(again: World) -> None:
    said, least, most = equal(again.run(try_to_capture))
    assert "CUDA graph" in said
    assert (least, most) == (4.0, 4.0)


LIMIT_S = 3.0


def wait_in_vain(name: str, elements: int) -> tuple[bool, int, bool]:
    """Of rank 0, whose sums do not come since the other rank never submits: whether it waited in CUDA's driver, with
    the interpreter's lock, no longer than some time limits; what the driver says; and whether the sums are NaN."""
    device, driver = torch.device("cuda", 0), ctypes.PyDLL("libcuda.so.1")
    found = True, 0, True
    rank = dist.get_rank()
    with (
        patch.object(cuda, "Watchdog", partial(Watchdog, patience_s=0.5)),
        TensorAllReduce(rank=rank, workers=2, job=name, timeout_s=LIMIT_S) as all_reduce,
    ):
        all_reduce(torch.ones(elements, device=device))  # compiles
        torch.cuda.synchronize(device)
        dist.barrier()
        if rank == 0:
            values = torch.ones(elements, device=device)
            all_reduce.submit(values).wait()
            began_s = time.monotonic()
            code = driver.cuCtxSynchronize()
            found = time.monotonic() - began_s < 5 * LIMIT_S, code, bool(values.isnan().all())
        dist.barrier()
    return found


@either_way
def test_a_stream_that_waits_in_vain_goes_on_after_the_time_limit(again: World, elements: int) -> None:
    assert again.run(wait_in_vain, f"vain-{elements}-{os.getpid()}", elements)[0] == (True, 0, True)


FAULT = """
import sys, time
import torch
from inagg_host.torch import TensorAllReduce

rank, elements, device = int(sys.argv[2]), int(sys.argv[3]), torch.device("cuda", 0)
job = f"fault-{elements}"
with TensorAllReduce(switch=sys.argv[1], rank=rank, workers=2, job=job, timeout_s=60.0) as all_reduce:
    values = torch.ones(elements, device=device)
    all_reduce(values)  # compiles
    torch.cuda.synchronize(device)
    began_s = time.monotonic()
    try:
        works = [all_reduce.submit(torch.ones(elements, device=device)) for _ in range(4)]
        if rank == 1:
            values[torch.tensor([elements + 5], device=device)] = 1.0
        works += [all_reduce.submit(values) for _ in range(4)]
        for work in works:
            work.result()
    except Exception as error:
        print(f"after {time.monotonic() - began_s:.0f} s {type(error).__name__}: {error}", flush=True)
        raise SystemExit(time.monotonic() - began_s > 20.0) from None
    raise SystemExit("no error")
"""
"""Rank 1 writes beyond a tensor, a device-side assert, while sums are on their way."""


@either_way
def test_all_ranks_hear_of_a_kernel_that_fails_while_sums_are_on_their_way(switch: str, elements: int) -> None:
    """Long before the time limit. The device's context is lost, hence processes of their own."""
    command = [sys.executable, "-c", FAULT, switch]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(elements)], cwd=Path(__file__).parents[3], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=100.0)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert "AllReduceError" in said[0], said
    assert ranks[0].returncode == 0, said
    assert "no error" not in said[1], said


def sum_without_memory(name: str) -> str:
    """What a sum says after one of the same shape for which rank 0 had no memory on the GPU."""
    device, rank = torch.device("cuda", 0), dist.get_rank()
    elements = 2 * ENCODED  # more than a segment of PyTorch's allocator: only a new one meets the limit below
    with TensorAllReduce(rank=rank, workers=2, job=name, timeout_s=30.0) as all_reduce:
        all_reduce(torch.ones(elements, device=device))  # compiles
        all_reduce.drain()  # else its memory is not free yet, and is not given back
        first, second = (
            torch.ones(1024, elements // 1024, device=device).t() for _ in range(2)
        )  # to be copied in order
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        dist.barrier()
        if rank == 0:
            torch.cuda.set_per_process_memory_fraction(1e-6, device)
            with pytest.raises(torch.OutOfMemoryError):
                all_reduce.submit(first)
            torch.cuda.set_per_process_memory_fraction(1.0, device)
        else:
            all_reduce.submit(first)
        with pytest.raises(AllReduceError) as caught:
            all_reduce.submit(second).result()
    return str(caught.value)


def test_after_a_tensor_for_which_one_gpu_had_no_memory_all_ranks_get_an_error(again: World) -> None:
    for said in again.run(sum_without_memory, f"memory-{os.getpid()}"):
        assert "has left that out" in said


def sum_over_hosts(elements: int) -> tuple[list[float], list[str]]:
    """Two hosts of two ranks, all on one GPU, and their sums: in place, averaged, strided, chained, scattered. Also
    their bits, those of CPU tensors after them."""
    device, rank, n = torch.device("cuda", 0), dist.get_rank(), dist.get_world_size()
    found, bits = list[float](), list[str]()
    for where in (device, torch.device("cpu")):
        group = dist.new_group(backend="inagg", pg_options=Options(min_bytes=0, format="fix32", local_size=2, seed=5))
        whole, mean = (torch.full((elements + 1,), 2.0**rank, device=where) for _ in range(2))
        dist.all_reduce(whole, group=group)
        doubled = whole * 2  # on the current stream, after the sums have come
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
        strided = torch.ones(30, 50, device=where).t()
        dist.all_reduce(strided, group=group)
        future = dist.all_reduce(whole, group=group, async_op=True).get_future()
        chained = future.then(lambda done: done.value()[0] + 1).wait()
        part = torch.zeros(elements, device=where)
        reduce_scatter_single(part, torch.ones(n * elements, device=where) * 2.0**rank, group=group)
        results = [doubled, mean, strided, chained, part]
        found += [float(x.min().cpu()) for x in results] + [float(x.max().cpu()) for x in results]
        bits.append(digest(*(x.cpu() for x in results)))
        dist.destroy_process_group(group)
    return found, bits


@either_way
def test_hosts_of_several_ranks_sum_gpu_tensors(make_world: Callable[..., World], elements: int) -> None:
    with make_world(4, backend="gloo") as four:
        found, (on_gpu, on_cpu) = equal(four.run(sum_over_hosts, elements))
    assert found == [30.0, 3.75, 4.0, 61.0, 15.0] * 4
    assert on_gpu == on_cpu


def test_hosts_of_several_ranks_sum_gpu_tensors_for_which_the_host_waits(make_world: Callable[..., World]) -> None:
    with make_world(4, backend="gloo", INAGG_BLOCKING_WAIT="1") as four:
        found, (on_gpu, on_cpu) = equal(four.run(sum_over_hosts, COPIED))
    assert found == [30.0, 3.75, 4.0, 61.0, 15.0] * 4
    assert on_gpu == on_cpu


def train_over_hosts() -> tuple[str, bool]:
    """The parameters after some steps of DDP, and whether they have changed."""
    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    with InaggState(min_bytes=0, local_size=2) as state:
        layers = [torch.nn.Linear(512, 512) for _ in range(4)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device), bucket_cap_mb=1.0)
        model.register_comm_hook(state, inagg_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        before = [p.detach().clone() for p in model.parameters()]
        for step in range(5):
            optimizer.zero_grad()
            model(torch.full((8, 512), 1.0 + step + dist.get_rank(), device=device)).square().mean().backward()
            optimizer.step()
        changed = any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
        return digest(*(p.cpu() for p in model.parameters())), changed


def test_ddp_over_hosts_of_several_ranks_has_the_same_parameters_on_all(make_world: Callable[..., World]) -> None:
    with make_world(4, backend="gloo") as four:
        assert equal(four.run(train_over_hosts))[1]
