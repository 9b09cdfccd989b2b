"""Waiting for the sums of CUDA tensors: the stream waits, or the host. What CUDA would do is noted here, not done: that
it does so is tested where there is a GPU, and who changes the one looks at the other.

| here | on a GPU |
|---|---|
| the stream waits, and the host goes on | `test_gpu_steps.test_many_streams_wait_for_sums` |
| the host waits until all is launched, or for the result | `test_cuda.test_cuda_tensors_are_summed` |
| who is told of sums waits for them alone | `test_gpu_ends.test_what_is_chained_to_several_sums_finds_all_of_them` |
| what cannot be captured | `test_gpu_ends.test_what_cannot_be_captured_says_so_and_nothing_is_lost` |
| another thread captures a graph | `test_cuda.test_a_graph_can_be_captured_while_sums_come` |
| a stream is used again | `test_gpu_steps.test_a_thousand_steps_take_no_more_memory` |
| a thread enters a device | `test_cuda.test_a_rank_of_the_second_gpu_uses_nothing_of_the_first` |
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from inagg_host.allreduce import AllReduceError
from inagg_host.torch.gpu import driver, stream
from inagg_host.torch.gpu.arrival import Arrival, refuse_capture
from inagg_host.torch.work import TensorWork

CUDA = torch.device("cuda", 0)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each time that the training stream was given an event to wait for."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    return []


def make_work(noted: list[str], alone: bool = True) -> tuple[TensorWork, Future[None], Arrival]:
    event = SimpleNamespace(wait=lambda stream: noted.append("waits"))
    brings: Any = SimpleNamespace(device=CUDA, record_event=lambda: event)
    pending, arrival = Future[None](), Arrival(brings, brings, alone)
    return TensorWork(pending, [torch.ones(2)], arrival=arrival), pending, arrival


@pytest.mark.parametrize("how", ["wait", "synchronize", "block_current_stream"])
def test_the_stream_waits_for_the_sums_and_the_host_goes_on(noted: list[str], how: str) -> None:
    work, _, arrival = make_work(noted)
    arrival.come()
    getattr(work, how)()
    assert noted == ["waits"]
    assert not work.is_completed()


@pytest.mark.parametrize("how", ["wait", "synchronize", "block_current_stream"])
def test_the_host_waits_until_all_that_brings_the_sums_is_launched(noted: list[str], how: str) -> None:
    work, pending, arrival = make_work(noted)

    def come() -> None:
        arrival.come()
        pending.set_result(None)

    assert_waits_for(getattr(work, how), noted, come)


@pytest.mark.parametrize("text", ["1", "yes"])
def test_the_host_waits_for_the_sums_where_it_is_told_to(
    noted: list[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("INAGG_BLOCKING_WAIT", text)
    work, pending, arrival = make_work(noted)
    arrival.come()
    assert_waits_for(work.wait, noted, lambda: pending.set_result(None))


def test_the_host_waits_for_sums_that_need_python(noted: list[str]) -> None:
    work, pending, arrival = make_work(noted, alone=False)
    arrival.come()
    assert_waits_for(work.wait, noted, lambda: pending.set_result(None))


def test_the_host_waits_for_the_result(noted: list[str]) -> None:
    work, pending, arrival = make_work(noted)
    arrival.come()
    assert_waits_for(work.result, noted, lambda: pending.set_result(None))


def assert_waits_for(wait: Callable[[], object], noted: list[str], come: Callable[[], object]) -> None:
    """The host waits until ``come`` is called, and then the stream."""
    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    assert noted == []
    come()
    waiting.join()
    assert noted == ["waits"]


def test_wait_with_a_limit_is_the_hosts(noted: list[str]) -> None:
    work, _, arrival = make_work(noted)
    arrival.come()
    with pytest.raises(AllReduceError, match="no result within"):
        work.wait(timedelta(milliseconds=20))
    assert noted == []


def test_what_is_known_to_be_wrong_is_raised(noted: list[str]) -> None:
    work, pending, arrival = make_work(noted)
    arrival.come()
    pending.set_exception(AllReduceError("gone"))
    with pytest.raises(AllReduceError, match="gone"):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()


def test_who_is_told_of_sums_waits_for_them_alone(noted: list[str]) -> None:
    """And not for what the stream that brings them has to do after them."""

    @contextmanager
    def told() -> Iterator[None]:
        noted.append("begin")
        yield
        noted.append("end")

    event = SimpleNamespace(wait=lambda stream: noted.append("waits"))
    brings: Any = SimpleNamespace(device=CUDA, record_event=lambda: event)
    arrival = Arrival(brings, cast("Any", SimpleNamespace(current=told)))
    arrival.come()
    with arrival.there():
        noted.append("told")
    assert noted == ["begin", "waits", "told", "end"]


def test_an_all_reduce_cannot_be_captured(noted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    work, _, _ = make_work(noted)
    asked_of: list[torch.device] = []

    @contextmanager
    def on(device: torch.device) -> Iterator[None]:
        asked_of.append(device)
        try:
            yield
        finally:
            asked_of.pop()

    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: asked_of == [CUDA])
    for call in (lambda: refuse_capture(CUDA), work.wait, work.synchronize):
        with pytest.raises(RuntimeError, match="cannot be captured into a CUDA graph"):
            call()
    refuse_capture(torch.device("cpu"))


def test_the_host_waits_though_another_thread_captures_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """In CUDA's mode "global" no thread may wait meanwhile, but one that says that it has nothing to do with it."""
    noted: list[str] = []

    def exchange(name: str, mode: Any) -> None:
        now, before = mode._obj.value, "global" if noted == ["on cuda:0"] else "relaxed"
        noted.append(f"{name}: {before} to {['global', 'thread local', 'relaxed'][now]}")
        mode._obj.value = ["global", "thread local", "relaxed"].index(before)

    monkeypatch.setattr(driver, "_call", exchange)

    @contextmanager
    def on_device(device: torch.device) -> Iterator[None]:
        noted.append(f"on {device}")
        yield

    monkeypatch.setattr(stream, "on_device", on_device)
    event: Any = SimpleNamespace(synchronize=lambda: noted.append("waits"))
    stream.Event(event, CUDA).synchronize()
    name = "cuThreadExchangeStreamCaptureMode"
    assert noted == ["on cuda:0", f"{name}: global to relaxed", "waits", f"{name}: relaxed to global"]


