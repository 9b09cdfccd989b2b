"""Hosts of several ranks: what is done on a device in which order. Nothing is summed: streams and groups are noted.

On a GPU, and with its streams: `test_gpu_ends.test_hosts_of_several_ranks_sum_gpu_tensors` and
`test_gpu_ends.test_ddp_over_hosts_of_several_ranks_has_the_same_parameters_on_all`. Who changes the one looks at the
other.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from inagg_host.errors import AllReduceError
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
        self.scattering = list["weakref.ref[Scattering]"]()
        """Works of Gloo that reduce-scatter."""
        self.here = ""
        """The stream that is current."""
        self.kept = list[bool]()
        """Whether those were there when the device was last waited for."""
        self.idle = threading.Event()
        """The device has done all that it was given."""
        self.idle.set()
        self.works = list[Future[None]]()
        """What the network has to sum."""
        self.at_once = False
        """It has the sums as soon as it is given something."""
        config = SimpleNamespace(workers=2, rank=0, job="job.0")
        self.arrays = arrays = SimpleNamespace(
            config=config, timeout_s=30.0, failure=None, take_turn=lambda: 0,
            later=lambda call: threading.Thread(target=call).start(),
        )  # fmt: skip
        sums = SimpleNamespace(arrays=arrays, submit=self._submit, close=lambda *_, **__: None)
        self.sums = HostAllReduce(cast(Any, sums), cast(Any, Group(self)), cast(Any, Group(self)))

    def note(self, what: str) -> None:
        self.noted.append(f"{what} on {self.here}" if self.here else what)

    def _submit(self, part: torch.Tensor, *_: Any, **__: Any) -> Any:
        number = len(self.works) + 1
        self.note(f"submits {number}")
        self.works.append(Future())
        work = self.works[-1]
        if self.at_once:
            work.set_result(None)

        def when_over(call: Callable[[BaseException | None], None]) -> None:
            work.add_done_callback(lambda done: call(done.exception()))

        return SimpleNamespace(wait_here=lambda: self.note(f"waits for {number}"), when_over=when_over)

    def submit(self) -> TensorWork:
        return self.sums.submit(torch.ones(64).as_subclass(CudaTensor))

    def scatter(self) -> TensorWork:
        part = torch.zeros(16).as_subclass(CudaTensor)
        return self.sums.submit(torch.ones(64).as_subclass(CudaTensor), part, scatter=True)


class Group:
    """A group of NCCL: its works only enqueue."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 0

    def alltoall_base(self, *_: Any) -> Any:
        return SimpleNamespace(wait=lambda: self._rig.note("exchanged"))

    def _reduce_scatter_base(self, *_: Any) -> Scattering:
        work = Scattering()
        self._rig.scattering.append(weakref.ref(work))
        return work

    def shutdown(self) -> None:
        self._rig.note("shut down")

    def abort(self) -> None:
        self._rig.note("aborted")


class Scattering:
    """What Gloo gives for a reduce-scatter: memory to copy from is gone with it."""

    def wait(self) -> None:
        pass


class NotedStream:
    """A `DeviceStream` of no device."""

    device, external = CPU, None

    def __init__(self, rig: Rig, name: str) -> None:
        self._rig, self._name = rig, name

    def current(self) -> AbstractContextManager[None]:
        self._rig.here = self._name
        return nullcontext()

    def record_event(self) -> Any:
        rig = self._rig

        def synchronize() -> None:
            rig.noted.append(f"{self._name} has done all")
            rig.kept = [work() is not None for work in rig.scattering]
            assert rig.idle.wait(PATIENCE_S)

        return SimpleNamespace(synchronize=synchronize, wait=lambda _: None)

    def close(self) -> None:
        pass


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    found, names = Rig(), iter(("scatters", "gathers", "callbacks"))
    monkeypatch.setattr(hosts, "DeviceStream", lambda _: NotedStream(found, next(names)))
    return found


def test_the_next_tensor_is_submitted_on_a_stream_that_does_not_wait_for_sums(rig: Rig) -> None:
    for _ in range(2):
        rig.submit()
    for work in rig.works:
        work.set_result(None)
    rig.sums.close()
    assert [line for line in rig.noted if "submits" in line or "waits" in line] == [
        "submits 1 on scatters", "waits for 1 on gathers", "submits 2 on scatters", "waits for 2 on gathers"
    ]  # fmt: skip


def test_a_tensor_is_there_when_the_device_has_gathered_it_and_not_before(rig: Rig) -> None:
    work = rig.submit()
    assert not work.is_completed()
    assert "gathers has done all" not in rig.noted
    rig.works[0].set_result(None)  # this rank's part has come from the network
    assert work.is_completed()
    assert rig.noted[-1] == "gathers has done all"
    rig.sums.close()


def test_what_scatters_inside_of_a_host_is_kept_until_the_device_has_the_sums(rig: Rig) -> None:
    rig.scatter()
    for thread in (rig.sums._begin, rig.sums._end):  # have they let go of it?
        thread.submit(lambda: None).result()
    rig.works[0].set_result(None)
    rig.sums.close()
    assert rig.kept == [True]
    rig.works.clear()  # futures keep their callbacks
    assert rig.scattering[0]() is None


def test_who_submits_does_not_wait_for_the_device_though_this_ranks_part_is_there(rig: Rig) -> None:
    rig.at_once = True
    rig.idle.clear()
    works = list[TensorWork]()
    submits = threading.Thread(target=lambda: works.append(rig.submit()), daemon=True)
    submits.start()
    submits.join(PATIENCE_S / 3)
    in_time = not submits.is_alive()
    rig.idle.set()
    submits.join()
    assert in_time
    works[0]._pending.result(PATIENCE_S)
    rig.sums.close()


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (None, r"^sums inside of host 0 \(ranks 0 to 1\) failed, .*: Connection closed by peer$"),
        (
            "rank 1 fell silent",
            r"^rank 1 fell silent \(rank N of job 'job\.0' is that of host N: rank 2 N \+ 0 here\)$",
        ),
    ],
)
def test_a_host_blames_its_own_ranks_only_where_nobody_else_is_known_to_be_gone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, known: str | None, said: str
) -> None:
    """Where somebody is, its other ranks have heard it, too, and have closed what it sums inside with."""

    def closed() -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(Group, "alltoall_base", lambda *_: SimpleNamespace(wait=closed))
    rig.arrays.failure = known and AllReduceError(known)
    with pytest.raises(AllReduceError, match=said):
        rig.submit().result()
    rig.sums.close()


def test_nothing_is_waited_for_or_ended_in_a_process_that_was_forked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.submit()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        rig.sums.drain()
        rig.sums.close(end=True)
        with pytest.raises(AllReduceError, match="was forked"):
            rig.submit()
    assert "shut down" not in " ".join(rig.noted)
    rig.works[0].set_result(None)
    rig.sums.close()


def test_closing_waits_for_a_rank_of_the_host_no_longer_than_an_operation_may_take(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It sleeps, and the groups of the host do not hear that the job has ended."""
    rig, over = Rig(), threading.Event()
    rig.sums.arrays.timeout_s = 0.1
    rig.sums._begin.submit(over.wait, PATIENCE_S)
    began_s = time.monotonic()
    rig.sums.close()
    assert time.monotonic() - began_s < PATIENCE_S / 2
    assert "another rank of this host is still waited for" in caplog.text
    over.set()
