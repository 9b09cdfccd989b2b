"""Hosts of several ranks, such as eight GPUs: sums inside of the host first, so that the network carries each value
once a host.

Each rank of a host sums a part of the tensor over its host (a reduce-scatter, by Gloo or NCCL, exact), then over the
ranks of the same place on all hosts, through the switch, and hands it to its host (an all-gather). A host has one job
for each of its ranks, and sends as many bytes as one rank alone would.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from inagg_host.allreduce import AllReduce
from inagg_host.errors import CLOSED, FORKED, AllReduceError, again
from inagg_host.io.serial_executor import SerialExecutor, shutdown_all
from inagg_host.stats import Counters
from inagg_link.signals import Deferred

from .gpu.arrival import Arrival, refuse_capture
from .gpu.stream import DeviceStream, Event
from .tensors import TensorAllReduce, check
from .work import TensorWork, wait_for_all

log = logging.getLogger("inagg")


@dataclass(frozen=True, slots=True)
class _Sum:
    """One tensor on its way."""

    target: torch.Tensor
    whole: torch.Tensor
    """Memory of the tensor's size and a little more, so that it has equal parts: the values, then the sums."""
    parts: torch.Tensor
    """Values of this rank's part, a row from each of the host's ranks; or one row, their sum."""
    scatters_on: DeviceStream | None
    """A device's stream where all is done until the sums are submitted; what follows is done in the arrival's. They are
    two, so that the next tensor's sums are in the network while those of this one are awaited."""
    scattered: dist.Work
    divisor: int
    turn: int
    tag: int
    arrival: Arrival | None
    scatter: bool
    """The target gets the sums of one rank alone: nothing is gathered."""

    def keep(self, *tensors: torch.Tensor) -> None:
        """Nobody else gets their memory before the streams have done with it, whatever is raised meanwhile."""
        for stream in (self.scatters_on, None if self.arrival is None else self.arrival.stream):
            if stream is not None and stream.external is not None:
                for tensor in tensors:
                    tensor.record_stream(stream.external)


