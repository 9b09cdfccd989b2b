"""Work objects: as torch.distributed wants them, over any future."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from inagg_host.allreduce import AllReduceError
from inagg_host.torch.work import NO_TIMEOUT, JoinedWork, TensorWork, failed

SOON = timedelta(milliseconds=20)
COLLECT_ALL = torch.futures.collect_all


def make_work() -> tuple[TensorWork, Future[None], list[str]]:
    """A work, the future it waits for, and what its `finish` writes to."""
    pending: Future[None] = Future()
    calls: list[str] = []
    return TensorWork(pending, [torch.ones(2)], lambda: calls.append("finish")), pending, calls


def test_wait_returns_when_the_sums_are_there() -> None:
    work, pending, calls = make_work()
    threading.Timer(0.05, pending.set_result, [None]).start()
    assert work.wait()
    assert calls == ["finish"]


def test_finish_is_called_once() -> None:
    work, pending, calls = make_work()
    future = work.get_future()
    pending.set_result(None)
    work.wait()
    future.wait()
    assert calls == ["finish"]


def test_finish_comes_before_the_future() -> None:
    work, pending, calls = make_work()
    chained = work.get_future().then(lambda done: [*calls, "then"])
    pending.set_result(None)
    assert chained.wait() == ["finish", "then"]


def test_finish_is_called_though_nobody_waits() -> None:
    work, pending, calls = make_work()
    del work
    pending.set_result(None)
    assert calls == ["finish"]


def test_finish_is_not_called_after_an_error() -> None:
    _, pending, calls = make_work()
    pending.set_exception(AllReduceError("gone"))
    assert calls == []


@pytest.mark.parametrize("future", [False, True])
def test_tensors_are_free_without_a_garbage_collection(future: bool) -> None:
    work, pending, _ = make_work()
    tensor = weakref.ref(work._tensors[0])
    gc.disable()
    try:
        if future:
            work.get_future().then(lambda done: None)
        pending.set_result(None)
        del work, pending
        assert tensor() is None
    finally:
        gc.enable()


def test_a_future_has_the_list_of_tensors() -> None:
    work, pending, _ = make_work()
    pending.set_result(None)
    (tensor,) = work.get_future().wait()
    assert tensor is work.result()[0]


def test_the_same_future_every_time() -> None:
    work, _, _ = make_work()
    assert work.get_future() is work.get_future()


def test_waiting_has_a_limit_and_the_work_goes_on() -> None:
    work, pending, _ = make_work()
    with pytest.raises(AllReduceError, match=r"0\.02 s"):
        work.wait(SOON)
    assert not work.is_completed()
    pending.set_result(None)
    assert work.wait()


def test_the_longest_limit_is_taken() -> None:
    work, pending, _ = make_work()
    threading.Timer(0.05, pending.set_result, [None]).start()
    assert work.wait(timedelta.max)


def test_an_error_is_raised_by_wait_and_future() -> None:
    work, pending, calls = make_work()
    future = work.get_future()
    pending.set_exception(AllReduceError("the switch is gone"))
    with pytest.raises(AllReduceError, match="the switch is gone"):
        work.wait()
    with pytest.raises(RuntimeError, match="the switch is gone"):
        future.wait()
    assert calls == []
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), AllReduceError)


def test_an_error_in_finish_is_raised_by_the_future() -> None:
    pending: Future[None] = Future()

    def finish() -> None:
        raise ValueError("no room")

    future = TensorWork(pending, [], finish).get_future()
    pending.set_result(None)
    with pytest.raises(RuntimeError, match="no room"):
        future.wait()


def test_its_state_can_be_asked_for_without_waiting() -> None:
    work, pending, _ = make_work()
    assert (work.is_completed(), work.is_success(), work.exception()) == (False, False, None)
    pending.set_result(None)
    assert (work.is_completed(), work.is_success(), work.exception()) == (True, True, None)


def test_what_is_said_to_be_completed_is_in_its_place() -> None:
    work, pending, calls = make_work()
    pending.set_result(None)
    assert work.is_completed()
    assert calls == ["finish"]


def test_a_failed_work_fails_its_future() -> None:
    with pytest.raises(RuntimeError, match="gone"):
        failed(AllReduceError("gone")).get_future().wait()


def test_joined_works_are_done_when_all_are() -> None:
    (first, one, _), (second, two, _) = make_work(), make_work()
    tensors = [torch.ones(1), torch.ones(2)]
    joined = JoinedWork([first, second], tensors)
    future = joined.get_future()
    one.set_result(None)
    assert not joined.is_completed()
    assert not future.done()
    two.set_result(None)
    assert joined.wait()
    assert joined.is_success()
    assert future.wait() == joined.result() == tensors


def test_joined_works_fail_when_one_does() -> None:
    (first, one, _), (second, two, _) = make_work(), make_work()
    joined = JoinedWork([first, second], [])
    one.set_exception(AllReduceError("gone"))
    two.set_result(None)
    with pytest.raises(AllReduceError, match="gone"):
        joined.wait()
    with pytest.raises(RuntimeError, match="gone"):
        joined.get_future().wait()
    assert isinstance(joined.exception(), AllReduceError)
    assert not joined.is_success()


class _Slow(dist.Work):
    """Takes a while, and notes how long it was given."""

    def __init__(self, seconds: float, given: list[timedelta]) -> None:
        super().__init__()
        self._seconds, self._given = seconds, given

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        self._given.append(timeout)
        time.sleep(self._seconds)
        return True


def test_joined_works_share_the_limit_of_a_wait() -> None:
    given: list[timedelta] = []
    joined = JoinedWork([_Slow(0.05, given), _Slow(0.06, given), _Slow(0.0, given)], [])
    assert joined.wait(timedelta(seconds=0.1))
    assert timedelta(0) < given[0] <= timedelta(seconds=0.1)
    assert timedelta(0) < given[1] <= timedelta(seconds=0.05)
    assert given[2] == timedelta(milliseconds=1), "none would be no limit"
    assert joined.wait()
    assert given[3:] == [NO_TIMEOUT] * 3


class _DeviceFuture(Future[Any]):
    """What torch says of its future of devices, of which a build for the CPU has none: what is chained to it is called
    on streams of its own, and whoever waits for it when it is done has his stream wait."""

    noted: ClassVar[list[str]] = []

    def __init__(self, devices: list[torch.device] | None = None) -> None:
        super().__init__()
        self.devices = devices or []

    def then(self, call: Callable[[Any], Any]) -> _DeviceFuture:
        chained = _DeviceFuture(self.devices)

        def run(done: Any) -> None:
            self.noted.append(f"on streams of {[str(device) for device in self.devices]}")
            try:
                chained.set_result(call(done))
            except Exception as error:
                chained.set_exception(error)

        self.add_done_callback(run)
        return chained


class _Part(dist.Work):
    """One whose future notes that it is waited for."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.raw = name, torch.futures.Future[Any]()

    def get_future(self) -> Any:
        return _NotedFuture(self.name, self.raw)


