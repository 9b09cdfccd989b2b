"""Several groups at once: each is a job of its own."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import LARGE, equal
from tests.host.torch.test_ddp import backward
from tests.host.torch.world import World
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from inagg_host.torch import InaggGroup, Options, lossy
from inagg_testbed.training import make_model


def job_name(group: InaggGroup) -> str:
    return group.jobs.own.join().arrays.config.job


def beside_gloo() -> tuple[list[float], int, str, list[float]]:
    """A world of Gloo, in which DDP uses a group of ours."""
    group = dist.new_group(backend="inagg", pg_options=Options(job="mine/train"))
    assert isinstance(group, InaggGroup)
    exact = torch.full((LARGE,), 1.0 + dist.get_rank())
    dist.all_reduce(exact)
    model = DistributedDataParallel(make_model(0), process_group=group)
    backward(model(torch.ones(8, 1, 8, 8)).square().sum())
    gradients = [float(p.grad.abs().sum()) for p in model.parameters() if p.grad is not None]
    name, carried = job_name(group), group.counters.operations
    dist.destroy_process_group(group)
    return exact[:2].tolist(), carried, name, gradients


def test_a_group_of_ours_in_a_world_of_gloo(beside: World) -> None:
    exact, carried, name, _ = equal(beside.run(beside_gloo))
    assert exact == [3.0, 3.0]
    assert carried == 1
    assert re.fullmatch(r"mine/train-[a-z]+-[a-z]+-\d+/0-1", name)


def two_jobs() -> tuple[list[float], list[str]]:
    """Two groups of the same ranks, of different formats, used at once from two threads in a different order."""
    groups = [dist.new_group(backend="inagg", pg_options=Options(format=f, window=16)) for f in ("nat8", "fix32")]
    sums = [torch.full((LARGE,), 3.0) for _ in groups]

    def add(i: int) -> None:
        for _ in range(4):
            dist.all_reduce(sums[i], group=groups[i], op=dist.ReduceOp.AVG)
            sums[i].add_(1)

    threads = [threading.Thread(target=add, args=(i,)) for i in (range(2) if dist.get_rank() else (1, 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [job_name(group) for group in groups if isinstance(group, InaggGroup)]
    for group in groups:
        dist.destroy_process_group(group)
    return [float(sums[1].min()), float(sums[1].max())], names


def test_groups_of_the_same_ranks_are_independent(two: World) -> None:
    values, names = equal(two.run(two_jobs))
    assert values == [7.0, 7.0]
    assert len(set(names)) == 2


def join_late() -> tuple[bool, bool, float]:
    """A group that the world's backend made: whether it had joined before, and after, its first sum."""
    group = dist.new_group()
    assert isinstance(group, InaggGroup)
    dist.barrier(group)
    before = group.jobs.own._sums is not None
    values = torch.ones(LARGE)
    dist.all_reduce(values, group=group)
    after = group.jobs.own._sums is not None
    dist.destroy_process_group(group)
    return before, after, float(values[0])


def test_a_group_that_was_not_asked_for_by_name_joins_when_it_must(two: World) -> None:
    assert equal(two.run(join_late)) == (False, True, 2.0)


def in_a_group_of_one() -> tuple[float, dict[str, int]]:
    groups = [dist.new_group([rank], backend="inagg") for rank in range(dist.get_world_size())]
    mine = groups[dist.get_rank()]
    assert isinstance(mine, InaggGroup)
    values = torch.ones(LARGE)
    dist.all_reduce(values, group=mine)
    inner = mine.counters.inner
    dist.destroy_process_group(mine)
    return float(values[0]), inner


def test_a_group_of_one_rank_needs_no_switch(two: World) -> None:
    assert equal(two.run(in_a_group_of_one)) == (1.0, {"one-rank": 1})


def mesh_of_two_dimensions() -> list[float]:
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("replicate", "shard"))
    values = torch.ones(LARGE)
    dist.all_reduce(values, group=mesh["shard"].get_group())
    dist.all_reduce(values, group=mesh["replicate"].get_group())
    return [float(values[0]), float(mesh["shard"].get_group().size())]


def test_a_device_mesh_has_groups_of_ours(two: World) -> None:
    assert equal(two.run(mesh_of_two_dimensions)) == [2.0, 2.0]


def begin_again() -> list[float]:
    """Destroy the world and make it anew in the same store, as a script does that trains twice."""
    store = dist.distributed_c10d._get_default_store()
    rank, workers, sums = dist.get_rank(), dist.get_world_size(), []
    for attempt in range(2):
        dist.destroy_process_group()
        again = dist.PrefixStore(f"again-{attempt}", store)  # type: ignore[attr-defined]
        dist.init_process_group("inagg", store=again, rank=rank, world_size=workers)
        values = torch.ones(LARGE)
        dist.all_reduce(values)
        sums.append(float(values[0]))
    return sums


def test_a_world_can_be_destroyed_and_made_again(again: World) -> None:
    assert equal(again.run(begin_again)) == [2.0, 2.0]


def too_many() -> str:
    """Groups that ask for more than the 65536 slots that the switch of these tests has."""
    groups = list[Any]()
    try:
        for _ in range(5):
            groups.append(dist.new_group(backend="inagg", pg_options=Options(window=8192)))
    except RuntimeError as error:
        return str(error)
    finally:
        for group in groups:
            dist.destroy_process_group(group)
    return ""


def test_where_groups_take_all_slots_the_error_says_what_helps(beside: World) -> None:
    said = equal(beside.run(too_many))
    assert "no room for job" in said
    assert "start the switch with more slots (--slots)" in said
    assert said.endswith('Also, groups that need no switch take no slots as new_group(backend="gloo")')


def with_another_limit(joined: bool) -> tuple[str, list[float]]:
    """What a sum is told for which the other rank does not come, after the limit was lowered, in the group's format and
    in another one; and limits after it was raised beyond what the option says."""
    told, options = "", Options(window=16, timeout_s=50.0)
    group = dist.new_group(backend="inagg", pg_options=options, timeout=timedelta(seconds=40))
    assert isinstance(group, InaggGroup)
    if joined:
        dist.all_reduce(torch.ones(LARGE), group=group)
    group.set_timeout(timedelta(seconds=1))
    with lossy("nat8"):
        dist.all_reduce(torch.ones(LARGE), group=group)
        arrays = group.jobs.current().join().arrays
    own = group.jobs.own.join().arrays
    limits = [arrays.timeout_s, own.timeout_s]
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError) as caught:
            dist.all_reduce(torch.ones(LARGE), group=group)
        told = str(caught.value)
    dist.barrier()
    group.set_timeout(timedelta(seconds=60))
    dist.destroy_process_group(group)
    return told, [*limits, own.timeout_s]


@pytest.mark.parametrize("joined", [False, True])
def test_a_limit_that_is_set_holds_for_sums_of_the_switch(beside: World, joined: bool) -> None:
    (told, limits), (_, others) = beside.run(with_another_limit, joined)
    assert "no result within 1 s" in told
    assert limits == others == [1.0, 1.0, 50.0]
