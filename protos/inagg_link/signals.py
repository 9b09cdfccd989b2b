"""Handlers of signals, put off: what a handler raises would leave half done what must be done whole."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

_signal: Any = importlib.import_module("_signal")  # what `signal` wraps; without enumerations, in a tenth of the time
_NUMBERS: Final = tuple(int(number) for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class Deferred:
    """A delay of signals: in the block of a `with` statement, signals that have handlers of Python's are noted; when it
    ends, the handlers are called, and what they raise is raised there. The block runs whatever comes: also if a handler
    raises before it is put off. On threads other than the main one, which no handler interrupts, nothing happens.

    To block the signals would not do: that holds for one thread, and one that a library has started takes them then,
    for which Python calls the handler on the main thread all the same.
    """

    def __init__(self) -> None:
        self.came: list[tuple[int, FrameType | None]] = []
        """Signals that have come, by number, with what they interrupted."""
        self.wake: Callable[[], None] | None = None
        """Called when one has come, at any point of the block: to end its waiting."""
        self._handlers: dict[int, Any] = {}
        self._early: BaseException | None = None
        """An exception of a handler that was not put off yet."""
        self._over = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            try:
                self._put_off()
            except BaseException as error:
                self._early = error
                try:
                    self._put_off()
                except BaseException:  # of a second one, in the same moment
                    self._put_all_back()
                    raise
        return self

    def __exit__(self, *exception: object) -> None:
        early, self._early = self._early, None
        try:
            if self._handlers:
                self._put_all_back()
        finally:
            try:
                self._call(list(self.came))
            finally:
                if early is not None:
                    try:
                        raise early
                    finally:
                        del early  # it has this frame in its traceback

    def _put_off(self) -> None:
        get, put, handlers = _signal.getsignal, _signal.signal, self._handlers
        for number in handlers:  # of an attempt before
            put(number, self._note)
        for number in _NUMBERS:
            handler = get(number)
            if callable(handler) and number not in handlers:
                handlers[number] = handler
                put(number, self._note)

    def _put_all_back(self) -> None:
        try:
            self._put_back()
        except BaseException:  # of a handler that is back: so must be the others
            self._put_back()
            raise

    def _put_back(self) -> None:
        self._over = True
        for number, handler in self._handlers.items():
            _signal.signal(number, handler)

    def _call(self, came: list[tuple[int, FrameType | None]]) -> None:
        """Call the handlers of all that came. What a later one raises has what an earlier one raised as its context."""
        if came:
            (number, frame), *rest = came
            try:
                self._handlers[number](number, frame)
            finally:
                self._call(rest)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._over:
            self._handlers[number](number, frame)
        else:
            self.came.append((number, frame))
            if self.wake is not None:
                self.wake()
