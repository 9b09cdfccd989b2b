"""Errors of the inner group: they say who is gone, where the switch knows it, and are as they were where not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from tests.host.torch.ranks import equal
from tests.host.torch.test_ddp import backward
from tests.host.torch.world import World
from torch._C._distributed_c10d import BuiltinCommHookType, HashStore
from torch.nn.parallel import DistributedDataParallel

from inagg_host.errors import CLOSED_SUMMING, AllReduceError
from inagg_host.torch import inner_work
from inagg_host.torch.inner import make_inner
from inagg_host.torch.inner_work import Names, begin

GONE = "rank 1 of job 'train' has been silent for 2.1 s"
NAMED = rf"^{GONE}; the inner group says: .*(Connection closed|Read error)"
PATIENCE_S = 30.0


class Jobs:
    """A group's jobs at a switch that knows nothing yet."""

    def __init__(self) -> None:
        self.listening, self.failure = True, cast(AllReduceError | None, None)

    @contextmanager
    def told(self, after_s: float = 0.2) -> Iterator[None]:
        """The switch says after a while who is gone."""
        later = threading.Timer(after_s, setattr, (self, "failure", AllReduceError(GONE)))
        later.start()
        yield
        later.join()


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def names(jobs: Jobs) -> Names:
    return Names(cast(Any, jobs))


@pytest.fixture
def alone() -> dist.ProcessGroup:
    """A rank of Gloo whose only other one is gone."""
    store = HashStore()
    with ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(lambda rank: make_inner(store, rank, 2, timedelta(seconds=10), False), range(2))
    del second
    return first


def all_gather(names: Names, group: dist.ProcessGroup) -> dist.Work:
    work: dist.Work = begin(names, group.allgather, [[torch.empty(4), torch.empty(4)]], [torch.ones(4)])
    return work


def test_a_wait_names_the_rank_as_soon_as_the_switch_does(jobs: Jobs, names: Names, alone: dist.ProcessGroup) -> None:
    with jobs.told(), pytest.raises(AllReduceError, match=NAMED) as caught:
        all_gather(names, alone).wait()
    assert type(caught.value.__cause__) is RuntimeError


def test_a_future_names_the_rank(jobs: Jobs, names: Names, alone: dist.ProcessGroup) -> None:
    with jobs.told(), pytest.raises(RuntimeError, match=NAMED.replace("^", "AllReduceError: ")):
        all_gather(names, alone).get_future().wait()


def test_the_exception_of_a_work_names_the_rank(jobs: Jobs, names: Names, alone: dist.ProcessGroup) -> None:
    work = all_gather(names, alone)
    give_up_s = time.monotonic() + PATIENCE_S
    while not work.is_completed() and time.monotonic() < give_up_s:
        time.sleep(0.01)
    with jobs.told():
        error = work.exception()
    assert isinstance(error, AllReduceError)
    assert str(error).startswith(GONE)
    assert not work.is_success()


def test_an_operation_that_fails_at_once_names_the_rank(jobs: Jobs, names: Names) -> None:
    def send() -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")

    with jobs.told(), pytest.raises(AllReduceError, match=NAMED):
        begin(names, send)


def seconds_of_an_error(begins: Callable[[], Any]) -> float:
    """How long it takes until the error is raised that the inner group has."""
    began_s = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        begins()
    assert not isinstance(caught.value, AllReduceError)
    return time.monotonic() - began_s


def test_where_the_switch_knows_nobody_the_error_is_as_it_was_and_only_the_first_waits(
    names: Names, alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner_work, "NAMED_S", 1.0)
    assert seconds_of_an_error(lambda: all_gather(names, alone).wait()) >= 1.0
    assert seconds_of_an_error(lambda: all_gather(names, alone).wait()) < 0.5


@pytest.mark.parametrize("why", ["not joined", "left", "gone"])
def test_no_word_is_waited_for_where_none_will_come(
    why: str, jobs: Jobs, names: Names, alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner_work, "NAMED_S", PATIENCE_S)
    work = all_gather(names, alone)
    jobs.listening = False
    if why == "left":
        jobs.failure = AllReduceError(CLOSED_SUMMING)
    if why == "gone":
        names._jobs = lambda: None  # type: ignore[assignment]
    assert seconds_of_an_error(work.wait) < PATIENCE_S / 2


def test_of_wrong_arguments_nobody_is_asked(
    names: Names, alone: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner_work, "NAMED_S", PATIENCE_S)
    twice = torch.ones(2, 2).to_sparse()
    assert seconds_of_an_error(lambda: begin(names, alone.allgather, [[twice, twice]], [twice])) < PATIENCE_S / 2


# --- where nothing fails ---


def receive_from_any() -> tuple[int, float]:
    """From whom, and what."""
    if dist.get_rank() == 0:
        dist.send(torch.full((3,), 7.0), 1)
        return 0, 7.0
    received = torch.zeros(3)
    return dist.recv(received), float(received[0])


def test_who_receives_from_any_rank_is_told_from_whom(two: World) -> None:
    assert equal(two.run(receive_from_any)) == (0, 7.0)


def gather_by_future() -> list[float]:
    parts = [torch.empty(3) for _ in range(2)]
    work = dist.all_gather(parts, torch.full((3,), float(dist.get_rank() + 1)), async_op=True)
    assert work is not None
    found = work.get_future().then(lambda done: done.value()).wait()
    return [float(part[0]) for part in found]


def test_futures_have_what_was_gathered(two: World) -> None:
    assert equal(two.run(gather_by_future)) == [1.0, 2.0]


def train_with_a_hook_of_torch() -> float:
    """The gradient, of a bucket that is too small for the switch."""
    model = DistributedDataParallel(torch.nn.Linear(10, 1, bias=False))
    model._register_builtin_comm_hook(BuiltinCommHookType.FP16_COMPRESS)  # type: ignore[no-untyped-call]
    backward(model(torch.full((1, 10), 1.0 + dist.get_rank())).sum())
    return float(model.module.weight.grad[0, 0])


def test_hooks_that_torch_has_in_cpp_take_what_small_buckets_give(two: World) -> None:
    assert equal(two.run(train_with_a_hook_of_torch)) == 1.5
