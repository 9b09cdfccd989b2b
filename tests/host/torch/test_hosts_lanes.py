"""Hosts of several ranks: what is done on a device in which order. Nothing is summed: lanes and groups are noted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from inagg_host.torch import hosts
from inagg_host.torch.hosts import HostAllReduce
from inagg_host.torch.work import TensorWork

CPU = torch.device("cpu")
PATIENCE_S = 30.0


class CudaTensor(torch.Tensor):
    """A tensor of the CPU that says that it is of CUDA."""

    is_cuda = True


class Rig:
    """A `HostAllReduce` of two ranks on this host, of which everything is noted."""

    def __init__(self) -> None:
        self.noted = list[str]()
        self.here = ""
        """The lane that is current."""
        self.works = list[Future[None]]()
        """What the network has to sum."""
        config = SimpleNamespace(workers=2, timeout_s=30.0)
        sums = SimpleNamespace(arrays=SimpleNamespace(config=config), submit=self._submit, close=lambda *_, **__: None)
        self.sums = HostAllReduce(cast(Any, sums), cast(Any, Group(self)), cast(Any, Group(self)))

    def note(self, what: str) -> None:
        self.noted.append(f"{what} on {self.here}" if self.here else what)

    def _submit(self, part: torch.Tensor, *_: Any, **__: Any) -> Any:
        number = len(self.works) + 1
        self.note(f"submits {number}")
        self.works.append(Future())
        work = self.works[-1]

        def when_over(call: Callable[[BaseException | None], None]) -> None:
            work.add_done_callback(lambda done: call(done.exception()))

        return SimpleNamespace(wait_here=lambda: self.note(f"waits for {number}"), when_over=when_over)

    def submit(self) -> TensorWork:
        return self.sums.submit(torch.ones(64).as_subclass(CudaTensor))


class Group:
    """A group of NCCL: its works only enqueue."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def size(self) -> int:
        return 2

    def alltoall_base(self, *_: Any) -> Any:
        return SimpleNamespace(wait=lambda: self._rig.note("exchanged"))

    def shutdown(self) -> None:
        pass


class NotedLane:
    """A `Lane` without a stream."""

    device, stream = CPU, None

    def __init__(self, rig: Rig, name: str) -> None:
        self._rig, self._name = rig, name

    def __call__(self) -> AbstractContextManager[None]:
        self._rig.here = self._name
        return nullcontext()

    def mark(self) -> Any:
        rig = self._rig

        def wait() -> None:
            rig.noted.append(f"{self._name} has done all")

        return SimpleNamespace(wait=wait, before=lambda _: None)

    def close(self) -> None:
        pass


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    found, names = Rig(), iter(("down", "up", "told"))
    monkeypatch.setattr(hosts, "Lane", lambda _: NotedLane(found, next(names)))
    return found


def test_the_next_tensor_is_submitted_in_a_lane_that_does_not_wait_for_sums(rig: Rig) -> None:
    for _ in range(2):
        rig.submit()
    for work in rig.works:
        work.set_result(None)
    rig.sums.close()
    assert [line for line in rig.noted if "submits" in line or "waits" in line] == [
        "submits 1 on down", "waits for 1 on up", "submits 2 on down", "waits for 2 on up"
    ]  # fmt: skip


def test_a_tensor_is_there_when_the_device_has_gathered_it_and_not_before(rig: Rig) -> None:
    work = rig.submit()
    assert not work.is_completed()
    assert "up has done all" not in rig.noted
    rig.works[0].set_result(None)  # this rank's part has come from the network
    assert work.is_completed()
    assert rig.noted[-1] == "up has done all"
    rig.sums.close()


def test_closing_waits_for_a_rank_of_the_host_no_longer_than_an_operation_may_take(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It sleeps, and the groups of the host do not hear that the job has ended."""
    rig, over = Rig(), threading.Event()
    rig.sums.arrays.config = cast(Any, SimpleNamespace(timeout_s=0.1))
    rig.sums._begin.submit(over.wait, PATIENCE_S)
    began_s = time.monotonic()
    rig.sums.close()
    assert time.monotonic() - began_s < PATIENCE_S / 2
    assert "another rank of this host is still waited for" in caplog.text
    over.set()