def test_a_stream_is_used_again_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = iter(range(1, 10))
    monkeypatch.setattr(driver, "make_stream", lambda: next(handles))
    monkeypatch.setattr(stream, "on_device", nullcontext)
    monkeypatch.setattr(stream, "_ExternalStream", lambda handle, device: handle)
    monkeypatch.setattr(stream, "_idle", defaultdict(list))
    first, second = stream.DeviceStream(CUDA), stream.DeviceStream(CUDA)
    first.close()
    first.close()
    assert [first.handle, second.handle, stream.DeviceStream(CUDA).handle, stream.DeviceStream(CUDA).handle] == [
        1,
        2,
        1,
        3,
    ]


def test_two_threads_may_want_the_last_stream_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Contested(list[Any]):
        def __bool__(self) -> bool:
            """Who asks finds one, which another thread takes before he does."""
            found = len(self) > 0
            self.clear()
            return found

    monkeypatch.setattr(driver, "make_stream", lambda: 2)
    monkeypatch.setattr(stream, "on_device", nullcontext)
    monkeypatch.setattr(stream, "_ExternalStream", lambda handle, device: handle)
    monkeypatch.setattr(stream, "_idle", {CUDA: Contested([(1, 1)])})
    assert stream.DeviceStream(CUDA).handle in (1, 2)
    assert stream.DeviceStream(CUDA).handle == 2


@pytest.mark.parametrize(("bound", "current"), [(True, 0), (True, 1), (False, 0)])
def test_a_thread_enters_a_device_unless_it_is_there(
    bound: bool, current: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = list[object]()

    @contextmanager
    def enter(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    monkeypatch.setattr(driver, "is_bound", lambda: bound)
    monkeypatch.setattr(driver, "bind", entered.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device", enter)
    with stream.on_device(CUDA):
        assert entered == ([] if bound and current == 0 else [CUDA, current])
