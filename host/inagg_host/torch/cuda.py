"""Tensors of one device on their way to the switch and back, beside the training stream.

Neither the thread that submits nor the transport's waits for the device. The training stream computes the values; then
the feeder (`inagg_host.io.feeder`) has streams of our own encode them and decode the sums, so that codes alone cross
the bus. Whoever needs the sums waits until that is launched, and its stream for the sums (`gpu.arrival`).

With the policy "fallback" a tensor is copied to the host as it is, and encoded there: what is left when the switch
fails must be in the host's memory, where the inner group can sum it.

Who uses a tensor's memory is ordered so: the look stream waits for an event of the training stream; what else is
launched for the tensor comes after the host has seen that the look is done, so after the values and all that used the
memory before; and the training stream waits for the sums before it uses the memory again. The feeder keeps the tensors
until the device has done with them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from inagg_host.allreduce import AllReduce
from inagg_host.codec.bell import Bell
from inagg_host.codec.staged import compile_kernels
from inagg_host.codec.staging import Arriving, Staging
from inagg_host.io.feeder import Feeder, FeederThread
from inagg_host.io.flow import Coded, Copied, Flow
from inagg_host.io.futures import Work
from inagg_wire.scale import FloatType

from .gpu.arrival import Arrival, refuse_capture
from .gpu.device import DTYPES, Operand, TensorDevice, is_aligned
from .gpu.lane import computed
from .work import TensorWork

FLOAT_TYPES = {dtype: float_type for float_type, dtype in DTYPES.items()}
"""What the switch can sum, and what the engine calls it."""


class Stage:
    """Of one job and one device. Made by the first tensor, which waits for kernels to be compiled; all that come later
    do not."""

    def __init__(self, arrays: AllReduce, device: torch.device) -> None:
        refuse_capture(device)
        compile_kernels()
        self._arrays, self._bell = arrays, Bell()
        encodes = arrays.config.policy == "raise"
        jobs = {float_type: arrays.job(float_type) for float_type in FloatType if encodes}
        self.device = TensorDevice(device, jobs, self._bell)
        self._thread = FeederThread(Feeder(self.device), self._bell)

    def submit(
        self, tensor: Tensor, target: Tensor, divisor: int, result: Tensor, tag: int, scatter: bool
    ) -> TensorWork:
        """As `TensorAllReduce.submit`, of tensors that were checked; ``result``: what the work says that it has made.
        Calls are in the order of the job."""
        refuse_capture(tensor.device)
        way = _Way(self, target, result)
        begin = self._encode if self._arrays.config.policy == "raise" else self._copy
        begin(way, tensor, divisor, tag, scatter)
        return way.work

    def arrival(self) -> Arrival | None:
        """Of one tensor; the CPU has none."""
        return None if self.device.up.stream is None else Arrival(self.device.up)

    def abandon(self, flow: Flow, error: Exception) -> None:
        """As `FeederThread.abandon`."""
        self._thread.abandon(flow, error)

    def _encode(self, way: _Way, tensor: Tensor, divisor: int, tag: int, scatter: bool) -> None:
        """Encode and decode on the device."""
        target, float_type = way.target, FLOAT_TYPES[tensor.dtype]
        job = self._arrays.job(float_type)
        shares = tensor.numel() // target.numel() if scatter else 1
        values = tensor.contiguous().resolve_neg()
        if scatter:  # as blocks begin anew with each piece
            padding = -target.numel() % job.lanes
            values = torch.nn.functional.pad(values.view(shares, -1), (0, padding)) if padding else values
        values = values.view(-1)
        if not is_aligned(values):
            values = values.clone()
        plain = target.is_contiguous() and not target.is_neg() and is_aligned(target)
        landing = target if plain else torch.empty_like(target, memory_format=torch.contiguous_format)
        if not plain:
            way.bring(landing)
        operand = Operand(values, landing.view(-1), computed(tensor.device))
        blocks = shares * job.blocks(target.numel())
        staging = Staging(blocks, self._bell, self._arrays.wake)
        flow = Coded(staging, operand, job.lanes, float_type, way.launched, self._arrays.count_invalid)
        self._begin(
            way, flow,
            lambda: self._arrays.submit_staged(staging, tensor.numel(), float_type, divisor, tag, scatter),
        )  # fmt: skip

    def _copy(self, way: _Way, tensor: Tensor, divisor: int, tag: int, scatter: bool) -> None:
        """Copy the values to the host, sum them there, and copy the sums to the device."""
        target, lane = way.target, self.device.look_lane
        there = lane.host(*tensor.shape, dtype=tensor.dtype)
        lane.after(computed(tensor.device))
        with lane():
            there.copy_(tensor, non_blocking=True)
        lane.keep(tensor)
        landing = lane.host(*target.shape, dtype=target.dtype) if scatter else there
        way.bring(landing)
        copied = lane.mark(self._bell)
        arriving = Arriving(self._arrays.wake, copied.wait)
        flow = Copied(arriving, copied, way.launched)
        given: dict[str, Any] = {"arriving": arriving, "tag": tag, "divisor": divisor}
        given["float_type"] = FLOAT_TYPES[tensor.dtype]
        submit = self._arrays.submit_scatter if scatter else self._arrays.submit
        self._begin(way, flow, lambda: submit(view(there), view(landing), **given))

    def _begin(self, way: _Way, flow: Flow, submit: Callable[[], Work]) -> None:
        """For engine and feeder, in one order. If the engine refuses it, nothing has happened."""
        work = submit()
        self._thread.submit(flow)
        work.add_done_callback(lambda done: way.complete(done, flow))

    def close(self) -> None:
        """End the thread; the job has ended."""
        self._thread.close()


class _Way:
    """One tensor's way, as the caller sees it: from the end of the engine's work to that of the caller's."""

    def __init__(self, stage: Stage, target: Tensor, result: Tensor) -> None:
        self.target = target
        self._stage, self._up = stage, stage.device.up
        self._landing: Tensor | None = None
        self._launched = threading.Event()
        self._error: Exception | None = None
        self._arrival, self._done = stage.arrival(), Future[None]()
        self._done.set_running_or_notify_cancel()
        self.work = TensorWork(self._done, [result], arrival=self._arrival)

    def bring(self, landing: Tensor) -> None:
        """The sums come to ``landing`` first. Before anything else."""
        self._landing = landing
        self._up.keep(self.target, *([landing] if landing.device == self.target.device else []))

    def launched(self, error: Exception | None) -> None:
        """All that the feeder launches is in the stream; or it launches nothing more. On the feeder's thread."""
        self._error = error
        try:
            if error is None and self._landing is None:
                self._come()
        except Exception as second:  # of a device that does nothing any more
            self._error = second
        finally:
            self._launched.set()

    def complete(self, work: Work, flow: Flow) -> None:
        """The engine is done: launch what comes after the sums. On a thread that may wait."""
        error = work.exception()
        if isinstance(error, Exception):
            self._stage.abandon(flow, error)
        self._launched.wait()
        try:
            if self._error is not None:
                raise self._error
            if error is not None:
                raise error
            if self._landing is not None:
                with self._up():
                    bring(self.target, self._landing)
                self._come()
        except BaseException as wrong:  # it belongs to whoever waits for the work
            self._done.set_exception(wrong)
        else:
            self._done.set_result(None)

    def _come(self) -> None:
        if self._arrival is not None:
            self._arrival.come()


@torch.inference_mode()
def bring(target: Tensor, landing: Tensor) -> None:
    """Copy the sums to where they belong. That may be a tensor of `torch.inference_mode`, which can be written to in it
    alone, and the caller of this need not be in it."""
    target.copy_(landing, non_blocking=True)


def view(tensor: Tensor) -> npt.NDArray[Any]:
    """The same memory as an array; bfloat16, which numpy does not have, as uint16."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: npt.NDArray[Any] = tensor.numpy()
    return array
