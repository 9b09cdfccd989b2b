"""Tensors beside the training stream, on the CPU as a device: what of CUDA tensors needs no GPU."""

from __future__ import annotations

import gc
import os
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.cpu_platform import CpuPlatform, NoKernels, either_way
from tests.host.torch.ranks import LARGE, digest, equal
from tests.host.torch.world import World
from torch._C._distributed_c10d import PrefixStore

from inagg_host.codec.ordered import load_word, store_word
from inagg_host.codec.staging import Arriving, Board
from inagg_host.task import make_task
from inagg_host.torch import TensorAllReduce, cuda
from inagg_host.torch.inner import ArrayGroup


def sum_through_stage(name: str, one_queue: bool) -> tuple[list[float], str]:
    """CPU tensors take the way of CUDA tensors: in order, futures and all."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    with TensorAllReduce(rank=rank, workers=workers, job=name) as all_reduce:
        all_reduce._platforms = {"cpu": partial(CpuPlatform, one_queue=one_queue)}
        tensors = [torch.full((LARGE + i,), 2.0 ** (i % 4)) for i in range(10)]
        works = [all_reduce.submit(tensor) for tensor in tensors]
        chained = [work.get_future().then(lambda done: float(done.value()[0][0])) for work in works]
        out = torch.zeros(200, 100)
        all_reduce.submit(torch.ones(100, 200).t(), out, divisor=workers).wait()
        values = [*torch.futures.wait_all(chained), float(out.min())]
        noise = all_reduce(torch.randn(LARGE, generator=torch.Generator().manual_seed(rank)))
    with pytest.raises(RuntimeError, match="closed"):
        all_reduce.submit(torch.ones(LARGE)).wait()
    return values, digest(noise)


@pytest.mark.parametrize("one_queue", [False, True], ids=["streams of their own", "one queue"])
def test_the_stage_keeps_the_order(two: World, one_queue: bool) -> None:
    values, _ = equal(two.run(sum_through_stage, f"stage-{one_queue}-{os.getpid()}", one_queue))
    assert values == [2.0 * 2.0 ** (i % 4) for i in range(10)] + [1.0]


def boards_left(name: str) -> int:
    """How much of the memory that host and device reach is left after some sums, without the garbage collector."""
    with TensorAllReduce(rank=dist.get_rank(), workers=dist.get_world_size(), job=name) as all_reduce:
        all_reduce._platforms = {"cpu": CpuPlatform}
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                all_reduce(torch.ones(LARGE))
            deadline_s = time.monotonic() + 5.0
            left = 5
            while left and time.monotonic() < deadline_s:  # a thread may still be on its way out of the last one
                left = sum(type(thing) is Board for thing in gc.get_objects())
        finally:
            gc.enable()
    return left


def test_memory_of_what_is_over_is_free_at_once(two: World) -> None:
    assert two.run(boards_left, f"boards-{os.getpid()}") == [0, 0]


def sum_both_ways(
    name: str, fmt: str, policy: str, device: str = "cpu", copied_bytes: int = 0, lacking: int = 0
) -> tuple[list[str], list[str]]:
    """Digests of sums of CPU tensors, and of the same on ``device`` through the stage: same seed, slots and noise.
    ``copied_bytes``: of the CPU as a device; so many ranks are ``lacking`` what their kernels need."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    platform = NoKernels if rank < lacking else CpuPlatform
    store = PrefixStore(f"{name}/", dist.distributed_c10d._get_default_store())

    def sums(staged: bool, attempt: int) -> tuple[int, list[str]]:
        inner = None
        if policy == "fallback":
            inner = ArrayGroup(
                PrefixStore(f"{staged}-{attempt}/", store), rank, workers, dist.distributed_c10d.default_pg_timeout
            )
        options: dict[str, Any] = {
            "job": f"{name}-{staged}-{attempt}",
            "format": fmt,
            "seed": 5,
            "window": 64,
            "policy": policy,
            "inner": inner,
        }
        with TensorAllReduce(rank=rank, workers=workers, **options) as all_reduce:
            network = all_reduce.arrays._network
            assert network is not None
            base = network.engine.epoch.shards[0].lease.base
            if staged and device == "cpu":
                all_reduce._platforms = {"cpu": partial(platform, copied_bytes=copied_bytes)}
            here = torch.device(device if staged else "cpu")
            generator = torch.Generator().manual_seed(rank)
            found = []
            for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
                large = torch.randn(300, 3000, generator=generator).to(dtype).to(here)
                large[5, 7] = float("nan")
                out = torch.empty(3000, 300, dtype=dtype, device=here).t()
                all_reduce.submit(large, out, divisor=workers).wait()
                other = torch.randn(7000, generator=generator).to(dtype).to(here)
                works = [all_reduce.submit(part) for part in (large.t()[:100], other)]
                for work in works:
                    work.get_future().wait()
                found += [digest(part.cpu()) for part in (out, large.t()[:100], other)]
                pieces = torch.randn(workers, 50, 101, generator=generator).to(dtype).to(here)
                mine = torch.empty(101, 50, dtype=dtype, device=here).t()
                all_reduce.submit(pieces, mine, divisor=workers, scatter=True).wait()
                found += _of_all(mine.cpu().contiguous())
        if inner is not None:
            inner.close()
        dist.barrier()
        return base, found

    # The noise depends on the slots, and the first job may not have given its own back when the second one begins.
    for attempt in range(10):
        (usual_base, usual), (staged_base, staged) = sums(False, attempt), sums(True, attempt)
        if usual_base == staged_base:
            return usual, staged
    raise AssertionError("the jobs never had the same slots")


