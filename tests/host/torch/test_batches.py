"""Batches of sends and receives: coalesced where the inner group's backend does that, as for a group of torch's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import Counted, equal, world
from tests.host.torch.world import World
from torch.distributed import batch_isend_irecv as imported_before_there_was_a_group

from inagg_host.torch.forwarding import coalesce_batches

MANY = 1 << 20
"""Elements of a message that no buffer takes."""


def exchange(group: dist.ProcessGroup | None = None) -> list[dist.P2POp]:
    """Both ranks send to each other, then receive."""
    other = 1 - dist.get_rank()
    sent = torch.full((MANY,), float(dist.get_rank()))
    return [
        dist.P2POp(dist.isend, sent, other, group), dist.P2POp(dist.irecv, torch.full((MANY,), -1.0), other, group)
    ]  # fmt: skip


def exchange_over_gloo() -> tuple[bool, dict[str, int]]:
    ops = exchange()
    with Counted() as counted:
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    received = ops[1].tensor
    return bool((received == 1 - dist.get_rank()).all()), counted.inner


def test_gloo_has_each_alone(two: World) -> None:
    assert equal(two.run(exchange_over_gloo)) == (True, {"send": 1, "recv": 1})


class Recorder:
    """An inner group that notes what it is to do."""

    def __init__(self, coalesces: bool) -> None:
        self.noted, self._backend = list[str](), SimpleNamespace(supports_coalescing=coalesces)

    def _get_backend(self, device: torch.device) -> Any:
        return self._backend

    def _start_coalescing(self, device: torch.device) -> None:
        self.noted.append(f"start {device}")

    def _end_coalescing(self, device: torch.device) -> str:
        self.noted.append(f"end {device}")
        return "all"

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> str:
        self.noted.append(f"send to {rank}")
        return "sent"

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> str:
        self.noted.append(f"receive from {rank}")
        return "received"


def record(coalesces: bool, twice: bool = False) -> tuple[list[str], list[list[Any]]]:
    """What the inner group was to do for a batch, and for one of a function that was imported before; what these
    returned."""
    group: Any = world()
    if twice:
        coalesce_batches()
    inner, recorder = group.inner, Recorder(coalesces)
    group.inner = recorder
    try:
        works: list[Any] = [dist.batch_isend_irecv(exchange()), imported_before_there_was_a_group(exchange())]
    finally:
        group.inner = inner
    return recorder.noted, works


@pytest.mark.parametrize("twice", [False, True])
def test_a_batch_is_coalesced_where_the_backend_does_that(two: World, twice: bool) -> None:
    for rank, (noted, works) in enumerate(two.run(record, True, twice)):
        assert noted == ["start cpu", f"send to {1 - rank}", f"receive from {1 - rank}", "end cpu"] * 2
        assert works == [["all"], ["all"]]


def test_a_batch_is_not_coalesced_where_the_backend_does_not(two: World) -> None:
    for rank, (noted, works) in enumerate(two.run(record, False)):
        assert noted == [f"send to {1 - rank}", f"receive from {1 - rank}"] * 2
        assert works == [["sent", "received"]] * 2


def refuse_batches() -> tuple[list[str], float]:
    """What is wrong with some batches, and a sum after them: none of them leaves a group coalescing."""
    group: Any = world()
    wrong: list[Any] = [exchange()[0], [1], [*exchange(), dist.P2POp(dist.isend, torch.ones(1), 0, dist.new_group())]]
    inner, group.inner = group.inner, Recorder(True)
    texts = []
    try:
        for batch in wrong:
            with pytest.raises(ValueError, match=r"P2POp|same group") as caught:
                dist.batch_isend_irecv(batch)
            texts.append(str(caught.value))
        assert group.inner.noted == []
    finally:
        group.inner = inner
    ones = torch.ones(3)
    dist.all_reduce(ones)
    return texts, float(ones[0])


def test_what_is_no_batch_is_refused_as_before(two: World) -> None:
    texts, summed = equal(two.run(refuse_batches))
    assert "P2POp" in texts[0]
    assert "P2POp" in texts[1]
    assert "same group" in texts[2]
    assert summed == 2.0


def exchange_beside() -> tuple[bool, bool]:
    """In a group of torch's own, after there was one of ours."""
    dist.new_group(backend="inagg")
    ops = exchange(dist.group.WORLD)
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return bool((ops[1].tensor == 1 - dist.get_rank()).all()), type(dist.group.WORLD) is dist.ProcessGroup


def test_another_group_has_what_it_had(beside: World) -> None:
    assert equal(beside.run(exchange_beside)) == (True, True)
