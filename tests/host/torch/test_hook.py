"""The DDP communication hook, beside a Gloo world."""

from __future__ import annotations

import gc
import io
import pickle
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import digest, equal
from tests.host.torch.test_ddp import SMALL_BUCKETS_MB, backward
from tests.host.torch.world import World
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel

from inagg_host.torch import InaggState, inagg_hook
from inagg_host.torch.inner import timeout_of
from inagg_testbed.training import Plan, load_digits, make_model, train


def hooked(state: InaggState) -> DistributedDataParallel:
    model = DistributedDataParallel(make_model(dist.get_rank()), bucket_cap_mb=SMALL_BUCKETS_MB)
    model.register_comm_hook(state, inagg_hook)
    return model


def train_with_hook() -> tuple[list[str], int, dict[str, int]]:
    """The digest of all parameters after each step, and what the state has counted."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    with InaggState() as state:
        model, digests = hooked(state), list[str]()
        train(model, load_digits()[0], Plan(1), rank, workers, lambda *_: digests.append(digest(*model.parameters())))
        return digests, state.counters.operations, state.counters.inner


def test_parameters_are_the_same_on_all_ranks_at_every_step(beside: World) -> None:
    digests, carried, inner = equal(beside.run(train_with_hook))
    assert len(set(digests)) == 21
    assert carried >= 2 * 21 - 1
    assert inner == {}


def average(min_bytes: int) -> tuple[list[float], dict[str, int]]:
    """Gradients that are 1 on rank 0 and 3 on rank 1."""
    with InaggState(min_bytes=min_bytes, format="fix32") as state:
        model = DistributedDataParallel(torch.nn.Linear(100, 1, bias=False))
        model.register_comm_hook(state, inagg_hook)
        backward(model(torch.ones(1, 100) * (1 + 2 * dist.get_rank())).sum())
        gradient = next(model.parameters()).grad
        assert gradient is not None
        return gradient[0, :3].tolist(), state.counters.inner


def test_the_hook_divides_by_the_number_of_ranks(beside: World) -> None:
    assert equal(beside.run(average, 0)) == ([2.0, 2.0, 2.0], {})


def test_small_buckets_are_averaged_by_the_process_group(beside: World) -> None:
    assert equal(beside.run(average, 1 << 20)) == ([2.0, 2.0, 2.0], {"small": 1})


def scale_losses() -> tuple[list[str], list[float]]:
    """float16 gradients and a loss scaler; in step 2 the loss of rank 1 overflows."""
    rank = dist.get_rank()
    with InaggState() as state:
        model = DistributedDataParallel(make_model(0))
        model.register_comm_hook(state, fp16_compress_wrapper(inagg_hook))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        digests, scales = [], []
        for step in range(5):
            optimizer.zero_grad()
            loss = model(torch.ones(8, 1, 8, 8) * (1 + rank)).square().mean()
            backward(scaler.scale(loss * (1e6 if step == 2 and rank == 1 else 1.0)))
            scaler.step(optimizer)
            scaler.update()
            digests.append(digest(*model.parameters()))
            scales.append(scaler.get_scale())
    return digests, scales


def test_a_loss_scaler_skips_the_same_steps_on_all_ranks(beside: World) -> None:
    digests, scales = equal(beside.run(scale_losses))
    assert scales == [1024.0, 1024.0, 512.0, 512.0, 512.0]
    assert digests[2] == digests[1]
    assert len(set(digests)) == 4


def backward_without_a_job() -> list[str]:
    """What two backward passes raise, of a state that joins with the first bucket and is told of no switch."""
    state, told = InaggState.__new__(InaggState), list[str]()
    state.__setstate__({"timeout": timedelta(seconds=10), "options": {"switch": "nowhere"}})
    model = hooked(state)
    for _ in range(2):
        try:
            backward(model(torch.ones(8, 1, 8, 8)).square().sum())
        except Exception as error:
            told.append(str(error))
    return told


def test_each_backward_pass_says_what_is_wrong(beside: World) -> None:
    """An error that is raised in the hook itself leaves DDP's reducer with an assertion of its own ever after."""
    for told in beside.run(backward_without_a_job):
        assert len(told) == 2
        assert all("give host:port" in text for text in told), told


def without_buckets() -> str:
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"), InaggState() as state:
        model = DistributedDataParallel(torch.nn.Linear(8, 2))
        model.register_comm_hook(state, inagg_hook)
        with pytest.raises(TypeError) as refused:
            backward(model(torch.ones(4, 8)).sum())
    return str(refused.value)


def test_a_ddp_without_buckets_is_refused(beside: World) -> None:
    """It drops what its hooks return: nothing would be averaged, and nobody would hear of it."""
    for error in beside.run(without_buckets):
        assert 'use backend="inagg" without a hook' in error


def sharded_by_fsdp1(strategy: str) -> str:
    """What a backward pass is told."""
    with InaggState() as state:
        strategies = {"no": ShardingStrategy.NO_SHARD, "full": ShardingStrategy.FULL_SHARD}
        model = FullyShardedDataParallel(
            torch.nn.Linear(8, 2), sharding_strategy=strategies[strategy], device_id=torch.device("cpu")
        )
        model.register_comm_hook(state, inagg_hook)
        with pytest.raises(TypeError) as refused:
            backward(model(torch.ones(4, 8)).sum())
    return str(refused.value)


