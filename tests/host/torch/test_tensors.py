"""The plain all-reduce of tensors, without a process group."""

from __future__ import annotations

import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.host.torch.cpu_platform import CpuPlatform
from tests.host.torch.ranks import LARGE, digest, equal
from tests.host.torch.world import World

from inagg_host.torch import TensorAllReduce
from inagg_host.torch.gpu.device import is_plain, view
from inagg_host.torch.tensors import check


def sum_plainly(name: str) -> tuple[list[float], str]:
    rank, workers = dist.get_rank(), dist.get_world_size()
    with TensorAllReduce(rank=rank, workers=workers, job=name) as all_reduce:
        values = torch.ones(LARGE)
        returned = all_reduce(values)
        out = torch.zeros(100, 100)
        all_reduce(torch.full((100, 100), 4.0).t(), out=out.t(), divisor=workers)
        tiny = all_reduce(torch.tensor(2.0, dtype=torch.bfloat16))
        empty = all_reduce(torch.ones(0))
        assert returned is values
        assert empty.numel() == 0
        noise = all_reduce(torch.randn(LARGE, generator=torch.Generator().manual_seed(rank)))
        return [float(values[-1]), float(out.min()), float(out.max()), float(tiny)], digest(noise)


def test_tensors_are_summed_in_place_or_elsewhere(two: World) -> None:
    values, _ = equal(two.run(sum_plainly, f"plain-{os.getpid()}"))
    assert values == [2.0, 4.0, 4.0, 4.0]


def average_halves(name: str) -> list[float]:
    """The mean of float16 that have no sum in its range, which ends at 65504."""
    workers = dist.get_world_size()
    with TensorAllReduce(rank=dist.get_rank(), workers=workers, job=name, format="fix32") as all_reduce:
        values = torch.tensor([40_000.0, -65_504.0, 0.375], dtype=torch.float16)
        means: list[float] = all_reduce(values, divisor=workers).tolist()
    return means


def test_a_mean_that_is_in_the_range_of_its_type_comes_of_a_sum_that_is_not(two: World) -> None:
    assert equal(two.run(average_halves, f"halves-{os.getpid()}")) == [40_000.0, -65_504.0, 0.375]


def refuse(name: str) -> list[str]:
    rank, workers = dist.get_rank(), dist.get_world_size()
    texts = []
    with TensorAllReduce(rank=rank, workers=workers, job=name) as all_reduce:
        given: list[tuple[Any, Any]] = [
            (torch.ones(3, dtype=torch.int32), None),
            (torch.ones(3).to_sparse(), None),
            (torch.ones(3), torch.ones(4)),
            (torch.ones(3), torch.ones(3, dtype=torch.float64)),
            (torch.ones(1).expand(LARGE), None),
            ([1.0, 2.0], None),
            (torch.ones(3), np.ones(3, np.float32)),
        ]
        for tensor, out in given:
            with pytest.raises(ValueError, match=r"cannot be summed|out is|expanded") as caught:
                all_reduce.submit(tensor, out)
            texts.append(str(caught.value))
    with pytest.raises(RuntimeError, match="this job was closed"):
        all_reduce.submit(torch.ones(3))
    return texts


def test_what_cannot_be_summed_is_refused_at_once(two: World) -> None:
    texts = equal(two.run(refuse, f"refuse-{os.getpid()}"))
    assert "torch.int32" in texts[0]
    assert "sparse" in texts[1]
    assert texts[3] == "out is torch.float64 (3,) on cpu, the values are torch.float32 (3,) on cpu"
    assert ".contiguous()" in texts[4]
    assert texts[5].startswith("tensor: list cannot be summed; give a tensor")
    assert texts[6].startswith("out: ndarray cannot be summed; give a tensor")


