"""torch.compile of a DDP module, and of functions with collectives."""

from __future__ import annotations

from contextlib import ExitStack
from typing import cast

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from tests.host.torch.ranks import LARGE, Counted, digest, equal, world
from tests.host.torch.test_ddp import backward
from tests.host.torch.world import World
from torch.nn.parallel import DistributedDataParallel

from inagg_host.torch import InaggState, inagg_hook
from inagg_host.torch import work as work_module
from inagg_testbed.training import make_model


def train_compiled(backend: str) -> tuple[list[str], int]:
    """The digest of all gradients after each step, and what was carried."""
    model = DistributedDataParallel(make_model(0))
    compiled = torch.compile(model, backend=backend)
    digests = []
    with Counted() as counted:
        for step in range(3):
            model.zero_grad()
            backward(compiled(torch.ones(8, 1, 8, 8) * (1 + step + dist.get_rank())).square().sum())
            digests.append(digest(*(p.grad for p in model.parameters() if p.grad is not None)))
    return digests, counted.carried


def test_a_compiled_ddp_module(two: World) -> None:
    digests, carried = equal(two.run(train_compiled, "aot_eager"))
    assert len(set(digests)) == 3
    assert carried >= 3


@pytest.mark.slow
def test_a_ddp_module_compiled_by_inductor(two: World) -> None:
    digests, _ = equal(two.run(train_compiled, "inductor"))
    assert len(set(digests)) == 3


def compiled_function() -> tuple[list[float], int]:
    def with_functional(x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, functional.all_reduce(x * 2, "sum", world())) + 1

    def in_place(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        dist.all_reduce(x)
        return x + 1

    with Counted() as counted:
        results = [torch.compile(f, backend="aot_eager")(torch.ones(LARGE)) for f in (with_functional, in_place)]
    return [float(result[0]) for result in results], counted.carried


def test_collectives_inside_of_a_compiled_function(two: World) -> None:
    assert equal(two.run(compiled_function)) == ([5.0, 5.0], 2)


def test_a_work_is_not_traced() -> None:
    work = work_module.finished([])

    def function(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        work.wait()
        return x * 2

    found = torch._dynamo.explain(function)(torch.ones(2))
    traced = {frame.filename for reason in found.break_reasons for frame in reason.user_stack}
    assert work_module.__file__ not in traced
    assert traced, "it is found"


def gradients_of_steps(compiled: bool, hooked: bool) -> list[float]:
    """Norms of the gradients after three steps of which all is in one frame, `backward()` too, with buckets of unlike
    sizes. What is called back from there would be traced, for each size anew."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = torch.nn.Linear(120, 120), torch.nn.Linear(120, 120), torch.nn.Linear(120, 60)
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.06)

    def step(values: torch.Tensor) -> None:
        backward(model(values).square().mean())

    with ExitStack() as stack:
        stack.enter_context(torch._dynamo.config.patch(optimize_ddp=False))
        if hooked:
            model.register_comm_hook(stack.enter_context(InaggState(min_bytes=0, format="fix32")), inagg_hook)
        take = torch.compile(step, backend="aot_eager") if compiled else step
        for number in range(3):
            model.zero_grad()
            take(torch.full((8, 120), 1.0 + number + dist.get_rank()))
    return [float(p.grad.norm()) for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("hooked", [False, True])
def test_a_training_step_that_is_compiled_as_a_whole(hooked: bool, request: pytest.FixtureRequest) -> None:
    ranks: World = request.getfixturevalue("beside" if hooked else "two")
    eager, compiled = (equal(ranks.run(gradients_of_steps, whole, hooked)) for whole in (False, True))
    assert len(eager) == 6
    assert compiled == pytest.approx(eager, rel=1e-5)