@pytest.mark.parametrize("fmt", ["nat8", "dith8", "fix32"])
def test_a_tensor_that_is_encoded_where_it_is_has_the_same_sums(two: World, fmt: str) -> None:
    usual, staged = equal(two.run(sum_both_ways, f"ways-{fmt}-{os.getpid()}", fmt, "raise"))
    assert staged == usual


def test_small_tensors_that_are_copied_among_large_ones_have_the_same_sums(two: World) -> None:
    usual, staged = equal(two.run(sum_both_ways, f"ways-mixed-{os.getpid()}", "nat8", "raise", "cpu", 100_000))
    assert staged == usual


@pytest.mark.parametrize("lacking", [1, 2], ids=["one rank", "all ranks"])
def test_what_is_copied_since_kernels_cannot_be_loaded_has_the_same_sums(two: World, lacking: int) -> None:
    name = f"ways-lacking-{lacking}-{os.getpid()}"
    usual, staged = equal(two.run(sum_both_ways, name, "nat8", "raise", "cpu", 0, lacking))
    assert staged == usual


def copy_beside_what_waits(name: str) -> tuple[list[int], bool, float]:
    """What a device is told to encode, of a large tensor and a small one; whether the small one has come to the host
    while the large one waits for the other rank; its sums."""
    platform, made = CpuPlatform(torch.device("cpu"), copied_bytes=1000), list[Arriving]()

    def make(*arguments: Any) -> Arriving:
        made.append(Arriving(*arguments))
        return made[-1]

    with (
        patch.object(cuda, "Arriving", make),
        TensorAllReduce(rank=dist.get_rank(), workers=dist.get_world_size(), job=name) as all_reduce,
    ):
        all_reduce._platforms = {"cpu": lambda device: platform}
        all_reduce(torch.ones(250))  # compiles
        del platform.launched[:]
        dist.barrier()
        if dist.get_rank() == 1:
            dist.barrier()
        large, small = torch.ones(LARGE), torch.full((250,), 3.0)
        works = [all_reduce.submit(large), all_reduce.submit(small)]
        deadline_s = time.monotonic() + 10.0
        while load_word(made[1].arrived) == 0 and time.monotonic() < deadline_s:
            time.sleep(0.001)
        copied = load_word(made[1].arrived) != 0
        if dist.get_rank() == 0:
            dist.barrier()
        for work in works:
            work.wait()
        assert float(large.min()) == 2.0
    return [given["elements"] for _, given in platform.launched], copied, float(small.max())