def _collect_all(futures: list[_NotedFuture]) -> torch.futures.Future[Any]:
    """As that of torch, which takes futures of its own alone."""
    return COLLECT_ALL([future.raw for future in futures]).then(
        lambda done: [futures, done.value()][0]  # raises what a part has failed with
    )


class _NotedFuture:
    def __init__(self, name: str, raw: torch.futures.Future[Any]) -> None:
        self.name, self.raw = name, raw

    def wait(self) -> None:
        _DeviceFuture.noted.append(f"wait for {self.name}")
        self.raw.wait()

    def value(self) -> None:
        _DeviceFuture.noted.append(f"see {self.name}")
        self.raw.value()


def join_on_devices(monkeypatch: pytest.MonkeyPatch) -> tuple[JoinedWork, _Part, _Part, list[Any]]:
    """Works of CUDA tensors, which note what torch does, and the tensors."""
    monkeypatch.setattr("inagg_host.torch.work.Future", _DeviceFuture)
    monkeypatch.setattr(torch.futures, "collect_all", _collect_all)
    monkeypatch.setattr(_DeviceFuture, "noted", [])
    tensors: list[Any] = [SimpleNamespace(device=torch.device(name)) for name in ("cuda:0", "cpu", "cuda:1", "cuda:0")]
    first, second = _Part("first"), _Part("second")
    return JoinedWork([first, second], tensors), first, second, tensors


def test_streams_wait_for_all_of_joined_works(monkeypatch: pytest.MonkeyPatch) -> None:
    joined, first, second, tensors = join_on_devices(monkeypatch)
    future: Any = joined.get_future()
    assert [str(device) for device in future.devices] == ["cuda:0", "cuda:1"]
    second.raw.set_result(None)
    assert not future.done()
    first.raw.set_result(None)
    assert future.result(timeout=5.0) == tensors
    assert _DeviceFuture.noted == ["on streams of ['cuda:0', 'cuda:1']", "wait for first", "wait for second"]


def test_joined_works_of_devices_fail_when_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    joined, first, second, _ = join_on_devices(monkeypatch)
    future: Any = joined.get_future()
    first.raw.set_exception(AllReduceError("gone"))
    second.raw.set_result(None)
    with pytest.raises(Exception, match="gone"):
        future.result(timeout=5.0)


def test_whoever_asks_is_told_how_it_ended() -> None:
    told: list[BaseException | None] = []
    for error in (None, AllReduceError("gone")):
        work, pending, _ = make_work()
        work.when_over(told.append)
        if error is None:
            pending.set_result(None)
        else:
            pending.set_exception(error)
        assert told.pop() is error