@pytest.mark.parametrize("strategy", ["no", "full"])
def test_fsdp1_is_refused_and_told_what_to_use(beside: World, strategy: str) -> None:
    """It drops what its hooks return, too; where it shards, it gives them one argument more."""
    for error in beside.run(sharded_by_fsdp1, strategy):
        assert 'use init_process_group("inagg") and no hook' in error


class TwoEmbeddings(torch.nn.Module):
    """Both of one index, and their sum: so their gradients have one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (torch.nn.Embedding(50, 8, sparse=True) for _ in range(2))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        words: torch.Tensor = self.one(index) + self.other(index)
        return words


def average_sparse() -> list[float]:
    """Gradients that are 1 on rank 0 and 3 on rank 1."""
    with InaggState() as state:
        model = DistributedDataParallel(TwoEmbeddings(), bucket_cap_mb=1e-6)
        model.register_comm_hook(state, inagg_hook)
        backward((model(torch.arange(4)) * (1 + 2 * dist.get_rank())).sum())
        return [float(p.grad.to_dense()[:4].mean()) for p in model.parameters() if p.grad is not None]


def test_sparse_gradients_that_share_their_memory_are_averaged_once(beside: World) -> None:
    assert equal(beside.run(average_sparse)) == [2.0, 2.0]


def drop_a_model(compressor: str | None) -> tuple[bool, set[str]]:
    """Train with a model and a state of which then nothing is left; whether its job is closed, and the threads that are
    still there."""
    before = set(threading.enumerate())
    state = InaggState(compressor=compressor, min_bytes=0)
    model, job = hooked(state), state.job()
    backward(model(torch.ones(8, 1, 8, 8)).square().sum())
    del state, model
    gc.collect()
    started = set(threading.enumerate()) - before  # also such as are only just being started, which nobody can join
    give_up_s = time.monotonic() + 10
    while started & set(threading.enumerate()) and time.monotonic() < give_up_s:
        time.sleep(0.01)
    return job.closed, {thread.name for thread in started & set(threading.enumerate())}


@pytest.mark.parametrize("compressor", [None, "ef+topk:k=0.1"])
def test_a_state_that_is_gone_leaves_its_job(beside: World, compressor: str | None) -> None:
    assert equal(beside.run(drop_a_model, compressor)) == (True, set())


# --- the state in a checkpoint ---


def checkpoint() -> dict[str, Any]:
    """Train, save state and model, restore both and go on."""
    with InaggState(format="tern", secret="open-sesame", timeout=timedelta(seconds=50)) as state:
        model = hooked(state)
        backward(model(torch.ones(8, 1, 8, 8)).square().sum())
        saved = io.BytesIO()
        torch.save({"model": model.module.state_dict(), "state": state}, saved)
    saved.seek(0)
    content = torch.load(saved, weights_only=False)
    restored = content["state"]
    with restored:
        before = restored.counters.operations
        model = hooked(restored)
        model.module.load_state_dict(content["model"])
        backward(model(torch.ones(8, 1, 8, 8)).square().sum())
        return {
            "format": restored.job().settings.config.format,
            "timeout_s": restored.timeout.total_seconds(),
            "options": restored.options,
            "operations": (before, restored.counters.operations),
            "gradients": digest(*(p.grad for p in model.parameters() if p.grad is not None)),
        }


def test_a_restored_state_joins_a_new_job_as_it_was_configured(beside: World) -> None:
    restored = equal(beside.run(checkpoint))
    assert restored["format"] == "tern"
    assert restored["timeout_s"] == 50
    assert restored["options"] == {"format": "tern"}, "and without the secret"
    assert restored["operations"] == (0, 1)


def limits() -> dict[str, float]:
    """The longest that an operation may take, in seconds, of states that are told what or nothing."""
    shorter = dist.new_group(timeout=timedelta(seconds=40))
    found = {}
    for name, options in {
        "world": {},
        "group": {"process_group": shorter},
        "told": {"process_group": shorter, "timeout": timedelta(seconds=50)},
        "restored": pickle.loads(pickle.dumps(InaggState())).__dict__,
    }.items():
        with InaggState(**{key: options[key] for key in ("process_group", "timeout") if key in options}) as state:
            found[name] = state.job().settings.config.timeout_s
    dist.destroy_process_group(shorter)
    return found


def test_an_operation_may_take_as_long_as_one_of_the_process_group(beside: World) -> None:
    assert equal(beside.run(limits)) == {"world": 60, "group": 40, "told": 50, "restored": 60}


def test_a_group_that_does_not_tell_has_the_usual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Strange:
        _device_types = (torch.device("cpu"), torch.device("cuda"))

        def _get_backend(self, device: torch.device) -> object:
            if device.type == "cuda":
                raise RuntimeError("no backend")
            return object()

    assert timeout_of(Strange()) == timedelta(minutes=30)  # type: ignore[arg-type]


def pickled_size() -> int:
    with InaggState() as state:
        return len(pickle.dumps(state))


def test_nothing_but_settings_is_pickled(beside: World) -> None:
    assert max(beside.run(pickled_size)) < 300


@pytest.mark.parametrize("state", [None, InaggState])
def test_a_state_that_is_none_is_refused_with_what_to_give(state: Any) -> None:
    with pytest.raises(TypeError, match=r"register it as model.register_comm_hook\(InaggState\(\), inagg_hook\)"):
        inagg_hook(state, None)  # type: ignore[arg-type]
