"""A signal whose handler raises at any place of a group's sum: it comes, or had not begun, or all get an error."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.host.interrupting import Array, interrupt, interrupt_everywhere
from tests.link.signalling import handler_as_before, set_handler
from tests.link.signalling import interrupt as handler
from torch._C._distributed_c10d import HashStore, Store

from inagg_host.torch.backend import InaggGroup
from inagg_host.torch.job import GroupJob

pytestmark = [pytest.mark.usefixtures(handler_as_before.__name__), pytest.mark.timeout(method="thread")]

BEFORE = {"GroupJob.join", "mark"}
"""What runs when a call has its number, and may be interrupted."""


class _Rank:
    def __init__(self, switch: str, store: Store, begin: Callable[[InaggGroup, Array], None], rank: int) -> None:
        options = {"switch": switch, "job": "anywhere", "format": "fix32", "min_bytes": 0}
        self._group = InaggGroup(store, rank, 2, timedelta(seconds=30), "anywhere", options)
        self._begin = begin
        self.close = self._group.abort

    def begin(self, values: Array) -> None:
        self._begin(self._group, values)

    def sum(self, values: Array) -> None:
        self._begin(self._group, values)

    def turns(self) -> str:
        return repr(self._group.jobs.current()._calls)


FILES = tuple(f"/inagg_host/{name}" for name in ("allreduce.py", "torch/job.py", "torch/tensors.py"))


def one(group: InaggGroup, values: Array) -> None:
    group.allreduce([torch.from_numpy(values)]).wait()


def several(group: InaggGroup, values: Array) -> None:
    group.allreduce_coalesced(list(torch.from_numpy(values).view(2, -1))).wait()


@pytest.mark.parametrize(
    ("begin", "first", "errors"),
    [
        (one, "GroupJob.sum", {"GroupJob._submit", "TensorAllReduce.submit", "AllReduce.take_turn"}),
        (several, "GroupJob.sum_all", {"GroupJob.sum_all.<locals>.<genexpr>"}),
    ],
)
def test_the_sums_come_or_had_not_begun_or_all_get_an_error(
    switch: str, begin: Callable[[InaggGroup, Array], None], first: str, errors: set[str]
) -> None:
    stores: dict[int, Store] = {}

    def join(rank: int, job: int) -> _Rank:
        return _Rank(switch, stores.setdefault(job, HashStore()), begin, rank)

    set_handler(handler)
    found = interrupt_everywhere(join, FILES)
    assert found["errors"] <= {first, "GroupJob.divisor", *BEFORE, *errors}
    assert not found["left out"] & {*BEFORE, *errors}
    assert found["came"] >= {"GroupJob._submit", "TensorAllReduce._submit_cpu", "AllReduce.begin"}


def close_everywhere(handler: Callable[[GroupJob], Any]) -> None:
    """Close jobs, each interrupted at another place, and once more if it was: all are left."""
    for place in itertools.count():
        options, left = {"switch": "192.0.2.1:1"}, list[Any]()
        job = GroupJob(options, 0, 1, timedelta(seconds=1), "close", lambda said: [said], HashStore())
        sums: Any = SimpleNamespace(drain=lambda: None, close=lambda *_, left=left, **__: left.append(None))
        job._sums = sums
        set_handler(handler(job))
        where = interrupt(place, job.close)
        job.close()
        assert left, where
        if where is None:
            assert place > 10
            return


def test_a_close_that_is_interrupted_anywhere_has_left_or_does_the_next_time() -> None:
    close_everywhere(lambda job: handler)


def test_a_handler_can_close_at_any_place_of_a_close() -> None:
    close_everywhere(lambda job: lambda number, frame: job.close())