class HostAllReduce:
    """Version of `TensorAllReduce` for hosts of several ranks. Sums are begun in one order on all ranks, and so is what
    follows: a thread submits to the switch, another gathers."""

    def __init__(self, sums: TensorAllReduce, scatter: ProcessGroup, gather: ProcessGroup) -> None:
        """``sums``: over the ranks of the same place on all hosts. ``scatter`` and ``gather``: two groups of this
        host's ranks, which nothing else uses. All three are closed by `close`."""
        self._sums, self._inside, self._local_size = sums, [scatter, gather], scatter.size()
        self._place = scatter.rank()
        self._begin = SerialExecutor("inagg-host-sums")
        self._end = SerialExecutor("inagg-host-gather")
        self._over = SerialExecutor("inagg-host-over")
        self._streams: dict[torch.device, tuple[DeviceStream, DeviceStream, DeviceStream]] = {}
        self._unfinished = set[Future[None]]()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed, self._reason = False, ""
        self._failure: AllReduceError | None = None
        """Error that the first sum that failed inside of this host was told."""

    def submit(
        self,
        tensor: torch.Tensor,
        out: torch.Tensor | None = None,
        divisor: int = 1,
        tag: int = 0,
        wait: bool = False,
        contributed: torch.Tensor | None = None,
        scatter: bool = False,
        divide_first: bool = False,
    ) -> TensorWork:
        """Submit as `TensorAllReduce.submit` does; ``wait`` makes no difference. Raises ValueError for ``contributed``:
        it would be of the host's sums. An error while it begins, for want of memory, say, ends the job for all ranks:
        those of this host have begun to sum inside."""
        turn = self.arrays.take_turn()
        begins = False
        try:
            with Deferred():
                if contributed is not None:
                    raise ValueError("where a host sums inside first, no rank has what it contributes")
                if os.getpid() != self._process:  # before the lock, which a thread of the parent's may have had
                    raise AllReduceError(FORKED)
                result = tensor if out is None else out
                check(tensor, result, self._local_size * self.arrays.config.workers if scatter else 1)
                refuse_capture(tensor.device)
                tensor, target = tensor.detach(), result.detach()
                done: Future[None] = Future()
                done.set_running_or_notify_cancel()
                begins = True
                with self._lock:
                    if self._failure is not None:
                        raise again(self._failure)
                    if self._closed:
                        raise AllReduceError(f"{CLOSED}: {self._reason}" if self._reason else CLOSED)
                    if divide_first:
                        tensor, divisor = tensor / divisor, 1
                    whole = self._by_place(tensor) if scatter else self._in_equal_parts(tensor)
                    parts, scattered = self._begin_scatter(whole)
                    scatters_on, arrival = self._streams_of(tensor.device) if tensor.is_cuda else (None, None)
                    one = _Sum(target, whole, parts, scatters_on, scattered, divisor, turn, tag, arrival, scatter)
                    one.keep(whole, parts, target)
                    launched = self._end.submit(self._complete, one, self._begin.submit(self._sum, one), done)
                    begins = False
                self._unfinished.add(done)
                done.add_done_callback(self._unfinished.discard)
        except BaseException as error:
            if begins:
                self.close(self._inside_failed(error), end=True)
            raise
        if arrival is not None:
            # As the device's other users may wait for what is launched (see `gpu.device`), all of it must be. With NCCL
            # that is at once; Gloo's gather waits for the sums.
            launched.result()
        return TensorWork(done, [result], arrival=arrival)

    def _in_equal_parts(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values in a row that the host's ranks can divide, which is memory of our own."""
        ranks = self._local_size
        whole = torch.empty(-(-tensor.numel() // ranks) * ranks, dtype=tensor.dtype, device=tensor.device)
        whole[tensor.numel() :] = 0
        whole[: tensor.numel()].view(tensor.shape).copy_(tensor)
        return whole

    def _by_place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pieces for all ranks, host by host, in the order of places: what is for one place of all hosts is a part."""
        by_host = tensor.reshape(self.arrays.config.workers, self._local_size, -1)
        return by_host.transpose(0, 1).contiguous().view(-1)

    def _begin_scatter(self, whole: torch.Tensor) -> tuple[torch.Tensor, dist.Work]:
        ranks = self._local_size
        if whole.is_cuda:
            parts = torch.empty(1, whole.numel() // ranks, dtype=whole.dtype, device=whole.device)
            return parts, self._inside[0]._reduce_scatter_base(parts.view(-1), whole, dist.ReduceScatterOptions())
        # Gloo's exchange takes a third of its reduce-scatter's time, and half of its all-gather's (4 ranks, 64 MiB).
        parts = torch.empty(ranks, whole.numel() // ranks, dtype=whole.dtype, device=whole.device)
        return parts, self._inside[0].alltoall_base(parts.view(-1), whole, [], [])

    def _begin_gather(self, whole: torch.Tensor, part: torch.Tensor) -> dist.Work:
        if whole.is_cuda:
            return self._inside[1]._allgather_base(whole, part)
        return self._inside[1].alltoall_base(whole, part.repeat(self._local_size), [], [])

    def _streams_of(self, device: torch.device) -> tuple[DeviceStream, Arrival]:
        if device not in self._streams:
            self._streams[device] = DeviceStream(device), DeviceStream(device), DeviceStream(device)
        scatters_on, gathers_on, callbacks = self._streams[device]
        return scatters_on, Arrival(gathers_on, callbacks)

    def _sum(self, one: _Sum) -> tuple[torch.Tensor, TensorWork]:
        """The host's sums of this rank's part, and the work that sums them over all hosts."""
        with _on(one.scatters_on):
            one.scattered.wait()
            part = one.parts[0] if len(one.parts) == 1 else one.parts.sum(0)
            out = torch.empty_like(one.target, memory_format=torch.contiguous_format) if one.scatter else part
            one.keep(part, out)
            work = self._sums.submit(part, out, one.divisor, one.tag, scatter=one.scatter, turn=one.turn)
            return out, work

    @torch.inference_mode()  # its tensors, if the caller was in it, can be written to in no other
    def _complete(self, one: _Sum, begun: Future[tuple[torch.Tensor, TensorWork]], done: Future[None]) -> None:
        event = None
        try:
            part, work = begun.result()
            with _on(None if one.arrival is None else one.arrival.stream):
                work.wait_here()
                if one.scatter:
                    one.target.copy_(part)
                else:
                    self._begin_gather(one.whole, part).wait()
                    one.target.copy_(one.whole[: one.target.numel()].view(one.target.shape))
                if one.arrival is not None:
                    event = one.arrival.come()
        except BaseException as error:  # whatever it is, it belongs to whoever waits
            # If the job is over, the other ranks of this host have closed, and that is what fails inside.
            told = self._told(error if self.arrays.failure is None else again(self.arrays.failure))
            self._failure = self._failure or told
            # Ranks of other hosts wait for this one's part of what comes next, and will be told why it does not come.
            self._sums.close(str(told), end=True)
            if one.arrival is None:
                # Those of this host, whose own jobs may be well, hear of it as Gloo's connections end. (Of NCCL's end a
                # watchdog hears, which ends the process.)
                with suppress(RuntimeError):  # it is closed
                    self._over.submit(self.close, str(told), True)
            done.set_exception(told)
        else:
            here, end = threading.get_ident(), partial(_end, one, done, event)

            def over(error: BaseException | None) -> None:
                error = error and self._told(error)
                # Called at once where it was waited for: who submits waits for this thread, which is not to wait for
                # the device.
                if event is not None and threading.get_ident() == here:
                    self._later(end, error)
                else:
                    end(error)

            work.when_over(over)

    def _later(self, end: Callable[[BaseException | None], None], error: BaseException | None) -> None:
        try:
            self.arrays.later(partial(end, error))
        except RuntimeError:  # it is closed
            end(error)

    def _inside_failed(self, error: BaseException) -> str:
        host, ranks = self.arrays.config.rank, self._local_size
        here = f"host {host} (ranks {host * ranks} to {(host + 1) * ranks - 1}) failed"
        return f"sums inside of {here}, as they do when one of these is gone or fails: {type(error).__name__}: {error}"

    def _told(self, error: BaseException) -> AllReduceError:
        """``error`` in the group's numbers: the job of a place has one rank on each host, which has the host's number;
        and what Gloo or NCCL say names nobody."""
        if not isinstance(error, AllReduceError):
            told = AllReduceError(self._inside_failed(error))
        else:
            job, ranks, place = self.arrays.config.job, self._local_size, self._place
            told = AllReduceError(f"{error} (rank N of job {job!r} is that of host N: rank {ranks} N + {place} here)")
        told.__cause__ = error
        return told

    @property
    def arrays(self) -> AllReduce:
        """All-reduce of this rank's part, over all hosts."""
        return self._sums.arrays

    @property
    def failure(self) -> AllReduceError | None:
        """Why nothing more can be summed, if that is so, in the group's numbers."""
        if self._failure is None and (failure := self.arrays.failure) is not None:
            return self._told(again(failure))
        return self._failure

    @property
    def counters(self) -> Counters:
        """Counters of what this rank has sent to the switch and had from it, brought up to date."""
        return self._sums.counters

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long sums may take, from now on, inside as well."""
        self._sums.set_timeout(timeout)
        for group in list(self._inside):
            group.set_timeout(timeout)

    def drain(self) -> None:
        """Wait as `TensorAllReduce.drain` does."""
        if os.getpid() != self._process:
            return
        wait_for_all(list(self._unfinished), self.arrays.timeout_s)

    def close(self, reason: str = "", end: bool = False) -> None:
        """Leave the job, or end it, as `TensorAllReduce.close` does."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            self._closed, self._reason = True, reason
        if end:  # first: what the device has to do in them comes before what the others' end waits for
            for group in self._inside:
                group.abort()
        self._sums.close(reason, end)
        limit_s = self.arrays.timeout_s
        if shutdown_all((self._begin, self._end), limit_s):
            for stream in itertools.chain(*self._streams.values()):
                stream.close()
        else:
            log.warning("after %g s another rank of this host is still waited for", limit_s)
        while self._inside:  # Gloo's connections end with the object, and others of the host hear of it
            self._inside.pop().shutdown()
        self._over.shutdown(0.0)


def _end(_one: _Sum, done: Future[None], event: Event | None, error: BaseException | None) -> None:
    """The sums of this rank's part are there, or never will be; all of the tensor's are when the device has come to
    ``event``. Until then the tensor's memory is kept, and that of the work of Gloo that scatters: it copies from there,
    on the stream that waits for it, and the memory belongs to another."""
    try:
        if event is not None:
            event.synchronize()
    except Exception as of_device:
        error = error or of_device
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _on(stream: DeviceStream | None) -> AbstractContextManager[None]:
    return nullcontext() if stream is None else stream.current()
