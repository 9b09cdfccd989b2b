"""Work objects and futures as torch.distributed wants them, over the operations of the transport."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from inagg_host.allreduce import AllReduceError
from inagg_host.closed import ignore
from inagg_host.config import TIME_MAX_S, flag
from inagg_host.io.futures import waiting

from . import failures
from .eager import eager_methods
from .gpu.arrival import Arrival, refuse_capture
from .options import BLOCKING_WAIT
from .tracing import WAIT, span

log = logging.getLogger("inagg")

LEAST = timedelta(milliseconds=1)
"""Shortest limit: inner groups count in milliseconds, and take none for no limit."""

NO_TIMEOUT = timedelta(0)
"""Value that c10d gives for "as long as the group's timeout"."""


@eager_methods
class TensorWork(dist.Work):
    """Tensors on their way through the switch. What waits on the host waits here; `get_future` is for the rest.

    For CUDA tensors `wait` has the current stream wait, as NCCL's does, and the host goes on. What goes wrong later
    makes sums that have not come NaN and fails all that comes; `result`, `get_future`, a wait with a limit, and with
    INAGG_BLOCKING_WAIT=1 any wait, return when the sums are there, and raise what went wrong.
    """

    def __init__(
        self,
        pending: concurrent.futures.Future[Any],
        tensors: list[torch.Tensor],
        finish: Callable[[], None] | None = None,
        arrival: Arrival | None = None,
    ) -> None:
        """``finish`` is called once when the sums are there, by whoever comes first; also where nobody waits."""
        super().__init__()
        self._pending, self._tensors, self._arrival = pending, tensors, arrival
        self._finish = _Once(ignore if finish is None else finish)
        self._lock = threading.Lock()
        self._future: Future[list[torch.Tensor]] | None = None
        self._blocking = arrival is not None and (not arrival.alone or flag(BLOCKING_WAIT))
        # No callback has this work: a future keeps them, and so the tensors, until garbage is collected.
        if finish is not None:
            pending.add_done_callback(partial(_finish_if_good, self._finish))

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the sums. Raises what is known to have gone wrong, and RuntimeError after ``timeout`` (then it goes
        on)."""
        with span(WAIT):
            self.wait_here(timeout)
        return True

    def wait_here(self, timeout: timedelta = NO_TIMEOUT) -> None:
        """Wait as `wait` does, unseen by a profiler."""
        if self._arrival is not None:
            refuse_capture(self._arrival.device)
        if self._arrival is None or not self._arrival.coming or timeout or self._blocking or self._pending.done():
            self._wait_on_host(timeout)
        if self._arrival is not None:
            self._arrival.wait()

    def _wait_on_host(self, timeout: timedelta) -> None:
        try:
            self._pending.result(min(timeout.total_seconds(), TIME_MAX_S) if timeout else None)
        except TimeoutError:
            raise AllReduceError(f"no result within the {timeout.total_seconds():g} s of wait") from None
        except AllReduceError as error:
            failures.note(error)
            raise
        self._finish()

    def when_over(self, call: Callable[[BaseException | None], None]) -> None:
        """Have ``call`` called with what went wrong, or None, on a thread where it may block."""
        self._pending.add_done_callback(lambda pending: call(pending.exception()))

    def get_future(self) -> Future[Any]:
        """A future of the list of tensors, which is done when the sums are there."""
        with self._lock:
            if self._future is not None:
                return self._future
            arrival = self._arrival
            raw: Future[Any] = Future() if arrival is None else Future(devices=[arrival.device])
            # An exception that a future was given by set_exception ends the process when DDP's reducer meets it. One
            # that a callback raised does not.
            self._future = raw.then(lambda done: done.value())
            future = self._future
        self._pending.add_done_callback(partial(_complete, raw, self._tensors, self._finish, arrival))
        return future

    def synchronize(self) -> None:
        """Make the current stream wait for the sums, where there are streams; before or after they have come."""
        if self._arrival is not None:
            self.wait_here()

    def block_current_stream(self) -> None:
        """Make the current stream wait for the sums: of CUDA tensors as `wait` does. (What c10d has instead, for CPU
        tensors, is a kernel that spins until a callback of Python's comes.)"""
        if self._arrival is None:
            super().block_current_stream()
        else:
            self.wait_here()

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        if not self._pending.done():
            return False
        if self._pending.exception() is None:
            self._finish()
        return True

    def is_success(self) -> bool:
        """Whether the sums are there."""
        return self.is_completed() and self._pending.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error of the work, if it is over."""
        return self._pending.exception() if self._pending.done() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the sums, when they are there."""
        self._wait_on_host(NO_TIMEOUT)
        self.wait_here()
        return self._tensors


