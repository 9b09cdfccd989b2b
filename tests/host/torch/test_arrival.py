"""Waiting for the sums of CUDA tensors: it is the stream that waits. What CUDA would do is noted here, not done."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inagg_host.allreduce import AllReduceError
from inagg_host.torch.gpu import arrival as module
from inagg_host.torch.gpu import driver
from inagg_host.torch.gpu.arrival import Arrival, Words, refuse_capture
from inagg_host.torch.work import TensorWork

CUDA = torch.device("cuda", 0)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What streams were given: the training stream is 1, the lane's 2."""
    calls: list[tuple[Any, ...]] = []
    current = SimpleNamespace(cuda_stream=1)
    monkeypatch.setattr(driver, "write_word", lambda *given: calls.append(("write", *given)))
    monkeypatch.setattr(driver, "wait_for_word", lambda *given: calls.append(("wait", *given)))
    monkeypatch.setattr(module, "on_device", lambda device: nullcontext())
    monkeypatch.setattr(Words, "_can_wait", lambda words, device: True)
    monkeypatch.setattr(Words, "_address", 1000, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return calls


def make_lane(calls: list[tuple[Any, ...]]) -> Any:
    mark = SimpleNamespace(done=lambda: True, before_current=lambda: calls.append(("after", 1)))
    return SimpleNamespace(device=CUDA, stream=SimpleNamespace(cuda_stream=2), mark=lambda: mark)


def make_work(calls: list[tuple[Any, ...]]) -> tuple[TensorWork, Future[None], Arrival]:
    lane, pending = make_lane(calls), Future[None]()
    arrival = Arrival(lane, Words(lane))
    return TensorWork(pending, [torch.ones(2)], arrival=arrival), pending, arrival


def test_wait_has_the_stream_wait_and_not_the_host(noted: list[tuple[Any, ...]]) -> None:
    work, _, arrival = make_work(noted)
    assert work.wait()
    ((what, stream, address, value),) = noted
    assert (what, stream, value) == ("wait", 1, 1)
    arrival.come()
    assert noted[1] == ("write", 2, address, value)


def test_synchronize_waits_for_sums_that_have_not_come(noted: list[tuple[Any, ...]]) -> None:
    """As an event would not, that is not recorded yet."""
    work, _, _ = make_work(noted)
    work.synchronize()
    assert [call[:2] for call in noted] == [("wait", 1)]


def test_what_has_come_is_waited_for_by_an_event(noted: list[tuple[Any, ...]]) -> None:
    work, pending, arrival = make_work(noted)
    arrival.come()
    pending.set_result(None)
    work.wait()
    work.synchronize()
    assert [call[:2] for call in noted] == [("write", 2), ("after", 1), ("after", 1)]


def test_wait_with_a_limit_is_the_hosts(noted: list[tuple[Any, ...]]) -> None:
    work, _, _ = make_work(noted)
    with pytest.raises(AllReduceError, match="no result within"):
        work.wait(timedelta(milliseconds=20))
    assert noted == []


def test_what_is_known_to_be_wrong_is_raised(noted: list[tuple[Any, ...]]) -> None:
    work, pending, arrival = make_work(noted)
    arrival.come()
    pending.set_exception(AllReduceError("gone"))
    with pytest.raises(AllReduceError, match="gone"):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()


def test_it_is_complete_when_the_device_has_the_sums(noted: list[tuple[Any, ...]]) -> None:
    work, pending, arrival = make_work(noted)
    assert not work.is_completed()
    arrival.come()
    assert not work.is_completed()
    pending.set_result(None)
    assert work.is_success()


def test_a_word_counts_on_from_one_tensor_to_the_next(noted: list[tuple[Any, ...]]) -> None:
    lane = make_lane(noted)
    words = Words(lane)
    first = Arrival(lane, words)
    first.come()
    second = Arrival(lane, words)
    second.come()
    (_, _, address, one), (_, _, same, two) = noted
    assert (address, one) == (same, two - 1)


def test_where_there_is_no_word_the_host_waits(noted: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORDS", 1)
    lane = make_lane(noted)
    words = Words(lane)
    one, other = Arrival(lane, words), Arrival(lane, words)
    assert not one.blocks_host
    assert other.blocks_host
    pending: Future[None] = Future()

    def come() -> None:
        other.come()
        pending.set_result(None)

    threading.Timer(0.05, come).start()
    TensorWork(pending, [], arrival=other).synchronize()
    assert noted == [("after", 1)]


@pytest.mark.parametrize(("name", "value"), [("INAGG_BLOCKING_WAIT", "1"), ("CUDA_DEVICE_MAX_CONNECTIONS", "1")])
def test_streams_do_not_wait_where_they_could_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert Words(make_lane([])).take() is None


def test_an_all_reduce_cannot_be_captured(noted: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    work, _, _ = make_work(noted)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for call in (work.wait, work.synchronize, lambda: refuse_capture(CUDA)):
        with pytest.raises(RuntimeError, match="cannot be captured into a CUDA graph"):
            call()
    refuse_capture(torch.device("cpu"))
