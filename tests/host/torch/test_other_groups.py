"""A hook's state that outlives its process group: a restart within the processes, with as many ranks or fewer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import digest, equal
from tests.host.torch.test_ddp import backward
from tests.host.torch.world import World
from torch._C._distributed_c10d import FileStore
from torch.nn.parallel import DistributedDataParallel

from inagg_host.compress.feedback import MEMORY
from inagg_host.torch import InaggState, inagg_hook

LIMIT = timedelta(seconds=30)
PLAIN: dict[str, Any] = {"format": "fix32"}
NO_MEMORY: dict[str, Any] = {"compressor": "randk:k=1.0", "format": "fix32"}
SUMMED: dict[str, Any] = {"compressor": "ef+randk:k=0.1", "format": "fix32"}
GATHERED: dict[str, Any] = {"compressor": "ef+topk:k=0.1"}

large_or_small = pytest.mark.parametrize("min_bytes", [0, 1 << 20], ids=["large", "small"])
"""Buckets go to the switch; or all are averaged by the process group."""


@pytest.fixture(scope="module")
def three(make_world: Callable[..., World]) -> Iterator[World]:
    """Three ranks of Gloo, whose default group becomes another."""
    with make_world(3, backend="gloo") as world:
        yield world


@pytest.fixture(scope="module")
def pair(make_world: Callable[..., World]) -> Iterator[World]:
    """Two such ranks."""
    with make_world(2, backend="gloo") as world:
        yield world


@contextmanager
def restarted(folder: Path, ranks: int = 2) -> Iterator[bool]:
    """Whether this rank is one of the ``ranks`` of a new default group, in place of the one that is there; afterwards
    there is one of all again."""
    rank, before = dist.get_rank(), dist.get_world_size()

    def begin(name: str, size: int) -> None:
        store = FileStore(str(folder / name), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=LIMIT)

    dist.barrier()
    dist.destroy_process_group()
    if mine := rank < ranks:
        begin("next", ranks)
    yield mine
    if mine:
        dist.destroy_process_group()
    begin("back", before)


def linear() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(100, 10, bias=False)


def step(state: InaggState, module: torch.nn.Module) -> None:
    """Wrap a model of 100 inputs and have its gradients averaged."""
    model = DistributedDataParallel(module)
    model.register_comm_hook(state, inagg_hook)
    model.zero_grad()
    backward((model(torch.eye(100)) * (dist.get_rank() + 1)).sum())


def average(state: InaggState, layer: torch.nn.Linear) -> torch.Tensor:
    """The average of gradients that are 1 on rank 0, 2 on rank 1, ..."""
    step(state, layer)
    assert layer.weight.grad is not None
    return layer.weight.grad.detach().clone()


def mean(state: InaggState) -> float:
    return round(average(state, linear()).mean().item(), 3)


def told(state: InaggState) -> str:
    """What a bucket is told."""
    try:
        average(state, linear())
    except Exception as error:
        return str(error)
    return "nothing"


# --- the ranks ---


def means(folder: Path, ranks: int, options: dict[str, Any]) -> list[float]:
    """In the group that is there, and in a new one of ``ranks``."""
    with InaggState(**options) as state:
        found, first = [mean(state)], state.job()
        with restarted(folder, ranks) as mine:
            if mine:
                found.append(mean(state))
                assert (first.closed, state.job().closed, state.job().workers) == (True, False, ranks)
    return found


@large_or_small
@pytest.mark.parametrize("options", [PLAIN, NO_MEMORY], ids=["plain", "compressed"])
def test_fewer_ranks_than_before_average_by_their_own_number(
    three: World, tmp_path: Path, options: dict[str, Any], min_bytes: int
) -> None:
    assert three.run(means, tmp_path, 2, {**options, "min_bytes": min_bytes}) == [[2.0, 1.5], [2.0, 1.5], [2.0]]


@large_or_small
def test_as_many_ranks_as_before_join_anew(pair: World, tmp_path: Path, min_bytes: int) -> None:
    assert equal(pair.run(means, tmp_path, 2, {**PLAIN, "min_bytes": min_bytes})) == [1.5, 1.5]


def after_an_end(folder: Path) -> tuple[str, float]:
    """What a bucket is told whose job rank 0 has ended, and the average in the next group."""
    with InaggState(min_bytes=0, **PLAIN) as state:
        dist.barrier()  # both have joined
        if dist.get_rank() == 0:
            state.job().join().arrays.close("a test", end=True)
        why = told(state)
        with restarted(folder):
            return why, mean(state)


def test_a_job_that_has_ended_is_left_with_its_group(pair: World, tmp_path: Path) -> None:
    for why, found in pair.run(after_an_end, tmp_path):
        assert why != "nothing"
        assert found == 1.5


# --- what a compressor remembers ---


def remembered(state: InaggState) -> dict[int, torch.Tensor]:
    """What error feedback remembers, by the parameter's number: float64."""
    assert state._compression is not None
    memories = state._compression.memories
    return {number: torch.from_numpy(m.state[MEMORY]).double() for number, m in memories.items()}


