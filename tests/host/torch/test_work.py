"""Work objects: as torch.distributed wants them, over any future."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from datetime import timedelta

import pytest
import torch

from inagg_host.allreduce import AllReduceError
from inagg_host.torch.work import JoinedWork, TensorWork, failed

SOON = timedelta(milliseconds=20)


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
