"""FSDP2, HSDP and DTensor on the backend "inagg": gradients through the switch, parameters through the inner group."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.names import ALL_GATHER, reduce_scatter_single
from tests.host.torch.ranks import Counted, digest, equal
from tests.host.torch.world import World
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from inagg_host.torch import InaggGroup, Options
from inagg_testbed.training import Plan, load_digits, make_model, train


def full(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.full_tensor()


def train_sharded(replicas: int) -> tuple[list[str], list[float], int, dict[str, int]]:
    """FSDP2 on the digits (with replicas: HSDP): full parameters after some steps, the losses, what was carried."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (replicas, workers // replicas), mesh_dim_names=("replicate", "shard"))
    model: nn.Module = make_model(0)
    for module in (model.hidden, model):
        assert isinstance(module, nn.Module)
        fully_shard(module, mesh=mesh if replicas > 1 else mesh["shard"])
    assert isinstance(model, FSDPModule)
    digests: list[str] = []
    losses: list[float] = []

    def look(step: int, loss: float) -> None:
        losses.append(loss)
        if step % 7 == 0:
            digests.append(digest(*(full(p) for p in model.parameters())))

    with Counted(mesh.get_group("shard")) as counted:  # not in all releases the default group
        train(model, load_digits()[0], Plan(2), rank, workers, look)
    return digests, [sum(losses[:5]) / 5, sum(losses[-5:]) / 5], counted.carried, counted.inner


def test_fsdp2_scatters_gradients_over_the_switch_and_gathers_parameters_exactly(two: World) -> None:
    results = two.run(train_sharded, 1)
    digests, _, carried, inner = equal([(d, None, c, i) for d, _, c, i in results])
    assert len(set(digests)) == 6
    assert all(losses[1] < losses[0] for _, losses, _, _ in results)
    assert carried >= 2 * 42, "the gradients of two parts of the model in each step"
    assert inner[ALL_GATHER] >= 2 * 42


def bytes_of_gradients(elements: int) -> tuple[int, int]:
    """UDP payload that this rank gets from the switch for float32 gradients: of FSDP2's reduce-scatter, and of an
    all-reduce of as many. The least of three times: a busy machine sends some again."""
    group = dist.new_group(backend="inagg", pg_options=Options(reduce_scatter_format="nat8", format="nat8"))
    assert isinstance(group, InaggGroup)
    mesh = DeviceMesh.from_group(group, "cpu")
    torch.manual_seed(0)
    model = nn.Linear(elements // 1000, 1000, bias=False)
    fully_shard(model, mesh=mesh)
    seen = [0]
    for _ in range(3):
        model(torch.randn(3, elements // 1000)).square().sum().backward()
        seen.append(group.counters.bytes_in)
        dist.all_reduce(torch.randn(elements), group=group)
        seen.append(group.counters.bytes_in)
    dist.destroy_process_group(group)
    came = [after - before for before, after in pairwise(seen)]
    return min(came[::2]), min(came[1::2])


def test_fsdp2_gets_of_its_gradients_what_it_keeps(four: World) -> None:
    for scattered, reduced in four.run(bytes_of_gradients, 2_000_000):
        assert 0.25 < scattered / reduced <= 0.3


def losses_of(sharded: bool) -> list[float]:
    rank, workers, losses = dist.get_rank(), dist.get_world_size(), list[float]()
    model: nn.Module = make_model(0)
    if sharded:
        fully_shard(model, mesh=init_device_mesh("cpu", (workers,)))
    else:
        model = nn.parallel.DistributedDataParallel(model)
    train(model, load_digits()[0], Plan(2), rank, workers, lambda _, loss: losses.append(loss))
    return losses


def test_losses_of_fsdp2_are_those_of_ddp(four: World) -> None:
    """With fix32, which rounds to one in 2^28."""
    for sharded, replicated in zip(four.run(losses_of, True), four.run(losses_of, False), strict=True):
        assert sharded == pytest.approx(replicated, rel=1e-4)


def use_dtensors() -> list[float]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = distribute_tensor(torch.ones(4, 20_000), mesh, [Shard(0)])
    partial = DTensor.from_local(torch.ones(20_000), mesh, [Partial()])
    whole = partial.redistribute(placements=[Replicate()]).to_local()
    part = partial.redistribute(placements=[Shard(0)]).to_local()
    return [float(full(rows.sum(0))[0]), float(whole[-1]), float(part[-1]), float(part.numel())]


def test_dtensors_are_summed_by_the_switch(two: World) -> None:
    assert equal(two.run(use_dtensors)) == [4.0, 2.0, 2.0, 10_000.0]


def hand_in_dtensors() -> list[str]:
    """What is said of them, in and out."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole, part = torch.ones(20_000), torch.zeros(10_000)
    given, got = distribute_tensor(whole, mesh, [Replicate()]), distribute_tensor(part, mesh, [Replicate()])
    texts = []
    begins: list[Callable[[], object]] = [
        lambda: dist.all_reduce(given),
        lambda: reduce_scatter_single(part, given),
        lambda: reduce_scatter_single(got, whole),
    ]
    for begin in begins:
        with pytest.raises(ValueError, match="DTensor") as caught:
            begin()
        texts.append(str(caught.value))
    return [*texts, *(str(float(tensor[0])) for tensor in (given.to_local(), part, got.to_local()))]


def test_of_a_dtensor_itself_one_is_told_to_give_its_local_tensor(two: World) -> None:
    *texts, given, part, got = equal(two.run(hand_in_dtensors))
    assert all(".to_local()" in text for text in texts)
    assert (given, part, got) == ("1.0", "0.0", "0.0")