def feedback(folder: Path, options: dict[str, Any], same: bool) -> tuple[float, str, list[int]]:
    """Of the first step in a new group, of the ``same`` model or of a copy: how far its averages are from the mean of
    what ranks had and remembered, but for what they remember now; their digest; and the numbers of parameters."""
    layer = linear()
    with InaggState(min_bytes=0, **options) as state:
        average(state, layer)
        before = remembered(state)[0]
        with restarted(folder):
            averages = average(state, layer if same else linear())
            sent = dist.get_rank() + 1 + before - remembered(state)[0]
            dist.all_reduce(sent)
            return float((averages.flatten() - sent / 2).abs().max()), digest(averages), sorted(remembered(state))


@pytest.mark.parametrize("same", [True, False], ids=["the model", "a copy"])
@pytest.mark.parametrize("options", [SUMMED, GATHERED], ids=["summed", "gathered"])
def test_what_a_compressor_remembers_goes_on(pair: World, tmp_path: Path, options: dict[str, Any], same: bool) -> None:
    off, _, numbers = equal(pair.run(feedback, tmp_path, options, same))
    assert off < 1e-4
    assert numbers == [0]


def freeze_meanwhile(folder: Path) -> list[int]:
    """How often each of two parameters, by number, was compressed, of which one is frozen in a new group."""
    model = torch.nn.Sequential(*(torch.nn.Linear(100, 100, bias=False) for _ in range(2)))
    with InaggState(min_bytes=0, **SUMMED) as state:
        step(state, model)
        assert state._compression is not None
        first = next(parameter for parameter, number in state._compression._numbers.items() if number == 0)
        first.requires_grad_(False)
        with restarted(folder):
            step(state, model)
            return [memory.step for _, memory in sorted(state._compression.memories.items())]


def test_parameters_that_stay_are_remembered_where_others_are_frozen(pair: World, tmp_path: Path) -> None:
    assert equal(pair.run(freeze_meanwhile, tmp_path)) == [1, 2]


def refused_memory(folder: Path, min_bytes: int) -> list[str]:
    """What two buckets are told in a group of fewer ranks, in which ``min_bytes`` counts."""
    with InaggState(min_bytes=0, **SUMMED) as state:
        average(state, linear())
        state.options["min_bytes"] = min_bytes
        with restarted(folder) as mine:
            return [told(state) for _ in range(2 * mine)]


@large_or_small
def test_a_memory_of_other_ranks_is_refused(three: World, tmp_path: Path, min_bytes: int) -> None:
    answers = three.run(refused_memory, tmp_path, min_bytes)
    assert [len(texts) for texts in answers] == [2, 2, 0]
    for text in answers[0] + answers[1]:
        assert "is of 3 ranks, and the process group that is there now has 2: make a new InaggState" in text


def one_who_begins() -> str:
    """What ranks are told of which one has no memory of what the compressor sent."""
    with InaggState(min_bytes=0, **SUMMED) as state:
        average(state, linear())
        saved = state.state_dict()
    with InaggState(min_bytes=0, **SUMMED) as state:
        if dist.get_rank() == 0:
            state.load_state_dict(saved)
        else:
            state._stop()
            state._compression = None
        return told(state)


def test_a_rank_that_remembers_nothing_beside_one_that_does_is_refused(beside: World) -> None:
    for text in beside.run(one_who_begins):
        assert "rank 1 does not remember the same run" in text


# --- states that cannot go on ---


def with_a_group_that_is_gone(folder: Path, min_bytes: int) -> list[str]:
    """What two buckets are told whose state was given a group, which was destroyed with all others."""
    with InaggState(dist.new_group(timeout=LIMIT), min_bytes=min_bytes) as state:
        average(state, linear())
        with restarted(folder):
            return [told(state), told(state)]


@large_or_small
def test_a_given_group_that_is_gone_is_an_error(pair: World, tmp_path: Path, min_bytes: int) -> None:
    for texts in pair.run(with_a_group_that_is_gone, tmp_path, min_bytes):
        assert all("was destroyed: make a new InaggState" in text for text in texts), texts


def with_another_group() -> tuple[float, int]:
    """The average, and the job's ranks, of a state that is given a group of its own later."""
    with InaggState(min_bytes=0, **PLAIN) as state:
        average(state, linear())
        state.process_group = dist.new_group(timeout=LIMIT)
        found = mean(state)
        assert state.job().settings.config.timeout_s == LIMIT.total_seconds()
        return found, state.job().workers


def test_a_state_that_is_given_another_group_joins_one_of_its(beside: World) -> None:
    assert equal(beside.run(with_another_group)) == (1.5, 2)


def closed_before(folder: Path) -> str:
    with InaggState(min_bytes=1 << 20) as state:
        average(state, linear())
    with restarted(folder):
        return told(state)


def test_a_state_that_was_closed_says_what_to_make(pair: World, tmp_path: Path) -> None:
    for text in pair.run(closed_before, tmp_path):
        assert "closed" in text
        assert "make a new InaggState" in text
