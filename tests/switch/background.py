"""A control server on a thread of its own, for tests that have no event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from inagg_switch.service.server import STOP_GRACE_S, ControlServer

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, for programs that have none."""

    def __init__(self, name: str = "inagg-control") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine there and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BackgroundServer:
    """A `ControlServer` in a thread of its own: a context manager for programs without an event loop."""

    def __init__(self, server: ControlServer) -> None:
        self.server = server
        self._loop: LoopThread | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.server.address

    def start(self) -> None:
        """Begin to serve. Raises what `ControlServer.start` raises."""
        self._loop = LoopThread()
        try:
            self._loop.run(self.server.start())
        except BaseException:
            self._loop.close()
            self._loop = None
            raise

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Stop serving; no error if it does not."""
        if self._loop is not None:
            self._loop.run(self.server.stop(grace_s))
            self._loop.close()
            self._loop = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
