"""CUDA tensors on a GPU. What of them needs none is in test_stage.py and test_stage_ends.py."""

from __future__ import annotations

import ctypes
import os
import time

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.names import reduce_scatter_single
from tests.host.torch.ranks import LARGE, digest, equal
from tests.host.torch.test_stage import sum_both_ways
from tests.host.torch.world import World

from inagg_host.torch import InaggState, inagg_hook

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("fmt", "policy"), [("nat8", "raise"), ("dith8", "raise"), ("nat8", "fallback")])
def test_sums_of_gpu_tensors_have_the_bits_of_those_of_cpu_tensors(two: World, fmt: str, policy: str) -> None:
    name = f"gpu-{fmt}-{policy}-{os.getpid()}"
    usual, on_gpu = equal(two.run(sum_both_ways, name, fmt, policy, "cuda"))
    assert on_gpu == usual


def wait_in_the_driver() -> tuple[int, list[float]]:
    """What the driver says to who waits there for sums, and keeps the interpreter's lock; the sums."""
    device, driver = torch.device("cuda", 0), ctypes.PyDLL("libcuda.so.1")
    dist.all_reduce(torch.ones(LARGE, device=device))  # compiles
    dist.barrier()
    tensors = [torch.full((size,), 4.0, device=device) for size in (1 << 22, 1 << 10) for _ in range(4)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    return driver.cuCtxSynchronize(), [float(tensor.min().cpu()) for tensor in tensors]


def test_sums_come_though_who_waits_in_the_driver_keeps_the_interpreters_lock(two: World) -> None:
    assert equal(two.run(wait_in_the_driver)) == (0, [8.0] * 8)


def sum_on_the_second_gpu() -> list[bool]:
    """Whether the first GPU has a context of this process, after all ways to wait for sums of the second one."""
    device = torch.device("cuda", 1)
    for size in (LARGE, 8):
        tensor = torch.ones(size, device=device)
        dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()).wait()
        dist.all_reduce(tensor)
        torch.cuda.synchronize(device)
    driver, active, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), list[bool]()
    for ordinal in range(2):
        driver.cuDevicePrimaryCtxGetState(ordinal, ctypes.byref(ctypes.c_uint()), ctypes.byref(active))
        found.append(bool(active.value))
    return found


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU, or none")
def test_a_rank_of_the_second_gpu_uses_nothing_of_the_first(again: World) -> None:
    assert equal(again.run(sum_on_the_second_gpu)) == [False, True]


def sum_on_gpu() -> tuple[list[float], str]:
    """Both ranks on one GPU: in place, strided, chained, scattered, and a CPU tensor after them."""
    device = torch.device("cuda", 0)
    large = torch.ones(LARGE, device=device)
    work = dist.all_reduce(large, async_op=True)
    work.wait()
    doubled = large * 2  # on the current stream, after the sums have arrived
    strided = torch.ones(300, 200, device=device).t()
    dist.all_reduce(strided)
    future = dist.all_reduce(torch.full((LARGE,), 4.0, device=device), async_op=True).get_future()
    chained = future.then(lambda done: done.value()[0] + 1).wait()
    part = torch.zeros(LARGE, device=device)
    reduce_scatter_single(part, torch.ones(2 * LARGE, device=device))
    after = torch.ones(LARGE)
    dist.all_reduce(after)
    results = [doubled, strided, chained, part, after]
    return [float(x.min().cpu()) for x in results], digest(*(x.cpu() for x in results))


def test_cuda_tensors_are_summed(two: World) -> None:
    values, _ = equal(two.run(sum_on_gpu))
    assert values == [4.0, 2.0, 9.0, 2.0, 2.0]


def train_on_gpu() -> str:
    device = torch.device("cuda", 0)
    with InaggState(min_bytes=0) as state:
        layers = [torch.nn.Linear(512, 512) for _ in range(4)]
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device), bucket_cap_mb=1.0)
        model.register_comm_hook(state, inagg_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(5):
            optimizer.zero_grad()
            model(torch.full((8, 512), 1.0 + step + dist.get_rank(), device=device)).square().mean().backward()
            optimizer.step()
        return digest(*(p.cpu() for p in model.parameters()))


def test_ddp_on_a_gpu_has_the_same_parameters_on_all_ranks(beside: World) -> None:
    equal(beside.run(train_on_gpu))


def launch_without_waiting() -> bool:
    """Whether submitting returns while the stream is still busy, for half a second, with what comes before."""
    device = torch.device("cuda", 0)
    values = torch.ones(1 << 20, device=device)
    dist.all_reduce(values)
    torch.cuda.synchronize(device)
    torch.cuda._sleep(1_000_000_000)  # type: ignore[no-untyped-call]  # cycles
    busy_until = torch.cuda.current_stream(device).record_event()
    work = dist.all_reduce(values, async_op=True)
    submitted_while_busy = not busy_until.query()
    work.wait()
    torch.cuda.synchronize(device)
    return submitted_while_busy


def test_submitting_does_not_wait_for_the_stream(two: World) -> None:
    assert two.run(launch_without_waiting) == [True, True]


def capture_meanwhile() -> float:
    """A graph that is captured while sums come, which the host waits for, too."""
    device = torch.device("cuda", 0)
    values, other = torch.ones(LARGE, device=device), torch.zeros(1, device=device)
    dist.all_reduce(values)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    future = dist.all_reduce(values, async_op=True).get_future()
    with torch.cuda.graph(graph):  # from here on no thread may do what might disturb it
        other += 1
        give_up_s = time.monotonic() + 20
        while not future.done() and time.monotonic() < give_up_s:
            time.sleep(0.001)
    graph.replay()
    return float(future.value()[0].min().cpu() + other.cpu())


def test_a_graph_can_be_captured_while_sums_come(two: World) -> None:
    assert two.run(capture_meanwhile) == [5.0, 5.0]
