"""Buckets of the hook that fail on one rank alone, where the script catches the error and goes on: whatever comes then
is right, or an error on all ranks, and never the average of different steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.test_ddp import backward
from tests.host.torch.world import World
from torch.nn.parallel import DistributedDataParallel

from inagg_host.compress import TopK
from inagg_host.torch import InaggState, compressed, hook_state, inagg_hook
from inagg_host.torch.hosts import HostAllReduce
from inagg_host.torch.job import GroupJob

STEPS, FAILS_IN = 6, 2


def no_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError("no memory")


FAILS: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "a vector is not compressed": ({"compressor": "topk:k=1.0"}, lambda: patch.object(TopK, "compress", no_memory)),
    "values do not come": (
        {"compressor": "topk:k=1.0"},
        lambda: patch.object(compressed.Streams, "fetch", no_memory),
    ),
    "a part that is averaged apart": (
        {"compressor": "randk:k=1.0", "format": "fix32"},
        lambda: patch.object(hook_state, "Apart", no_memory),
    ),
    "without a compressor": ({"format": "fix32"}, lambda: patch.object(GroupJob, "why_not", no_memory)),
}


def gradients(how: str, stops: bool = False) -> list[float | None]:
    """The first gradient after each step, None where there was an error. ``stops``: with the first error of the sums,
    and nobody leaves before all have had one."""
    options, fails = FAILS[how]
    group = dist.new_group(backend="gloo")  # in which ranks may be at different operations in the end
    model, found = DistributedDataParallel(torch.nn.Linear(100, 1), process_group=group), list[float | None]()
    with InaggState(group, min_bytes=0, plain=[model.module.bias], **options) as state:
        model.register_comm_hook(state, inagg_hook)
        for step in range(STEPS):
            model.zero_grad()
            here = step == FAILS_IN and dist.get_rank() == 1
            try:
                with fails() if here else nullcontext():
                    backward(model(torch.full((1, 100), 10.0 * step + dist.get_rank())).sum())
                found.append(float(model.module.weight.grad[0, 0]))
            except (RuntimeError, MemoryError):
                found.append(None)
                if stops and not here:
                    break
        if stops:
            dist.barrier()
    return found


@pytest.mark.parametrize("how", list(FAILS))
def test_no_step_is_averaged_with_another(beside: World, how: str) -> None:
    right = [10.0 * step + 0.5 for step in range(STEPS)]
    for found in beside.run(gradients, how):
        assert found[:FAILS_IN] == pytest.approx(right[:FAILS_IN], rel=0.01)
        assert found[FAILS_IN:] == [None] * (STEPS - FAILS_IN)


def gradients_of_a_host(how: str) -> tuple[list[float | None], float]:
    """As `gradients`, and the seconds that this took."""
    began_s = time.monotonic()
    return gradients(how, stops=True), time.monotonic() - began_s


HOSTS = {
    "a host's values are not copied": lambda: patch.object(HostAllReduce, "_in_equal_parts", no_memory),
    "of a host's rank before it begins": lambda: patch.object(GroupJob, "why_not", no_memory),
}
FAILS |= {how: ({"format": "fix32", "local_size": 2}, fails) for how, fails in HOSTS.items()}


@pytest.mark.parametrize("how", HOSTS)
def test_where_hosts_have_several_ranks_no_step_is_averaged_with_another_and_none_waits(
    four_beside: World, how: str
) -> None:
    right = [10.0 * step + 1.5 for step in range(STEPS)]
    for found, took_s in four_beside.run(gradients_of_a_host, how):
        assert found[:FAILS_IN] == pytest.approx(right[:FAILS_IN], rel=0.01)
        assert set(found[FAILS_IN:]) == {None}
        assert took_s < 30.0, "half of the time limit"


class FullDisk:
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        raise OSError("no space left on device")


@contextmanager
def warned() -> Iterator[list[str]]:
    from inagg_host.torch.scalar_log import log

    with patch.object(log, "warning") as warning:
        said: list[str] = []
        yield said
        said += [call.args[0] % call.args[1:] for call in warning.call_args_list]


def train_with_a_writer_that_fails() -> tuple[list[float], list[str]]:
    model, found = DistributedDataParallel(torch.nn.Linear(100, 1, bias=False)), []
    with InaggState(min_bytes=0, format="fix32") as state, warned() as said:
        model.register_comm_hook(state, inagg_hook)
        if dist.get_rank() == 1:
            state.log_to(FullDisk(), every=1)
        for step in range(STEPS):
            model.zero_grad()
            backward(model(torch.full((1, 100), 10.0 * step + dist.get_rank())).sum())
            assert model.module.weight.grad is not None
            found.append(float(model.module.weight.grad[0, 0]))
    return found, said


def test_curves_that_cannot_be_written_stop_no_training(beside: World) -> None:
    (one, nothing), (another, said) = beside.run(train_with_a_writer_that_fails)
    assert one == another == pytest.approx([10.0 * step + 0.5 for step in range(STEPS)])
    assert nothing == []
    assert said == ["curves of inagg lack points: OSError: no space left on device"]
