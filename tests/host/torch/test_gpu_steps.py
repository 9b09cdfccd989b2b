"""On a GPU that ranks share: who waits for sums holds nobody up, and many steps take no more memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import digest, equal
from tests.host.torch.world import World
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from inagg_host.torch import InaggState, Options, inagg_hook

pytestmark = pytest.mark.gpu

STREAMS = 64
"""More than CUDA has queues for, of both priorities that PyTorch has pools of 32 streams for."""
PATIENCE_S = 60.0
make_stream: Callable[..., torch.cuda.Stream] = torch.cuda.Stream  # torch types the class, but not its constructor


def wait_on_many_streams() -> tuple[bool, list[float]]:
    """Each stream waits for sums of its own; rank 1 submits later."""
    device, late = torch.device("cuda", 0), dist.get_rank() == 1
    torch.cuda.set_device(device)
    dist.all_reduce(torch.ones(1 << 20, device=device))  # compiles
    streams = [make_stream(device, priority=-(i % 2)) for i in range(STREAMS)]
    tensors = [torch.full((1 << 18,), float(i), device=device) for i in range(STREAMS)]
    torch.cuda.synchronize(device)
    dist.barrier()
    if late:
        time.sleep(1.0)
    doubled = []
    for stream, tensor in zip(streams, tensors, strict=True):
        work = dist.all_reduce(tensor, async_op=True)
        with torch.cuda.stream(stream):
            work.wait()
            doubled.append(tensor * 2)
    give_up_s = time.monotonic() + PATIENCE_S
    while not all(stream.query() for stream in streams):
        assert time.monotonic() < give_up_s, "streams that wait hold up what they wait for"
        time.sleep(0.01)
    return True, [float(part.max()) for part in doubled]


def test_many_streams_wait_for_sums(again: World) -> None:
    assert equal(again.run(wait_on_many_streams)) == (True, [4.0 * i for i in range(STREAMS)])


STEPS, SETTLED = 1000, 100
HOST_GROWTH_BYTES = 32 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def take_many_steps() -> tuple[str, int, int, int]:
    """Digest of the parameters, and by how many bytes what PyTorch has of the GPU, all that is used of it, and the
    host's memory have grown since step `SETTLED`."""
    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    with InaggState(min_bytes=0) as state:
        layers = [nn.Linear(512, 512) for _ in range(4)]
        model = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=1.0)
        model.register_comm_hook(state, inagg_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        inputs = torch.randn(8, 512, device=device)

        def used() -> tuple[int, int, int]:
            torch.cuda.synchronize(device)
            dist.barrier()
            free, total = torch.cuda.mem_get_info(device)
            return torch.cuda.memory_reserved(device), total - free, resident_bytes()

        settled = (0, 0, 0)
        for step in range(STEPS):
            if step == SETTLED:
                settled = used()
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        reserved, whole, resident = (after - before for after, before in zip(used(), settled, strict=True))
        return digest(*(p.cpu() for p in model.parameters())), reserved, whole, resident


def test_a_thousand_steps_take_no_more_memory(beside: World) -> None:
    results = beside.run(take_many_steps, timeout_s=300)
    equal([parameters for parameters, *_ in results])
    for _, reserved, whole, resident in results:
        assert reserved == 0
        assert whole <= 0
        assert resident < HOST_GROWTH_BYTES


def shard_on_gpu() -> tuple[list[float], list[float]]:
    """Losses of FSDP2, whose ranks have the same inputs, and those of one process."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    group = dist.new_group(backend="inagg", pg_options=Options(reduce_scatter_format="nat8"))
    mesh = DeviceMesh.from_group(group, "cuda")
    inputs = torch.randn(16, 512, generator=torch.Generator().manual_seed(1)).to(device)

    def train(sharded: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).to(device)
        for part in (*model, model) if sharded else ():
            fully_shard(part, mesh=mesh)
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
        for _ in range(20):
            optimizer.zero_grad()
            loss = (model(inputs) - 1).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    losses = train(True), train(False)
    dist.destroy_process_group(group)
    return losses


def test_fsdp2_on_a_gpu_learns_as_one_process_does(make_world: Callable[..., World]) -> None:
    with make_world(2, backend="gloo") as world:
        sharded, alone = equal(world.run(shard_on_gpu))
    assert sharded[-1] < sharded[0] / 2
    assert sharded == pytest.approx(alone, rel=0.1, abs=0.05)
