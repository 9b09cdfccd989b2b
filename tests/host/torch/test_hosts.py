"""Hosts of several ranks: each sums inside first, and its ranks a part each over the switch."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.names import reduce_scatter_single
from tests.host.torch.ranks import LARGE, digest, equal
from tests.host.torch.world import World
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from inagg_host.config import ConfigError
from inagg_host.torch import InaggGroup, InaggState, Options, inagg_hook

BLOCK = 1 << 20
LOCAL = 2


def noise(rank: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(rank)).to(dtype)


def sums(size: int, dtype: torch.dtype) -> tuple[str, float, int]:
    """Of noise, in a group with two hosts of two: the sums, their error, and the elements that this rank sent."""
    rank, n = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend="inagg", pg_options=Options(min_bytes=0, window=16, local_size=LOCAL))
    assert isinstance(group, InaggGroup)
    values = noise(rank, size, dtype)
    wanted = torch.stack([noise(r, size, dtype).double() for r in range(n)]).sum(0)
    dist.all_reduce(values, group=group)
    elements = group.counters.elements
    dist.destroy_process_group(group)
    return digest(values), float((values.double() - wanted).abs().max() / wanted.abs().max()), elements


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize("size", [1, 2, 1449, 30_011])
def test_all_ranks_have_the_sums_and_each_sends_its_part(
    four: World, size: int, dtype: torch.dtype, bound: float
) -> None:
    _, error, elements = equal(four.run(sums, size, dtype))
    assert error <= bound
    assert elements == -(-size // LOCAL)


def other_shapes() -> tuple[list[float], str]:
    """Strided, scattered, averaged, and many in flight."""
    rank, n = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend="inagg", pg_options=Options(min_bytes=0, window=16, local_size=LOCAL))
    transposed = torch.ones(30, 50).t()
    dist.all_reduce(transposed, group=group)
    whole, part = torch.cat([torch.full((100,), 2.0**r) for r in range(n)]), torch.zeros(100)
    reduce_scatter_single(part, whole, group=group)
    means = [torch.full((LARGE + i,), float(rank)) for i in range(10)]
    works = [dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group, async_op=True) for mean in means]
    for work in reversed(works):
        work.wait()
    futures = [dist.all_reduce(mean, group=group, async_op=True).get_future() for mean in means]
    chained = [float(tensors[0][0]) for tensors in torch.futures.wait_all(futures)]
    dist.destroy_process_group(group)
    ends = [float(transposed.min()), float(transposed.max()), float(part[0]) / 2**rank, float(whole[0])]
    return ends + chained, digest(*means)


def test_tensors_of_all_kinds_are_summed_in_order(four: World) -> None:
    values, _ = equal(four.run(other_shapes))
    assert values == [4.0, 4.0, 4.0, 1.0] + [6.0] * 10


def in_inference_mode() -> list[float]:
    """Sums of tensors that were made in it, and before."""
    group = dist.new_group(backend="inagg", pg_options=Options(min_bytes=0, window=16, local_size=LOCAL))
    before = torch.ones(LARGE)
    with torch.inference_mode():
        within = torch.ones(LARGE)
        for values in (within, before):
            dist.all_reduce(values, group=group)
        ends = [float(within.max()), float(before.max())]
    dist.destroy_process_group(group)
    return ends


def test_tensors_of_inference_mode_are_summed(four: World) -> None:
    assert equal(four.run(in_inference_mode)) == [4.0, 4.0]


def scattered(size: int) -> tuple[str, float, int]:
    """A reduce-scatter of noise with two hosts of two; what all ranks have, its error, and the elements that this rank
    sent."""
    rank, n = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend="inagg", pg_options=Options(min_bytes=0, window=16, local_size=LOCAL))
    assert isinstance(group, InaggGroup)
    values, part = noise(rank, n * size), torch.empty(size)
    wanted = torch.stack([noise(r, n * size).double() for r in range(n)]).sum(0)
    reduce_scatter_single(part, values, group=group)
    elements = group.counters.elements
    parts = [torch.empty(size) for _ in range(n)]
    dist.all_gather(parts, part)
    dist.destroy_process_group(group)
    assert torch.equal(values, noise(rank, n * size))
    return digest(*parts), float((torch.cat(parts).double() - wanted).abs().max() / wanted.abs().max()), elements


@pytest.mark.parametrize("size", [1, 1449, 7_003])
def test_scattered_sums_are_not_gathered_and_each_rank_sends_its_part(four: World, size: int) -> None:
    _, error, elements = equal(four.run(scattered, size))
    assert error <= 1e-6
    assert elements == 4 * size // LOCAL


def gradients() -> tuple[str, list[float], dict[str, int]]:
    """A DDP model whose gradients go through the hook."""
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(200, 100, bias=False))
    with InaggState(format="fix32", min_bytes=0, local_size=LOCAL) as state:
        model.register_comm_hook(state, inagg_hook)
        model(torch.full((1, 200), float(dist.get_rank()))).sum().backward()
        inner = dict(state.counters.inner)
    (parameter,) = model.parameters()
    assert parameter.grad is not None
    return digest(parameter.grad), [float(parameter.grad.min()), float(parameter.grad.max())], inner


def test_the_hook_averages_over_all_ranks(four_beside: World) -> None:
    _, ends, inner = equal(four_beside.run(gradients))
    assert ends == [1.5, 1.5]
    assert inner == {}


def one_host() -> tuple[float, dict[str, int]]:
    group = dist.new_group(backend="inagg", pg_options=Options(min_bytes=0, local_size=dist.get_world_size()))
    assert isinstance(group, InaggGroup)
    ones = torch.ones(LARGE)
    dist.all_reduce(ones, group=group)
    inner = dict(group.counters.inner)
    dist.destroy_process_group(group)
    return float(ones[0]), inner


def test_of_one_host_alone_the_inner_group_sums(two: World) -> None:
    assert equal(two.run(one_host)) == (2.0, {"one-host": 1})


def across_hosts() -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """What goes to the inner group, where all hosts have two ranks: of the group of one rank of each host, of that of a
    host's ranks, and of a hook's buckets that are averaged by the former."""
    across = dist.new_group([0, 2]), dist.new_group([1, 3])
    inside = dist.new_group([0, 1]), dist.new_group([2, 3])
    mine, own = across[dist.get_rank() % 2], inside[dist.get_rank() // 2]
    for group in mine, own:
        dist.all_reduce(torch.ones(LARGE), group=group)
    assert isinstance(mine, InaggGroup)
    assert isinstance(own, InaggGroup)
    model = DistributedDataParallel(nn.Linear(200, 100), process_group=mine)
    with InaggState(process_group=mine) as state:
        model.register_comm_hook(state, inagg_hook)
        model(torch.ones(1, 200)).sum().backward()
        averaged = state.counters.inner
    return dict(mine.counters.inner), dict(own.counters.inner), dict(averaged)


def test_a_group_with_one_rank_of_each_host_sums_over_the_switch(make_world: Callable[..., World]) -> None:
    with make_world(4, INAGG_LOCAL_SIZE="2") as world:
        over, inside, averaged = equal(world.run(across_hosts))
    assert "one-host" not in over
    assert inside["one-host"] == 1
    assert "one-host" not in averaged


def test_a_group_of_one_rank_can_be_made_where_hosts_have_several(make_world: Callable[..., World]) -> None:
    with make_world(2, INAGG_LOCAL_SIZE="2") as world:
        assert equal(world.run(alone)) == 1.0


def alone() -> float:
    groups = dist.new_group([0]), dist.new_group([1])
    ones = torch.ones(LARGE)
    dist.all_reduce(ones, group=groups[dist.get_rank()])
    return float(ones[0])


def with_a_compressor() -> str:
    with pytest.raises(ConfigError) as caught:
        InaggState(compressor="ef+topk:k=0.1", local_size=2)
    return str(caught.value)


def test_compressors_are_refused(beside: World) -> None:
    assert "local_size is 2" in equal(beside.run(with_a_compressor))


def a_rank_that_fails() -> str:
    """One rank ends the job; the others, of its host and of the other, are told."""
    group = dist.new_group(backend="inagg", pg_options=Options(min_bytes=0, window=16, local_size=LOCAL))
    assert isinstance(group, InaggGroup)
    ones = torch.ones(LARGE)
    dist.all_reduce(ones, group=group)
    if dist.get_rank() == 3:
        group.abort()
        return "aborted"
    with pytest.raises(RuntimeError) as caught:
        dist.all_reduce(ones, group=group)
    group.abort()
    return str(caught.value)


def test_if_one_rank_ends_the_job_the_others_get_an_error_in_the_numbers_of_the_group(four: World) -> None:
    """Not in those of the job of a place, in which rank 1 is a host, nor in Gloo's words, which name nobody."""
    *told, last = four.run(a_rank_that_fails)
    assert last == "aborted"
    for place, said in zip((0, 1, 0), told, strict=True):
        in_numbers = (
            rf"host (0 \(ranks 0 to 1|1 \(ranks 2 to 3)\) failed|is that of host N: rank 2 N \+ {place} here\)$"
        )
        assert re.search(in_numbers, said), said