def sum_expanded(name: str, copied_bytes: int | None) -> tuple[list[float], int]:
    """Sums of expanded tensors, on the CPU, or on the CPU as a device; how many operations there were, though some
    were refused."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    with TensorAllReduce(rank=rank, workers=workers, job=name) as all_reduce:
        if copied_bytes is not None:
            all_reduce._platforms = {"cpu": partial(CpuPlatform, copied_bytes=copied_bytes)}
        expanded, out = torch.ones(1).expand(LARGE), torch.zeros(LARGE)
        part, parts = torch.zeros(LARGE), torch.ones(1, LARGE).expand(workers, LARGE)
        for target in (None, torch.zeros(100, 1).expand(100, LARGE // 100)):
            with pytest.raises(ValueError, match="expanded"):
                all_reduce.submit(torch.ones(100, LARGE // 100) if target is not None else expanded, target)
        with pytest.raises(ValueError, match="expanded"):
            all_reduce.submit(parts, torch.zeros(1).expand(LARGE), scatter=True)
        all_reduce(expanded, out)
        all_reduce.submit(parts, part, scatter=True).wait()
        one = all_reduce(torch.ones(1).expand(1))  # a stride of 0, and nothing that is there twice
        none = all_reduce(torch.ones(1, 1).expand(3, 0))
        assert none.numel() == 0
        return [float(out.min()), float(part.min()), float(one)], all_reduce.counters.operations


@pytest.mark.parametrize("copied_bytes", [None, 0, 1 << 30], ids=["cpu", "encoded", "copied"])
def test_expanded_tensors_are_read_and_not_written(two: World, copied_bytes: int | None) -> None:
    name = f"expanded-{copied_bytes}-{os.getpid()}"
    values, operations = equal(two.run(sum_expanded, name, copied_bytes))
    assert values == [2.0, 2.0, 2.0]
    assert operations == 3  # what is empty is none


def test_a_tensor_of_a_device_is_refused_before_anything_is_launched() -> None:
    """Whatever the device: this one has no memory."""
    expanded, target = _on_cuda((LARGE,), (0,)), _on_cuda((LARGE,), (1,))
    check(expanded, target)
    with pytest.raises(ValueError, match="expanded"):
        check(target, expanded)


def contribute_where_it_is_not_known(name: str) -> float:
    """To sums on a device, and to a part."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    with TensorAllReduce(rank=rank, workers=workers, job=name) as all_reduce:
        values, own = torch.ones(workers * LARGE), torch.zeros(workers * LARGE)
        with pytest.raises(ValueError, match="contribute"):
            all_reduce.submit(values, torch.zeros(LARGE), contributed=own, scatter=True)
        all_reduce._platforms = {"cpu": CpuPlatform}
        with pytest.raises(ValueError, match="contribute"):
            all_reduce.submit(values, contributed=own)
        return float(all_reduce(values)[0])


def test_what_a_rank_contributes_is_refused_where_it_is_not_known(two: World) -> None:
    assert equal(two.run(contribute_where_it_is_not_known, f"contributed-{os.getpid()}")) == 2.0


def test_an_out_on_another_device_is_told() -> None:
    with pytest.raises(ValueError, match=r"^out is .* on cuda:0, the values are .* on cpu$"):
        check(torch.ones(3), _on_cuda((3,), (1,)))


def contribute_to_what_does_not_fit(name: str) -> list[str]:
    texts, strided = [], torch.zeros(6)[::2]
    with TensorAllReduce(rank=dist.get_rank(), workers=dist.get_world_size(), job=name) as all_reduce:
        for contributed in (strided, [0.0] * 3, strided.contiguous()):
            try:
                all_reduce.submit(torch.ones(3), contributed=contributed).wait()  # type: ignore[arg-type]
            except ValueError as error:
                texts.append(str(error))
    return texts


def test_room_for_what_is_contributed_that_does_not_fit_is_named_with_what_to_do(two: World) -> None:
    strided, listed = equal(two.run(contribute_to_what_does_not_fit, f"room-{os.getpid()}"))
    assert "contributed is torch.float32 (3,) on cpu with strides (2,): give one that is contiguous" in strided
    assert "contributed: list is no tensor" in listed


def _on_cuda(shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """What is asked of a CUDA tensor of float32."""
    fake: Any = SimpleNamespace(
        shape=torch.Size(shape), dtype=torch.float32, device=torch.device("cuda", 0), layout=torch.strided,
        stride=lambda: stride, is_contiguous=lambda: 0 not in stride,
    )  # fmt: skip
    tensor: torch.Tensor = fake
    return tensor


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_view_is_the_same_memory(dtype: torch.dtype) -> None:
    tensor = torch.ones(6, dtype=dtype)
    array = view(tensor)
    array[0] = 0
    assert tensor[0] == 0
    assert array.ctypes.data == tensor.data_ptr()
    assert array.dtype.itemsize == tensor.itemsize


def test_strided_and_lazily_negated_tensors_are_not_plain() -> None:
    assert is_plain(torch.ones(3, 2))
    assert not is_plain(torch.ones(3, 2).t())
    assert not is_plain(torch.ones(3, dtype=torch.complex64).conj().imag)
