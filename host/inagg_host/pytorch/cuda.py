"""CUDA tensors on their way through pinned memory, beside the training stream.

The training stream is never waited for on the thread that submits: a stream of our own copies the tensor down once
the training stream has computed it, a thread of our own waits for that copy and submits it, and when the sums are there
another stream copies them up. Whoever needs the sums lets its stream wait for that copy (`TensorWork.synchronize`, or
a future that knows the device).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

import torch

from inagg_host.completion import Work

from .work import Arrival, TensorWork

Finish = Callable[[], None] | None
# torch types the classes, but not their constructors.
_Stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
_Event: Callable[..., torch.cuda.Event] = torch.cuda.Event

SubmitCpu = Callable[[torch.Tensor, torch.Tensor, int, Finish], tuple[Work, Finish]]


class CudaStage:
    """Stages tensors of any device, in order. Those of the CPU only queue behind the others."""

    def __init__(self, submit_cpu: SubmitCpu) -> None:
        self._submit_cpu = submit_cpu
        self._streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="inagg-stage", daemon=True)
        self._thread.start()

    def submit(
        self, tensor: torch.Tensor, target: torch.Tensor, divisor: int, finish: Finish, result: torch.Tensor
    ) -> TensorWork:
        """As `TensorAllReduce.submit`, of tensors that were checked; ``finish`` may launch kernels."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        if tensor.is_cuda:
            return TensorWork(done, [result], arrival=self._submit_cuda(tensor, target, divisor, finish, done))
        self._queue.put(lambda: self._sum(tensor, target, divisor, finish, done))
        return TensorWork(done, [result])

    def _submit_cuda(
        self, tensor: torch.Tensor, target: torch.Tensor, divisor: int, finish: Finish, done: Future[None]
    ) -> Arrival:
        device = tensor.device
        if device not in self._streams:
            self._streams[device] = _Stream(device), _Stream(device)
        down, up = self._streams[device]
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copied = _Event(blocking=True)
        ready = _Event()
        down.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(down):
            pinned.copy_(tensor, non_blocking=True)
        copied.record(down)
        for used, stream in ((tensor, down), (target, up)):
            used.record_stream(stream)  # the caching allocator must not give the memory away before

        def copy_up() -> None:
            with torch.cuda.stream(up):
                target.copy_(pinned, non_blocking=True)
                if finish is not None:
                    finish()
                ready.record(up)

        def start() -> None:
            try:
                copied.synchronize()
            except Exception as error:  # of an earlier kernel, most likely
                done.set_exception(error)
                return
            self._sum(pinned, pinned, divisor, copy_up, done)

        self._queue.put(start)
        return Arrival(device, up, ready)

    def _sum(
        self, values: torch.Tensor, target: torch.Tensor, divisor: int, finish: Finish, done: Future[None]
    ) -> None:
        """Submit, and complete ``done`` when the sums are there and ``finish`` has run."""

        def complete(work: Work) -> None:
            try:
                work.result()
                if after is not None:
                    after()
            except Exception as error:  # it belongs to whoever waits for the work
                done.set_exception(error)
                return
            done.set_result(None)

        try:
            work, after = self._submit_cpu(values, target, divisor, finish)
        except Exception as error:
            done.set_exception(error)
            return
        work.add_done_callback(complete)

    def _run(self) -> None:
        while (start := self._queue.get()) is not None:
            start()

    def close(self) -> None:
        """End the thread, when what was submitted has been started or has failed."""
        self._queue.put(None)
        self._thread.join()
