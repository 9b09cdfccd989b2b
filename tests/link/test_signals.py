"""Handlers of signals that are put off: they wait until the block is over, all of them, whoever takes the signal."""

from __future__ import annotations

import signal
import threading
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from tests.link.signalling import Interrupted, come, handled, handler_as_before, set_handler

from inagg_link.signals import Deferred

pytestmark = pytest.mark.usefixtures(handler_as_before.__name__)


def test_a_handler_is_called_at_the_end_with_what_was_interrupted() -> None:
    calls: list[Any] = []
    set_handler(lambda number, frame: calls.append((number, frame.f_code.co_name)))
    with Deferred() as signals:
        signal.raise_signal(signal.SIGALRM)
        signal.raise_signal(signal.SIGALRM)
        assert not calls
        assert [number for number, _ in signals.came] == [signal.SIGALRM] * 2
    assert calls == [(signal.SIGALRM, "test_a_handler_is_called_at_the_end_with_what_was_interrupted")] * 2


def test_what_one_handler_raises_keeps_no_other_from_being_called() -> None:
    calls: list[int] = []

    def handler(number: int, _frame: FrameType | None) -> None:
        calls.append(number)
        raise Interrupted(len(calls))

    def raise_both() -> None:
        with Deferred():
            signal.raise_signal(signal.SIGALRM)
            signal.raise_signal(signal.SIGALRM)

    set_handler(handler)
    with pytest.raises(Interrupted) as raised:
        raise_both()
    assert calls == [signal.SIGALRM] * 2
    assert raised.value.args == (2,)
    assert isinstance(raised.value.__context__, Interrupted)


def test_a_signal_wakes_whoever_waits() -> None:
    set_handler(lambda number, frame: None)
    woken: list[bool] = []
    with Deferred() as signals:
        signals.wake = lambda: woken.append(True)
        signal.raise_signal(signal.SIGALRM)
        assert woken == [True]


def test_afterwards_all_handlers_are_as_before() -> None:
    def handlers() -> list[Any]:
        return [signal.getsignal(number) for number in sorted(signal.valid_signals())]

    set_handler(lambda number, frame: None)
    before = handlers()
    with Deferred():
        assert handlers() != before
    assert handlers() == before


def test_handlers_are_as_before_when_one_of_them_raises() -> None:
    def handler(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    set_handler(handler)
    interrupt = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted), Deferred():
        signal.raise_signal(signal.SIGALRM)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getsignal(signal.SIGINT) is interrupt


def test_an_error_in_the_block_is_raised_and_the_handlers_are_called() -> None:
    calls: list[int] = []
    set_handler(lambda number, frame: calls.append(number))

    def fail() -> None:
        with Deferred():
            signal.raise_signal(signal.SIGALRM)
            raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block"):
        fail()
    assert calls == [signal.SIGALRM]


def test_on_another_thread_nothing_is_put_off() -> None:
    seen: list[Any] = []

    def look() -> None:
        with Deferred():
            seen.append(signal.getsignal(signal.SIGALRM))

    set_handler(handler := lambda number, frame: None)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [handler]


def test_a_signal_that_another_thread_takes_waits_too() -> None:
    done = []

    def be_interrupted() -> None:
        with Deferred():
            come()
            done.append("all")

    with handled(), pytest.raises(Interrupted):
        be_interrupted()
    assert done == ["all"]


def test_the_block_runs_though_a_handler_raises_before_it_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any of the signals, in the moment in which handlers are replaced."""
    calls: list[int] = []
    done: list[str] = []

    def handler(number: int, _frame: FrameType | None) -> None:
        calls.append(number)
        raise Interrupted

    set_handler(handler)
    interrupt = signal.getsignal(signal.SIGINT)
    real = signal.getsignal

    def get(number: int) -> Any:
        found = real(number)
        if number == signal.SIGALRM and not calls:
            signal.raise_signal(signal.SIGALRM)
        return found

    monkeypatch.setattr("inagg_link.signals._signal", SimpleNamespace(getsignal=get, signal=signal.signal))

    def run() -> None:
        with Deferred():
            signal.raise_signal(signal.SIGALRM)
            done.append("all")

    with pytest.raises(Interrupted):
        run()
    assert done == ["all"]
    assert calls == [signal.SIGALRM] * 2
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getsignal(signal.SIGINT) is interrupt


def test_what_was_put_off_is_called_though_a_handler_raises_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def handler(_number: int, _frame: FrameType | None) -> None:
        calls.append("called")
        raise Interrupted

    def put(number: int, new: Any) -> Any:
        before = signal.signal(number, new)
        if new is handler and not calls:
            signal.raise_signal(signal.SIGALRM)
        return before

    set_handler(handler)

    def run() -> None:
        with Deferred():
            signal.raise_signal(signal.SIGALRM)
            monkeypatch.setattr("inagg_link.signals._signal", SimpleNamespace(signal=put))

    with pytest.raises(Interrupted):
        run()
    assert calls == ["called"] * 2
