"""Training with natural compression ends where training with exact sums does."""

from __future__ import annotations

import statistics

import pytest
import torch.distributed as dist
from tests.host.torch.ranks import equal
from tests.host.torch.test_ddp import SMALL_BUCKETS_MB
from tests.host.torch.world import World
from torch.nn.parallel import DistributedDataParallel

from inagg_host.torch import InaggState, inagg_hook
from inagg_testbed.training import Plan, accuracy, load_digits, make_model, train

SEEDS = range(5)
PLAN = Plan(epochs=20)


def final_accuracy(format_: str | None, seed: int) -> float:
    """Of a training with the sums of a format; None: with those of Gloo."""
    digits, test = load_digits()
    model = DistributedDataParallel(make_model(seed), bucket_cap_mb=SMALL_BUCKETS_MB)
    state = InaggState(format=format_, min_bytes=0, seed=seed) if format_ else None
    if state is not None:
        model.register_comm_hook(state, inagg_hook)
    train(model, digits, Plan(PLAN.epochs, seed=seed), dist.get_rank(), dist.get_world_size())
    if state is not None:
        state.close()
    return accuracy(model.module, test)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_accuracy_is_within_noise_of_gloos(request: pytest.FixtureRequest, ranks: int) -> None:
    world: World = request.getfixturevalue({2: "beside", 4: "four_beside"}[ranks])
    exact = [equal(world.run(final_accuracy, None, seed)) for seed in SEEDS]
    print(f"\n{'final accuracy, %':18}" + "".join(f"  seed {seed}" for seed in SEEDS) + "    mean   stdev")
    for name, format_ in (("gloo float32", None), ("nat8", "nat8"), ("nat4-nat8", "nat4-nat8"), ("dith8", "dith8")):
        got = exact if format_ is None else [equal(world.run(final_accuracy, format_, seed)) for seed in SEEDS]
        mean, deviation = statistics.mean(got), statistics.stdev(got)
        print(f"{name:18}" + "".join(f"{100 * a:8.2f}" for a in got) + f"{100 * mean:8.2f}{100 * deviation:8.2f}")
        # Two standard errors of the difference of two means of five, the noise of the order of the data in both.
        noise = 2 * (2 * max(deviation, statistics.stdev(exact)) ** 2 / len(SEEDS)) ** 0.5
        assert statistics.mean(exact) - mean <= noise, name
