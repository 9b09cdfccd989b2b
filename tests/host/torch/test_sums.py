"""Sums and means of floats on the backend "inagg": through the switch, and alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from tests.host.torch.names import IS_OLD, SCATTER_COALESCED, new_gloo_only, reduce_scatter_single
from tests.host.torch.ranks import LARGE, Counted, digest, equal, world
from tests.host.torch.world import World
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import _coalescing_manager

from inagg_host.torch import Options
from inagg_host.torch.tensors import sharing


def sum_of_powers(op_name: str, dtype: torch.dtype) -> tuple[list[float], int, dict[str, int]]:
    """Powers of two that are the same on all ranks: their sum over two or four ranks has no rounding."""
    values = torch.tensor([1.0, -2.0, 0.0, 0.5], dtype=dtype).repeat(LARGE // 4)
    with Counted() as counted:
        dist.all_reduce(values, op=getattr(ReduceOp, op_name))
    return values[:4].tolist(), counted.carried, counted.inner


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("op", "expected"), [("SUM", [2.0, -4.0, 0.0, 1.0]), ("AVG", [1.0, -2.0, 0.0, 0.5])])
def test_sums_and_means_go_to_the_switch(two: World, op: str, expected: list[float], dtype: torch.dtype) -> None:
    if IS_OLD and op == "AVG" and dtype is torch.float64:
        pytest.skip("Gloo has no means before torch 2.13")
    where = (0, {"exact-float64": 1}) if dtype is torch.float64 else (1, {})
    assert equal(two.run(sum_of_powers, op, dtype)) == (expected, *where)


def sum_of_noise(size: int, dtype: torch.dtype) -> tuple[str, float]:
    """Fixed point, of which the error is bounded: the result, and the largest error relative to the largest value."""
    group = dist.new_group(backend="inagg", pg_options=Options(format="fix32", min_bytes=0, window=16))
    try:
        draws = [
            torch.randn(size, generator=torch.Generator().manual_seed(r)).to(dtype)
            for r in range(dist.get_world_size())
        ]
        values = draws[dist.get_rank()].clone()
        dist.all_reduce(values, group=group)
        exact = torch.stack([draw.double() for draw in draws]).sum(0)
        return digest(values), float((values.double() - exact).abs().max() / exact.abs().max())
    finally:
        dist.destroy_process_group(group)


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 0.0), (torch.bfloat16, 8e-3)], ids=str
)
def test_odd_sizes_are_summed_alike_on_all_ranks(two: World, dtype: torch.dtype, bound: float) -> None:
    for size in (1, 7, 1449, 30_011):
        results = two.run(sum_of_noise, size, dtype)
        equal([bits for bits, _ in results])
        assert all(error <= bound for _, error in results), (size, results)


def sum_strided() -> tuple[str, bool, bool]:
    """A transposed tensor and a part of another: the rest stays as it is."""
    whole = torch.full((300, 200), 2.0)
    part = whole[:, ::2]
    dist.all_reduce(part)
    transposed = torch.ones(100, 200).t()
    dist.all_reduce(transposed)
    return (
        digest(part, transposed),
        bool((whole[:, 1::2] == 2).all()),
        bool((part == 4).all() and (transposed == 2).all()),
    )


def test_tensors_need_not_be_contiguous(two: World) -> None:
    _, untouched, right = equal(two.run(sum_strided))
    assert untouched
    assert right


def wait(work: dist.Work) -> None:
    """By its future, which another thread may complete."""
    work.get_future().wait()


def sum_strided_small() -> list[tuple[float, ...]]:
    """Slices that go to the inner group, alone and with others, of which the third comes by a future."""
    seen = []
    for reduce in (
        dist.all_reduce,
        lambda part: dist.all_reduce_coalesced([part, torch.ones(3)]),
        lambda part: wait(dist.all_reduce(part, async_op=True)),
    ):
        whole = torch.tensor([1.0, 5.0, 2.0, 6.0])
        reduce(whole[::2])
        seen.append(tuple(whole.tolist()))
    return seen


def test_small_tensors_need_not_be_contiguous_either(two: World) -> None:
    """Gloo by itself sums what lies there, from the first element on."""
    assert equal(two.run(sum_strided_small)) == [(2.0, 5.0, 4.0, 6.0)] * 3


def average_large_halves(scatter: bool) -> list[float]:
    """Means in float16 of which the sums are beyond it, and what they are of."""
    values = torch.full((2 * LARGE,), 60000.0, dtype=torch.float16)
    means = torch.empty(LARGE, dtype=torch.float16) if scatter else values
    if scatter:
        reduce_scatter_single(means, values, op=ReduceOp.AVG)
    else:
        dist.all_reduce(values, op=ReduceOp.AVG)
    return [float(tensor) for both in (means, values) for tensor in (both.min(), both.max())]


@pytest.mark.parametrize("scatter", [False, True])
def test_means_of_float16_are_finite_where_their_sums_are_not(two: World, scatter: bool) -> None:
    assert equal(two.run(average_large_halves, scatter)) == [60000.0] * 4


def sum_strided_inference() -> list[float]:
    """By a future, which another thread completes."""
    with torch.inference_mode():
        values = torch.ones(100, 200).t()
        dist.all_reduce(values, async_op=True).get_future().wait()
        return [float(values.min()), float(values.max())]


def test_strided_tensors_of_inference_mode_are_summed(two: World) -> None:
    assert equal(two.run(sum_strided_inference)) == [2.0, 2.0]


def sum_a_leaf() -> float:
    parameter = torch.nn.Parameter(torch.ones(LARGE))
    dist.all_reduce(parameter.data)
    return float(parameter[0])


def test_a_parameters_data_is_summed_in_place(two: World) -> None:
    assert equal(two.run(sum_a_leaf)) == 2.0


def sum_nonfinite(dtype: torch.dtype, value: float) -> tuple[str, list[bool]]:
    """Rank 1 has one value that is not finite; by block of the switch, whether the sums are NaN."""
    lanes = 1448
    values = torch.ones(4 * lanes + 5, dtype=dtype)
    if dist.get_rank() == 1:
        values[2 * lanes + 3] = value
    group = dist.new_group(backend="inagg", pg_options=Options(format="nat8", min_bytes=0, window=16))
    dist.all_reduce(values, group=group)
    dist.destroy_process_group(group)
    return digest(values), [bool(block.isnan().all()) for block in torch.split(values, lanes)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_reach_all_ranks_alike(two: World, value: float, dtype: torch.dtype) -> None:
    _, nan = equal(two.run(sum_nonfinite, dtype, value))
    assert nan == [False, False, True, False, False]


# --- asynchronous ---


def sum_in_flight(count: int) -> tuple[list[float], list[float]]:
    """Many at once: waited for from the last to the first, and by futures with something chained."""
    tensors = [torch.full((LARGE + i,), float(2 ** (i % 5))) for i in range(count)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    firsts = [float(tensor[0]) for tensor in tensors]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future().then(lambda done: float(done.value()[0][0])) for work in works]
    return firsts, torch.futures.wait_all(futures)


def test_many_tensors_in_flight(two: World) -> None:
    waited, chained = equal(two.run(sum_in_flight, 20))
    assert waited == [2.0 * 2 ** (i % 5) for i in range(20)]
    assert chained == [4.0 * 2 ** (i % 5) for i in range(20)]


def chain_a_sum_to_a_sum() -> float:
    """What PowerSGD does: block for another operation inside of what is chained to the first."""

    def again(done: torch.futures.Future[list[torch.Tensor]]) -> float:
        (tensor,) = done.value()
        dist.all_reduce(tensor)
        return float(tensor[0])

    first = dist.all_reduce(torch.ones(LARGE), async_op=True)
    return cast(float, first.get_future().then(again).wait())


def test_what_is_chained_may_wait_for_another_sum(two: World) -> None:
    assert equal(two.run(chain_a_sum_to_a_sum)) == 4.0


# --- several at once, and reduce-scatter ---


def coalesced() -> tuple[list[float], int, dict[str, int]]:
    sizes = [10, LARGE, 20, 3 * LARGE]
    tensors = [torch.ones(size) for size in sizes]
    with Counted() as counted:
        with _coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        with _coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
    return [float(tensor[-1]) for tensor in tensors], counted.carried, counted.inner


def coalesced_by_keyword() -> list[float]:
    """As the C++ class names its arguments; one goes to the switch, one to the inner group."""
    both = [torch.ones(LARGE), torch.ones(3)]
    world().allreduce_coalesced(tensors=both, opts=dist.AllreduceCoalescedOptions()).wait()
    parts = [torch.zeros(LARGE), torch.zeros(3)]
    whole = [torch.ones(2 * LARGE), torch.ones(6)]
    getattr(world(), SCATTER_COALESCED)(outputTensors=parts, inputTensors=whole).wait()
    return [float(tensor[-1]) for tensor in both + parts]


def test_coalesced_tensors_may_be_given_by_keyword(two: World) -> None:
    assert equal(two.run(coalesced_by_keyword)) == [2.0] * 4


def test_of_coalesced_tensors_each_goes_where_it_would_alone(two: World) -> None:
    assert equal(two.run(coalesced)) == ([4.0] * 4, 4, {"small": 4})


def coalesced_with_an_expanded_one(scatter: bool) -> tuple[bool, int, float]:
    """Whether the first one, which is right, is as it was; how many sums a later one makes, and what it is."""
    first, expanded, sums = torch.ones(2 * LARGE), torch.ones(1).expand(LARGE), torch.ones(LARGE)
    part = torch.ones(LARGE)
    several: Callable[..., Any] = getattr(world(), SCATTER_COALESCED) if scatter else dist.all_reduce_coalesced
    with Counted() as counted:
        with pytest.raises(ValueError, match="expanded"):
            several([part, expanded], [first, first.clone()]) if scatter else several([first, expanded, torch.ones(3)])
        dist.all_reduce(sums)
    return bool((first == 1).all() and (part == 1).all()), counted.carried, float(sums[0])


@pytest.mark.parametrize("scatter", [False, True])
def test_none_of_coalesced_tensors_is_begun_if_one_is_refused(two: World, scatter: bool) -> None:
    assert equal(two.run(coalesced_with_an_expanded_one, scatter)) == (True, 1, 2.0)


def coalesced_with_shared_memory() -> tuple[list[float], int, dict[str, int]]:
    """One tensor twice, one that has a part of it, and halves of another one."""
    once, halves = torch.ones(LARGE), torch.ones(2, LARGE)
    tensors = [once, once, once[100:], *halves]
    with Counted() as counted:
        dist.all_reduce_coalesced(tensors)
    return [float(halves.min()), float(once[0])], counted.carried, counted.inner


def test_coalesced_tensors_that_share_memory_are_summed_once(two: World) -> None:
    assert equal(two.run(coalesced_with_shared_memory)) == ([2.0, 2.0], 2, {"shared-memory": 3})


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(0, 10), (10, 5)], set()),
        ([(0, 10), (9, 5)], {0, 1}),
        ([(50, 5), (0, 100), (60, 5), (100, 5)], {0, 1, 2}),
    ],
)
def test_tensors_share_memory_if_their_elements_lie_between_each_other(
    shapes: list[tuple[int, int]], expected: set[int]
) -> None:
    whole = torch.zeros(200)
    parts = [whole[begin : begin + size] for begin, size in shapes]
    assert sharing(dict(enumerate(parts))) == expected


def mean_beside_sum(dtype: torch.dtype) -> str:
    """What is said where a rank wants a mean and the other a sum."""
    group = dist.new_group(backend="inagg", pg_options=Options(min_bytes=0, format="nat8"))
    try:
        op = ReduceOp.AVG if dist.get_rank() == 0 else ReduceOp.SUM
        dist.all_reduce(torch.ones(LARGE, dtype=dtype), op, group)
    except RuntimeError as error:
        return str(error)
    finally:
        dist.destroy_process_group(group)
    return ""


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_mean_beside_a_sum_is_told(two: World, dtype: torch.dtype) -> None:
    assert any("another rank reduces something else" in said for said in two.run(mean_beside_sum, dtype))


def scatter_sums(op_name: str) -> tuple[list[float], float, int, dict[str, int]]:
    """Parts of which the r-th is 2^r; the last element of the input shows that it is not written to."""
    rank, n = dist.get_rank(), dist.get_world_size()
    values = torch.cat([torch.full((LARGE,), 2.0**r) for r in range(n)])
    out, other = torch.zeros(LARGE), torch.zeros(100, 100)
    with Counted() as counted:
        reduce_scatter_single(out, values, op=getattr(ReduceOp, op_name))
        work = reduce_scatter_single(out, values, op=getattr(ReduceOp, op_name), async_op=True)
        assert work.get_future().wait()[0] is out
        with _coalescing_manager():
            reduce_scatter_single(other, values.view(100 * n, 100), op=getattr(ReduceOp, op_name))
    ends = [float(x) / 2**rank for x in (out[0], out[-1], other[0, 0], other[-1, -1])]
    return ends, float(values[-1]), counted.carried, counted.inner


@pytest.mark.parametrize(("op", "expected"), [("SUM", 2.0), ("AVG", 1.0)])
def test_reduce_scatter_goes_to_the_switch(two: World, op: str, expected: float) -> None:
    assert equal(two.run(scatter_sums, op)) == ([expected] * 4, 2.0, 3, {})


def functional_collectives() -> tuple[list[list[float]], int, dict[str, int]]:
    group, values = world(), torch.cat([torch.ones(LARGE), torch.full((LARGE,), 2.0)])
    with Counted() as counted:
        sums = functional.all_reduce(values, "sum", group)
        several = functional.all_reduce_coalesced([values, values[:10]], "avg", group)
        part = functional.reduce_scatter_single(values, "avg", 0, group)
        gathered = functional.all_gather_single(values[:10], 0, group)
        exchanged = functional.all_to_all_single(values, None, None, group)
        sent = functional.broadcast(values, 0, group)
        results = [sums, *several, part / 2 ** dist.get_rank(), gathered, exchanged / 2 ** dist.get_rank(), sent]
        ends = [[float(x[0]), float(x[-1])] for x in results]
    return ends, counted.carried, counted.inner


@new_gloo_only
def test_functional_collectives(two: World) -> None:
    ends, carried, inner = equal(two.run(functional_collectives))
    assert ends == [[2, 4], [1, 2], [1, 1], [1, 1], [1, 1], [1, 1], [1, 2]]
    assert carried == 3
    assert inner == {"small": 1, "all_gather_single_coalesced": 1, "all_to_all_single": 1, "broadcast": 1}
