"""DistributedDataParallel on the backend "inagg": the same parameters on all ranks, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import Counted, digest, equal
from tests.host.torch.world import World
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from inagg_testbed.training import Plan, load_digits, make_model, train

SMALL_BUCKETS_MB = 0.1
"""Two buckets or more for the 287 KB of the digits' network."""


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def train_on_digits(epochs: int, options: dict[str, Any]) -> tuple[list[str], int, dict[str, int]]:
    """The digest of all parameters after each step, and what was carried in this time."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(make_model(rank), bucket_cap_mb=SMALL_BUCKETS_MB, **options)
    digits, _ = load_digits()
    digests: list[str] = []
    with Counted() as counted:
        train(model, digits, Plan(epochs), rank, workers, lambda *_: digests.append(digest(*model.parameters())))
    return digests, counted.carried, counted.inner


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}], ids=str)
def test_parameters_are_the_same_on_all_ranks_at_every_step(two: World, options: dict[str, Any]) -> None:
    digests, carried, inner = equal(two.run(train_on_digits, 1, options))
    assert len(set(digests)) == len(digests) == 21
    assert carried >= 2 * 21 - 2, "one bucket in the first step (static graph: two steps), two or more in the others"
    assert inner.keys() <= {"broadcast", "allgather", "dtype-int32"}, "no gradients"


@pytest.mark.slow
def test_parameters_are_the_same_on_four_ranks(four: World) -> None:
    digests, _, _ = equal(four.run(train_on_digits, 3, {}))
    assert len(set(digests)) == 63


class Branches(nn.Module):
    """Uses one of its layers, or both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(100, 100), nn.Linear(100, 100)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        x = self.first(x)
        return self.second(x) if both else x


def train_with_unused() -> tuple[list[str], dict[str, int]]:
    """Rank 0 uses all parameters, the others do not."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    digests = []
    with Counted() as counted:
        for step in range(3):
            model.zero_grad()
            backward(model(torch.full((4, 100), 1.0 + step), dist.get_rank() == 0).sum())
            digests.append(digest(*(p.grad for p in model.parameters() if p.grad is not None)))
    return digests, counted.inner


def test_parameters_that_only_some_ranks_use(two: World) -> None:
    digests, inner = equal(two.run(train_with_unused))
    assert len(digests) == 3
    assert inner["dtype-int32"] >= 3, "the ranks tell each other which parameters they used"


def accumulate() -> tuple[int, int, str]:
    """What was carried without synchronization, with it, and the gradients then."""
    model = DistributedDataParallel(make_model(0))
    images = torch.ones(8, 1, 8, 8) * (1 + dist.get_rank())
    with Counted() as alone, model.no_sync():
        backward(model(images).square().sum())
    with Counted() as together:
        backward(model(images).square().sum())
    return alone.carried, together.carried, digest(*(p.grad for p in model.parameters() if p.grad is not None))


def test_no_sync_sends_nothing(two: World) -> None:
    alone, together, _ = equal(two.run(accumulate))
    assert (alone, together) == (0, 1)


def train_unevenly() -> str:
    """Rank 1 has two more batches than rank 0."""
    model = DistributedDataParallel(make_model(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for _ in range(3 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            backward(model(torch.ones(8, 1, 8, 8)).square().sum())
            optimizer.step()
    return digest(*model.parameters())


def test_ranks_with_unequal_numbers_of_batches(two: World) -> None:
    equal(two.run(train_unevenly))


# --- mixed precision ---


def train_with_a_scaler(spoilt: float) -> tuple[list[str], list[float]]:
    """Under autocast; in step 2 one element of rank 1's input is ``spoilt``. Parameters and scale after each step."""
    model = DistributedDataParallel(make_model(0), bucket_cap_mb=SMALL_BUCKETS_MB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    digests, scales = [], []
    for step in range(4):
        optimizer.zero_grad()
        images = torch.ones(8, 1, 8, 8) * (1 + dist.get_rank())
        if step == 2 and dist.get_rank() == 1:
            images[3, 0, 4, 4] = spoilt
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(images).square().mean()
        backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        digests.append(digest(*model.parameters()))
        scales.append(scaler.get_scale())
    return digests, scales


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")], ids=str)
def test_what_is_not_finite_on_one_rank_makes_all_skip_the_step(two: World, spoilt: float) -> None:
    digests, scales = equal(two.run(train_with_a_scaler, spoilt))
    assert scales == [1024.0, 1024.0, 512.0, 512.0]
    assert digests[2] == digests[1]
    assert len(set(digests)) == 3


# --- overlap ---


def trace_a_step() -> int:
    """How many of one step's all-reduces began before the last gradient was computed."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1.0)
    x = torch.randn(256, 512)
    for _ in range(3):  # the buckets are rebuilt after the first
        backward(model(x).square().mean())
    with torch.profiler.profile() as profiler:
        backward(model(x).square().mean())
    events = profiler.events()
    assert events is not None
    computed = max(e.time_range.end for e in events if "AddmmBackward0" in e.name)
    return sum(e.time_range.start < computed for e in events if e.name == "inagg::submit")


def test_buckets_are_on_their_way_while_gradients_are_computed(two: World) -> None:
    assert min(two.run(trace_a_step)) >= 4
