"""One answer to many equal questions: however many ask, the work is done a bounded number of times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Coalesced(Generic[T]):
    """Answers, each of which is made after all those asked who get it. On one event loop."""

    def __init__(self, interval_s: float) -> None:
        """``interval_s``: of each question, the least time from one answer to the making of the next."""
        self._interval_s = interval_s
        self._next: dict[Hashable, asyncio.Task[T]] = {}
        """Answers whose making has not begun."""
        self._making: dict[Hashable, asyncio.Task[T]] = {}
        self._made_at: dict[Hashable, float] = {}
        """Times of answers that were made less than an interval ago."""

    async def get(self, question: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The answer to ``question``, which ``make`` makes. Raises what that raises."""
        task = self._next.get(question)
        if task is None:
            task = self._next[question] = asyncio.create_task(self._make(question, make))
            task.add_done_callback(_seen)  # all who asked may have gone
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End what is being answered; who waits for it is cancelled."""
        tasks = {*self._next.values(), *self._making.values()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, question: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        if (before := self._making.get(question)) is not None:
            await asyncio.wait([before])
        if (made_at := self._made_at.get(question)) is not None:
            await asyncio.sleep(made_at + self._interval_s - loop.time())
        self._making[question] = self._next.pop(question)
        try:
            return await make()
        finally:
            del self._making[question]
            self._made_at[question] = loop.time()
            loop.call_later(self._interval_s, self._forget, question)

    def _forget(self, question: Hashable) -> None:
        if asyncio.get_running_loop().time() >= self._made_at.get(question, 0.0) + self._interval_s:
            self._made_at.pop(question, None)


def _seen(task: asyncio.Task[T]) -> None:
    if not task.cancelled():
        task.exception()