class _Once:
    """A call that is made once, by whoever comes first; the others wait for it, and are told alike what it raised."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            call, self._call = self._call, ignore
            try:
                call()
            except Exception as error:
                self._error = error
            if self._error is not None:
                raise self._error


def _finish_if_good(finish: _Once, pending: concurrent.futures.Future[Any]) -> None:
    if pending.exception() is None:
        with suppress(Exception):  # who waits is told
            finish()


def _complete(
    raw: Future[Any], tensors: list[torch.Tensor], finish: _Once, arrival: Arrival | None,
    pending: concurrent.futures.Future[Any],
) -> None:  # fmt: skip
    """``pending`` is over: complete PyTorch's future of it."""
    try:
        pending.result()
        finish()
    except Exception as error:  # it belongs to whoever waits for the future
        if isinstance(error, AllReduceError):
            failures.note(error)
        raw.set_exception(error)
        return
    # A future that knows a device lets streams wait for what is on the current one now.
    with nullcontext() if arrival is None else arrival.there():
        raw.set_result(tensors)


def wait_for_all(unfinished: Sequence[concurrent.futures.Future[Any]], limit_s: float) -> None:
    """Wait until all of these are over, but no longer than that: what is left is said."""
    with waiting():
        left = concurrent.futures.wait(unfinished, limit_s).not_done
    if left:
        log.warning(
            "%d sums were not there after %g s, and do not come any more; on a GPU they are NaN", len(left), limit_s
        )


def failed(error: Exception) -> TensorWork:
    """A work that has failed. DDP's reducer survives an error in a future, not one that is raised at once."""
    pending: concurrent.futures.Future[None] = concurrent.futures.Future()
    pending.set_exception(error)
    return TensorWork(pending, [])


def finished(tensors: list[torch.Tensor]) -> TensorWork:
    """A work that is over, and of which ``tensors`` are the result."""
    pending: concurrent.futures.Future[None] = concurrent.futures.Future()
    pending.set_result(None)
    return TensorWork(pending, tensors)


@eager_methods
class JoinedWork(dist.Work):
    """Several works as one, the result of a coalesced operation."""

    def __init__(self, works: Sequence[dist.Work], tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._works, self._tensors = list(works), tensors
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for all of them, no longer than ``timeout`` together. Raises what went wrong with one."""
        end_s = time.monotonic() + timeout.total_seconds()
        for work in self._works:
            work.wait(timeout and max(timedelta(seconds=end_s - time.monotonic()), LEAST))
        return True

    def get_future(self) -> Future[Any]:
        """A future of the list of all tensors."""
        if self._future is None:
            done = torch.futures.collect_all([work.get_future() for work in self._works])
            if devices := self._devices():
                # That of all has no device, nor would one that is chained to it: no stream would wait for the parts.
                raw: Future[Any] = Future(devices=devices)
                self._future = raw.then(lambda _: self._take(done.value()))
                done.add_done_callback(lambda _: raw.set_result(None))
            else:
                self._future = done.then(lambda _: self._take(done.value()))
        return self._future

    def _devices(self) -> list[int | str | torch.device]:
        """Return the devices that have streams."""
        return list(dict.fromkeys(tensor.device for tensor in self._tensors if tensor.device.type == "cuda"))

    def _take(self, futures: list[Future[Any]]) -> list[torch.Tensor]:
        # All are done. Torch calls what is chained to a future with devices on streams of its own, and whoever waits
        # for that waits for these: so they are to wait for the parts. Without devices this is as `Future.value`.
        for future in futures:
            future.wait()
        return self._tensors

    def synchronize(self) -> None:
        """Make the current stream wait for all of them."""
        for work in self._works:
            work.synchronize()

    def block_current_stream(self) -> None:
        """Make the current stream wait for all of them."""
        for work in self._works:
            work.block_current_stream()

    def is_completed(self) -> bool:
        """Whether all are over."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all went well."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        """Return the error of the first that failed, of those that are over."""
        return next((e for work in self._works if (e := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        """The tensors, when all are there."""
        self.wait()
        return self._tensors
