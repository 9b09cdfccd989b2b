"""Hosts of several ranks, such as eight GPUs: sums inside of the host first, so that the network carries each value
once a host.

Each rank of a host sums a part of the tensor over its host (a reduce-scatter, by Gloo or NCCL, exact), then over the
ranks of the same place on all hosts, through the switch, and hands it to its host (an all-gather). A host has one job
for each of its ranks, and sends as many bytes as one rank alone would.
"""

from __future__ import annotations

import itertools
import logging
import threading
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from inagg_host.allreduce import AllReduce
from inagg_host.errors import CLOSED, AllReduceError
from inagg_host.io.in_turn import InTurn, shutdown_all
from inagg_host.stats import Counters

from .gpu.arrival import Arrival, refuse_capture
from .gpu.lane import Lane, Mark
from .tensors import TensorAllReduce, check
from .work import TensorWork, wait_for_all

log = logging.getLogger("inagg")


@dataclass(frozen=True, slots=True)
class _Sum:
    """One tensor on its way."""

    target: torch.Tensor
    whole: torch.Tensor
    """Of the target's size and a little more, so that it has equal parts: the values, then the sums."""
    parts: torch.Tensor
    """What the host's ranks have of this rank's part, a row each; or one row, their sum."""
    down: Lane | None
    """Of a device: where all is done until the sums are submitted; what follows is done in the arrival's lane. They are
    two, so that the next tensor's sums are in the network while those of this one are awaited."""
    scattered: dist.Work
    divisor: int
    tag: int
    arrival: Arrival | None
    scatter: bool
    """The target gets the sums of one rank alone: nothing is gathered."""

    def keep(self, *tensors: torch.Tensor) -> None:
        """Nobody else gets their memory before the lanes have done with it, whatever is raised meanwhile."""
        for lane in (self.down, None if self.arrival is None else self.arrival.lane):
            if lane is not None and lane.stream is not None:
                for tensor in tensors:
                    tensor.record_stream(lane.stream)


class HostAllReduce:
    """As `TensorAllReduce`, of ranks that are several on each host. Sums are begun in one order on all ranks, and so is
    what follows: a thread submits to the switch, another gathers."""

    def __init__(self, sums: TensorAllReduce, scatter: ProcessGroup, gather: ProcessGroup) -> None:
        """``sums``: over the ranks of the same place on all hosts. ``scatter`` and ``gather``: two groups of this
        host's ranks, which nothing else uses. All three are closed by `close`."""
        self._sums, self._inside, self._local_size = sums, [scatter, gather], scatter.size()
        self._begin = InTurn("inagg-host-sums")
        self._end = InTurn("inagg-host-gather")
        self._lanes: dict[torch.device, tuple[Lane, Lane, Lane]] = {}
        self._unfinished = set[Future[None]]()
        self._lock = threading.Lock()
        self._closed = False

    def submit(
        self,
        tensor: torch.Tensor,
        out: torch.Tensor | None = None,
        divisor: int = 1,
        tag: int = 0,
        wait: bool = False,
        contributed: torch.Tensor | None = None,
        scatter: bool = False,
    ) -> TensorWork:
        """As `TensorAllReduce.submit`; ``wait`` makes no difference. Raises ValueError for ``contributed``: it would be
        of the host's sums."""
        if contributed is not None:
            raise ValueError("where a host sums inside first, no rank has what it contributes")
        result = tensor if out is None else out
        check(tensor, result, self._local_size * self.arrays.config.workers if scatter else 1)
        refuse_capture(tensor.device)
        tensor, target = tensor.detach(), result.detach()
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise AllReduceError(CLOSED)
            whole = self._by_place(tensor) if scatter else self._in_equal_parts(tensor)
            parts, scattered = self._begin_scatter(whole)
            down, arrival = self._way(tensor.device) if tensor.is_cuda else (None, None)
            one = _Sum(target, whole, parts, down, scattered, divisor, tag, arrival, scatter)
            one.keep(whole, parts, target)
            launched = self._end.submit(self._complete, one, self._begin.submit(self._sum, one), done)
        if arrival is not None:
            self._unfinished.add(done)
            done.add_done_callback(self._unfinished.discard)
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

    def _way(self, device: torch.device) -> tuple[Lane, Arrival]:
        if device not in self._lanes:
            self._lanes[device] = Lane(device), Lane(device), Lane(device)
        down, up, told = self._lanes[device]
        return down, Arrival(up, told)

    def _sum(self, one: _Sum) -> tuple[torch.Tensor, TensorWork]:
        """The host's sums of this rank's part, and the work that sums them over all hosts."""
        with _on(one.down):
            one.scattered.wait()
            part = one.parts[0] if len(one.parts) == 1 else one.parts.sum(0)
            out = torch.empty_like(one.target, memory_format=torch.contiguous_format) if one.scatter else part
            one.keep(part, out)
            work = self._sums.submit(part, out, divisor=one.divisor, tag=one.tag, scatter=one.scatter)
            return out, work

    @torch.inference_mode()  # its tensors, if the caller was in it, can be written to in no other
    def _complete(self, one: _Sum, begun: Future[tuple[torch.Tensor, TensorWork]], done: Future[None]) -> None:
        mark = None
        try:
            part, work = begun.result()
            with _on(None if one.arrival is None else one.arrival.lane):
                work.wait_here()
                if one.scatter:
                    one.target.copy_(part)
                else:
                    self._begin_gather(one.whole, part).wait()
                    one.target.copy_(one.whole[: one.target.numel()].view(one.target.shape))
                if one.arrival is not None:
                    mark = one.arrival.come()
        except BaseException as error:  # whatever it is, it belongs to whoever waits
            # Ranks of other hosts wait for this one's part of what comes next, and will be told why it does not come.
            self._sums.close(f"sums inside of a host failed: {type(error).__name__}: {error}", end=True)
            done.set_exception(error)
        else:
            work.when_over(lambda error: _end(done, error, mark))  # at once, where it was waited for

    @property
    def arrays(self) -> AllReduce:
        """Of this rank's part, over all hosts."""
        return self._sums.arrays

    @property
    def counters(self) -> Counters:
        """What this rank has sent to the switch and had from it, brought up to date."""
        return self._sums.counters

    def drain(self) -> None:
        """As `TensorAllReduce.drain`."""
        wait_for_all(list(self._unfinished), self.arrays.config.timeout_s)

    def close(self, reason: str = "", end: bool = False) -> None:
        """As `TensorAllReduce.close`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if end:  # first: what the device has to do in them comes before what the others' end waits for
            for group in self._inside:
                group.abort()
        self._sums.close(reason, end)
        limit_s = self.arrays.config.timeout_s
        if shutdown_all((self._begin, self._end), limit_s):
            for lane in itertools.chain(*self._lanes.values()):
                lane.close()
        else:
            log.warning("after %g s another rank of this host is still waited for", limit_s)
        while self._inside:  # Gloo's connections end with the object, and others of the host hear of it
            self._inside.pop().shutdown()


def _end(done: Future[None], error: BaseException | None, mark: Mark | None) -> None:
    """The sums of this rank's part are there, or never will be; all of the tensor's are when the device has come to
    ``mark``."""
    try:
        if mark is not None:
            mark.wait()
    except Exception as of_device:
        error = error or of_device
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _on(lane: Lane | None) -> Any:
    return nullcontext() if lane is None else lane()
