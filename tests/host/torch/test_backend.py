"""The process group of the backend "inagg", and what its inner group does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.names import all_gather_single, new_gloo_only, reduce_scatter_single
from tests.host.torch.ranks import LARGE, Counted, equal, world
from tests.host.torch.world import World
from torch.distributed import ReduceOp

# --- what the inner group does ---


def everything_else() -> tuple[dict[str, Any], int, dict[str, int]]:
    """One of each, on two ranks; all results as lists."""
    rank, n = dist.get_rank(), dist.get_world_size()
    got: dict[str, Any] = {}
    with Counted() as counted:
        small, integers, largest = torch.tensor([1.5]), torch.full((LARGE,), rank), torch.full((LARGE,), float(rank))
        dist.all_reduce(small)
        dist.all_reduce(integers)
        dist.all_reduce(largest, op=ReduceOp.MAX)
        got["all_reduce"] = [small.item(), integers[-1].item(), largest[-1].item()]
        mine = torch.full((2,), float(rank))
        sent = torch.full((LARGE,), float(rank))
        dist.broadcast(sent, 1)
        got["broadcast"] = sent[-1].item()
        lists = [torch.zeros(2) for _ in range(n)]
        dist.all_gather(lists, mine)
        got["all_gather"] = torch.cat(lists).tolist()
        together = torch.zeros(2 * n)
        all_gather_single(together, mine)
        got["all_gather_single"] = together.tolist()
        gathered = [torch.zeros(2) for _ in range(n)] if rank == 0 else None
        dist.gather(mine, gathered)
        scattered = torch.zeros(2)
        dist.scatter(scattered, [torch.full((2,), float(r)) for r in range(n)] if rank == 0 else None)
        got["scatter"] = scattered[0].item() - rank
        reduced = torch.ones(LARGE)
        dist.reduce(reduced, 0)
        got["reduce"] = reduced[0].item() + rank
        part = torch.zeros(2)
        dist.reduce_scatter(part, [torch.full((2,), float(r)) for r in range(n)])
        got["reduce_scatter"] = part[0].item() - 2 * rank
        exchanged = torch.zeros(2 * n)
        dist.all_to_all_single(exchanged, torch.arange(2.0 * n))
        got["all_to_all_single"] = exchanged[0].item() - 2 * rank
        outs = [torch.zeros(1) for _ in range(n)]
        dist.all_to_all(outs, [torch.tensor([float(r)]) for r in range(n)])
        got["all_to_all"] = outs[0].item() - rank
        letter = torch.tensor([float(rank)])
        if rank == 0:
            dist.send(letter, 1)
            dist.recv(letter, 1)
        else:
            received = torch.zeros(1)
            dist.recv(received)
            dist.send(letter, 0)
        dist.barrier()
    return got, counted.carried, {reason: count for reason, count in counted.inner.items() if "recv" not in reason}


@new_gloo_only
def test_everything_else_goes_to_the_inner_group_and_is_counted(two: World) -> None:
    got, carried, inner = equal(two.run(everything_else))
    assert got == {
        "all_reduce": [3.0, 1, 1.0],
        "broadcast": 1.0,
        "all_gather": [0.0, 0.0, 1.0, 1.0],
        "all_gather_single": [0.0, 0.0, 1.0, 1.0],
        "scatter": 0.0,
        "reduce": 2.0,
        "reduce_scatter": 0.0,
        "all_to_all_single": 0.0,
        "all_to_all": 0.0,
    }
    assert carried == 0
    assert inner == {
        "small": 1, "dtype-int64": 1, "op-max": 1, "broadcast": 1, "allgather": 1, "all_gather_single": 1, "gather": 1,
        "scatter": 1, "reduce": 1, "reduce_scatter": 1, "all_to_all_single": 1, "alltoall": 1, "send": 1, "barrier": 1,
    }  # fmt: skip


def many_broadcasts() -> float:
    """In a group that inherits them, this hangs."""
    tensor = torch.full((LARGE,), float(dist.get_rank()))
    for _ in range(300):
        dist.broadcast(tensor, 1)
    return float(tensor[0])


def test_a_loop_of_broadcasts_does_not_hang(two: World) -> None:
    assert equal(two.run(many_broadcasts)) == 1.0


def objects() -> list[Any]:
    rank, n = dist.get_rank(), dist.get_world_size()
    everyone: list[Any] = [None] * n
    dist.all_gather_object(everyone, {"rank": rank})
    one = [f"from {rank}"]
    dist.broadcast_object_list(one, 1)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [0, 1] if rank == 0 else None)
    return [everyone, one, mine[0] - rank]


def test_objects_are_carried(two: World) -> None:
    assert equal(two.run(objects)) == [[{"rank": 0}, {"rank": 1}], ["from 1"], 0]


# --- the group itself ---


def about_the_group() -> tuple[str, str, str, bool, str, list[str]]:
    group = world()
    return (
        dist.get_backend(), group.name(), group._get_backend_name(), bool(group.group_name), group.group_desc,
        [device.type for device in group._device_types],
    )  # fmt: skip


def test_the_group_says_what_it_is(two: World) -> None:
    assert equal(two.run(about_the_group)) == ("inagg", "inagg", "inagg", True, "default_pg", ["cpu"])


def name_for_cpp() -> bool:
    """What the C++ class says, which torch 2.15 asks when it records operations."""
    name: Any = dist.ProcessGroup.group_name
    return bool(name.fget(world()) == world().group_name)


def test_cpp_knows_the_name_of_the_group(two: World) -> None:
    assert equal(two.run(name_for_cpp))


def split() -> str:
    with pytest.raises(NotImplementedError) as caught:
        world().split_group([0, 1])
    return str(caught.value)


def test_a_group_cannot_be_split_and_says_what_to_do(two: World) -> None:
    assert "new_group" in equal(two.run(split))


def overloads() -> list[float]:
    """What the C++ class takes too."""
    group, tensors = world(), [torch.ones(LARGE) for _ in range(4)]
    group.allreduce(tensors[0], op=ReduceOp.AVG).wait()
    group.allreduce([tensors[1]]).wait()
    group.allreduce(tensors[2], ReduceOp.SUM).wait()
    options = dist.AllreduceOptions()
    options.reduceOp = ReduceOp.AVG  # type: ignore[assignment]  # the stubs know one of the two classes
    group.allreduce([tensors[3]], opts=options).wait()
    return [float(tensor[0]) for tensor in tensors]


def test_all_reduce_takes_what_the_cpp_class_takes(two: World) -> None:
    assert equal(two.run(overloads)) == [1.0, 2.0, 2.0, 1.0]


def dropped() -> list[float]:
    """Sums of tensors whose works nobody has, in a group that is destroyed at once."""
    group = dist.new_group()
    tensors = [torch.full((100 * LARGE,), float(i)) for i in range(8)]
    tensors.append(torch.ones(200, 300).t())
    for tensor in tensors:
        dist.all_reduce(tensor, group=group, async_op=True)
    dist.destroy_process_group(group)
    return [float(value) for tensor in tensors for value in (tensor.min(), tensor.max())]


def test_a_group_that_is_destroyed_brings_sums_whose_works_were_dropped(two: World) -> None:
    assert equal(two.run(dropped)) == [float(2 * i) for i in range(8) for _ in range(2)] + [2.0, 2.0]


def resized(dtype: torch.dtype) -> list[int]:
    """Elements of tensors that were summed, and grew then."""
    summed, whole, part = torch.ones(LARGE, dtype=dtype), torch.ones(2 * LARGE, dtype=dtype), torch.ones(LARGE)
    part = part.to(dtype)
    dist.all_reduce(summed)
    reduce_scatter_single(part, whole)
    for tensor in (summed, whole, part):
        assert float(tensor[0]) in (1.0, 2.0)
        tensor.resize_(3 * LARGE)
    return [tensor.numel() for tensor in (summed, whole, part)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_was_summed_can_be_resized(two: World, dtype: torch.dtype) -> None:
    assert equal(two.run(resized, dtype)) == [3 * LARGE] * 3