def test_a_small_tensor_comes_to_the_host_while_one_before_it_waits_for_the_network(two: World) -> None:
    launched, copied, largest = equal(two.run(copy_beside_what_waits, f"beside-{os.getpid()}"))
    assert set(launched) == {LARGE}
    assert copied
    assert 4.0 <= largest <= 8.0  # of 6, which is rounded


def sum_what_has_arrived(name: str) -> tuple[list[float], int]:
    """Sums of values that have arrived in the host's memory; the word that tells of them, when whoever waits knows."""
    words, values = torch.zeros(2, dtype=torch.int64).numpy(), torch.ones(100).numpy()
    with TensorAllReduce(rank=dist.get_rank(), workers=dist.get_world_size(), job=name) as all_reduce:
        arriving = Arriving(all_reduce.arrays.wake, words, values, lambda: None)
        store_word(arriving.arrived, 1)
        sums = all_reduce.arrays.submit_task(
            make_task(values, None), all_reduce.arrays.take_turn(), 0, arriving
        ).result()
        return [float(sums.min()), float(sums.max())], load_word(arriving.summed)


def test_a_device_is_told_of_sums_as_soon_as_they_are_in_the_memory_of_the_host(two: World) -> None:
    assert equal(two.run(sum_what_has_arrived, f"arrived-{os.getpid()}")) == ([2.0, 2.0], 1)


def test_a_tensor_that_is_staged_for_the_fallback_has_the_same_sums(two: World) -> None:
    usual, staged = equal(two.run(sum_both_ways, f"ways-fallback-{os.getpid()}", "nat8", "fallback"))
    assert staged == usual


def _of_all(part: torch.Tensor) -> list[str]:
    """Digests of what all ranks have."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return [digest(one) for one in parts]


def sum_with_another_default(name: str, copied_bytes: int) -> list[float]:
    """Tensors that lie in order, and strided ones, where new tensors are on another device unless it is said."""
    with TensorAllReduce(rank=dist.get_rank(), workers=dist.get_world_size(), job=name) as all_reduce:
        tensors = [torch.ones(100, 200), torch.ones(200, 100).t()]
        with torch.device("meta"):
            for tensor in tensors:
                all_reduce(tensor)
            all_reduce._platforms = {"cpu": partial(CpuPlatform, copied_bytes=copied_bytes)}
            for tensor in tensors:
                all_reduce(tensor)
    return [float(tensor.min()) for tensor in tensors]


@either_way
def test_tensors_are_summed_whatever_the_default_device_is(two: World, copied_bytes: int) -> None:
    assert equal(two.run(sum_with_another_default, f"default-{copied_bytes}-{os.getpid()}", copied_bytes)) == [4.0, 4.0]


def scatter_over_values(name: str) -> tuple[list[bool], list[float]]:
    """Whether sums are decoded over values, where ``out`` is the own piece of them, and the other rank's; its sums."""
    rank, platform = dist.get_rank(), CpuPlatform(torch.device("cpu"))
    with TensorAllReduce(rank=rank, workers=dist.get_world_size(), job=name) as all_reduce:
        all_reduce._platforms = {"cpu": lambda device: platform}
        over, sums = [], []
        for piece in (rank, 1 - rank):
            values = torch.ones(2, LARGE)
            all_reduce(torch.ones(8))  # compiles
            del platform.launched[:]
            all_reduce.submit(values, values[piece], scatter=True).wait()
            begin, end = values.data_ptr(), values.data_ptr() + values.nbytes
            over.append(any(begin <= given["out"] < end for _, given in platform.launched if "divisor" in given))
            sums.append(float(values[piece].min()))
    return over, sums


def test_sums_are_not_written_over_values_that_may_not_be_encoded_yet(two: World) -> None:
    assert equal(two.run(scatter_over_values, f"over-{os.getpid()}")) == ([True, False], [2.0, 2.0])


def test_nothing_is_left_of_a_stage_that_got_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays: Any = SimpleNamespace(config=SimpleNamespace(policy="fallback"), timeout_s=1.0)
    platform, start = CpuPlatform(torch.device("cpu")), threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == "inagg-device":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        cuda.Stage(arrays, platform)
    assert not [thread for thread in threading.enumerate() if thread.name in ("inagg-pulse", "inagg-watchdog")]
