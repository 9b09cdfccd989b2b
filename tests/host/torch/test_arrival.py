"""Waiting for the sums of CUDA tensors: the host waits, then the stream. What CUDA would do is noted here, not done."""

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
from inagg_host.torch.gpu.arrival import Arrival, refuse_capture
from inagg_host.torch.work import TensorWork

CUDA = torch.device("cuda", 0)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each time that the training stream was given a mark to wait for."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return []


def make_work(noted: list[str]) -> tuple[TensorWork, Future[None], Arrival]:
    mark = SimpleNamespace(done=lambda: True, before_current=lambda: noted.append("waits"))
    lane: Any = SimpleNamespace(device=CUDA, stream=SimpleNamespace(), mark=lambda: mark)
    pending, arrival = Future[None](), Arrival(lane)
    return TensorWork(pending, [torch.ones(2)], arrival=arrival), pending, arrival


@pytest.mark.parametrize("how", ["wait", "synchronize"])
def test_the_host_waits_for_what_brings_the_sums_and_the_stream_for_the_sums(noted: list[str], how: str) -> None:
    work, pending, arrival = make_work(noted)
    waiting = threading.Thread(target=getattr(work, how))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    assert noted == []
    arrival.come()
    pending.set_result(None)
    waiting.join()
    assert noted == ["waits"]


def test_wait_with_a_limit_is_the_hosts(noted: list[str]) -> None:
    work, _, _ = make_work(noted)
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


def test_it_is_complete_when_the_device_has_the_sums(noted: list[str]) -> None:
    work, pending, arrival = make_work(noted)
    assert not work.is_completed()
    arrival.come()
    assert not work.is_completed()
    pending.set_result(None)
    assert work.is_success()


def test_an_all_reduce_cannot_be_captured(noted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    work, _, _ = make_work(noted)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for call in (work.wait, work.synchronize, lambda: refuse_capture(CUDA)):
        with pytest.raises(RuntimeError, match="cannot be captured into a CUDA graph"):
            call()
    refuse_capture(torch.device("cpu"))
