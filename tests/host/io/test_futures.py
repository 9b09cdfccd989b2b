"""Callbacks of operations: in the order in which the operations are done, and none waits for those after it."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from inagg_host.io import futures
from inagg_host.io.futures import CallbackExecutor, Work

from .rig import no_threads

PATIENCE_S = 20.0
SUM = np.zeros(1)


def one_after_the_other(*calls: Any) -> None:
    for call in calls:
        call()


def test_callbacks_come_in_the_order_of_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one: what each of them submits comes before what the next one does."""
    monkeypatch.setattr(futures, "WAITS_AFTER_S", PATIENCE_S)
    executor, calls = CallbackExecutor(), list[tuple[str, int]]()

    def call(number: int, _work: Work) -> None:
        calls.append(("begins", number))
        time.sleep(0.0002 * (number % 3))
        calls.append(("ends", number))

    works = [Work() for _ in range(200)]
    for number, work in enumerate(works):
        work.add_done_callback(partial(call, number))
    for work in works:
        work.finish(SUM, executor)
    executor.shutdown()
    assert calls == [(what, number) for number in range(200) for what in ("begins", "ends")]


def test_any_number_of_callbacks_may_wait_for_operations_after_them() -> None:
    """As those of PowerSGD do. Of a pool of threads, each would take one for ever."""
    executor, later = CallbackExecutor(), [Work() for _ in range(20)]
    done: list[int] = []

    def wait(number: int, _work: Work) -> None:
        later[number].result(PATIENCE_S)
        done.append(number)

    for number in range(20):
        first = Work()
        first.add_done_callback(partial(wait, number))
        first.finish(SUM, executor)
    for work in later:
        work.add_done_callback(lambda _: None)  # so that it is completed as the others are
        work.finish(SUM, executor)
    executor.shutdown()
    assert sorted(done) == list(range(20))


def test_callbacks_may_wait_for_what_nobody_can_see() -> None:
    """Such as a future of torch."""
    executor, events, done = CallbackExecutor(), [threading.Event() for _ in range(6)], list[int]()
    for number, event in enumerate(events):
        executor.submit(partial(one_after_the_other, partial(event.wait, PATIENCE_S), partial(done.append, number)))
    for event in events:
        executor.submit(event.set)
    executor.shutdown()
    assert sorted(done) == list(range(6))


def test_waiting_for_an_operation_lets_the_next_callback_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures, "WAITS_AFTER_S", PATIENCE_S)
    executor, awaited = CallbackExecutor(), Work()
    awaited.add_done_callback(lambda _: None)
    began_s = time.monotonic()
    executor.submit(partial(one_after_the_other, partial(awaited.result, PATIENCE_S)))
    time.sleep(0.05)
    awaited.finish(SUM, executor)
    executor.shutdown()
    assert time.monotonic() - began_s < PATIENCE_S / 2


def test_threads_go_when_nothing_waits_any_more() -> None:
    executor, gate = CallbackExecutor(), threading.Event()
    for _ in range(8):
        executor.submit(partial(one_after_the_other, partial(gate.wait, PATIENCE_S)))
    give_up_s = time.monotonic() + PATIENCE_S
    while len(executor._threads) < 8 and time.monotonic() < give_up_s:
        time.sleep(0.005)
    assert len(executor._threads) >= 8
    gate.set()
    while len(executor._threads) > 1 and time.monotonic() < give_up_s:
        time.sleep(0.005)
    assert len(executor._threads) == 1
    executor.shutdown()
    assert not executor._threads


def test_where_there_are_no_more_threads_callbacks_come_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, gate, done = CallbackExecutor(), threading.Event(), list[int]()
    executor.submit(lambda: None)  # which has its thread
    with executor._news:
        monkeypatch.setattr(threading.Thread, "start", no_threads)
        for number in range(5):
            executor._queue.append(partial(one_after_the_other, partial(gate.wait, 0.05), partial(done.append, number)))
        executor._news.notify()
    assert executor.shutdown(PATIENCE_S)
    assert done == list(range(5))


def test_who_is_chained_is_told_though_callbacks_have_ended() -> None:
    """As at the interpreter's end."""
    executor, work, told = CallbackExecutor(), Work(), list[Work]()
    executor.shutdown()
    work.add_done_callback(told.append)
    work.finish(SUM, executor)
    assert told == [work]


def test_a_callback_may_close_what_calls_it() -> None:
    executor, over = CallbackExecutor(), threading.Event()
    executor.submit(partial(one_after_the_other, executor.shutdown, over.set))
    assert over.wait(PATIENCE_S)
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(over.set)
