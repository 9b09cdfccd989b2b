"""The plain all-reduce of tensors, without a process group: numpy views of CPU tensors, copies only where needed."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Self, Unpack

import torch

from inagg_host.allreduce import AllReduce, AllReduceOptions
from inagg_host.closed import ignore
from inagg_host.config import TIME_MAX_S
from inagg_host.errors import CLOSED, FORKED, AllReduceError
from inagg_host.io.futures import Work
from inagg_host.stats import Counters
from inagg_host.task import make_task
from inagg_link.signals import Deferred

from .cuda import FLOAT_TYPES, Stage, bring
from .gpu.device import is_plain, overlap, view
from .gpu.platform import PLATFORMS
from .tracing import SUBMIT, span
from .work import TensorWork, wait_for_all

DEVICES = ("cpu", "cuda")


class TensorAllReduce:
    """Sums tensors over all ranks of a job, in the network.

        with TensorAllReduce(switch="10.0.0.1:47100", rank=0, workers=4) as all_reduce:
            all_reduce(gradients)  # in place
            work = all_reduce.submit(others, divisor=4)
            ...
            work.wait()

    Takes the arguments of `inagg_host.allreduce.AllReduce`. All ranks must submit tensors of the same sizes and types
    in the same order. Methods may be called from any thread.
    """

    def __init__(self, **options: Unpack[AllReduceOptions]) -> None:
        """Returns when all ranks have joined. Raises `ConfigError` or `AllReduceError`."""
        self.arrays = AllReduce(**options)
        self._last: Callable[[], Work | None] = ignore
        """Last work of a CPU tensor, if anybody has it: the others end before it."""
        self._stages: dict[torch.device, Stage] = {}
        self._platforms = PLATFORMS
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._submitting = False  # with the lock
        self._closed = False

    @property
    def failure(self) -> AllReduceError | None:
        """Why nothing more can be summed, if that is so."""
        return self.arrays.failure

    def __call__(self, tensor: torch.Tensor, out: torch.Tensor | None = None, divisor: int = 1) -> torch.Tensor:
        """Sum ``tensor`` over all ranks, into ``out`` or in place, and return where. See `submit`."""
        self.submit(tensor, out, divisor, wait=True).wait()
        return tensor if out is None else out

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
        turn: int | None = None,
    ) -> TensorWork:
        """Begin to sum ``tensor`` (float16, bfloat16, float32 or float64, any strides; CPU or CUDA) into ``out`` or in
        place; returns at once.

        Neither may be touched until the work is done. What is summed may be expanded (`torch.Tensor.expand`), but what
        is written to may not. ``divisor``: divide the sums by it, for a mean. ``tag``, ``wait`` and ``contributed`` (of
        all-reduces on the CPU alone): as of `AllReduce.submit`. With ``scatter``, ``tensor`` is an equal piece for each
        rank, one after the other, and ``out`` gets the sums of this rank's. ``divide_first``: divide the values, not
        the sums, as these may be beyond what float16 holds. ``turn``: as of `AllReduce.submit`, and as there a call
        counts though it raises, for want of memory, say. Raises ValueError for what cannot be summed, `AllReduceError`
        if all is over.
        """
        turn = self.arrays.take_turn() if turn is None else turn
        with Deferred() as signals:
            result = tensor if out is None else out
            check(tensor, result, self.arrays.config.workers if scatter else 1)
            if contributed is not None:
                _check_contributed(contributed, tensor, self._platforms)
            tensor, target = tensor.detach(), result.detach()
            if divide_first:
                tensor, divisor = tensor / divisor, 1
            device = tensor.device if tensor.device.type in self._platforms else None
            if device is None:
                with span(SUBMIT):
                    self._refuse_if_over()
                    pending, finish = self._submit_cpu(
                        tensor, target, divisor, turn, tag, signals if wait else None, contributed, scatter
                    )
                work = TensorWork(pending, [result], finish)
        if device is not None:  # where handlers are not put off: that may wait for room on it
            with span(SUBMIT):
                self._refuse_if_over()
                with self._alone():
                    return self.stage(device).submit(tensor, target, divisor, result, turn, tag, scatter)
        if wait:
            pending.exception()
        return work

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long sums may take, from now on; on a device, of what is submitted from now on."""
        self.arrays.timeout_s = min(timeout.total_seconds(), TIME_MAX_S)
        for stage in list(self._stages.values()):
            stage.set_timeout(self.arrays.timeout_s)

    def _refuse_if_over(self) -> None:
        if os.getpid() != self._process:  # before the lock, which a thread of the parent's may have had
            raise AllReduceError(FORKED)
        if self._closed:
            raise AllReduceError(CLOSED)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time submits to devices. A handler of a signal, which interrupts it there, may end the job,
        but submit nothing: it would be launched in the middle of something."""
        with self._lock:
            if self._submitting:
                raise RuntimeError(
                    "this thread is in the middle of submitting a tensor: a signal handler cannot submit another one; "
                    "have it set a flag, and submit after the step"
                )
            self._refuse_if_over()
            self._submitting = True
            try:
                yield
            finally:
                self._submitting = False
                if self._closed:  # by such a handler
                    self._close_stages()

    def stage(self, device: torch.device) -> Stage:
        """Return the stage that sums tensors of a device; with the lock. The first time it compiles."""
        if device not in self._stages:
            self._stages[device] = Stage(self.arrays, self._platforms[device.type](device))
        return self._stages[device]

    def _submit_cpu(
        self, tensor: torch.Tensor, target: torch.Tensor, divisor: int, turn: int, tag: int, signals: Deferred | None,
        contributed: torch.Tensor | None, scatter: bool,
    ) -> tuple[Work, Callable[[], None] | None]:  # fmt: skip
        """Submit a CPU tensor that was checked, as `AllReduce.begin`; the work, and what is to be called when its sums
        are there."""
        if is_plain(target) and not (scatter and overlap(tensor, target)):
            landing, finish = target, None
        else:
            # As it lies in memory, a strided tensor could be summed too, but ranks may have different strides.
            landing = torch.empty(target.shape, dtype=target.dtype, device="cpu")
            finish = partial(bring, target, landing)
        if not is_plain(tensor):
            tensor = tensor.contiguous().resolve_neg()
        own, float_type = None if contributed is None else view(contributed), FLOAT_TYPES[tensor.dtype]
        pieces, rank = self.arrays.config.workers if scatter else None, self.arrays.config.rank
        task = make_task(view(tensor), view(landing), float_type, divisor, own, pieces, rank)
        work = self.arrays.begin(task, turn, tag, signals)
        self._last = weakref.ref(work)
        return work, finish

    @property
    def counters(self) -> Counters:
        """Counters of what this rank has done, brought up to date."""
        return self.arrays.counters

    def drain(self) -> None:
        """Wait until all sums are there, but no longer than the job's time limit. Of those of CUDA tensors a stream
        waits, and no thread need have: to leave the job before would make them NaN. Of those of CPU tensors a script
        may have dropped the work. In a process that was forked from the rank's nothing comes, and this returns at
        once."""
        if os.getpid() != self._process:
            return
        unfinished: list[Future[Any]] = [f for stage in list(self._stages.values()) for f in stage.unfinished]
        if (last := self._last()) is not None:
            unfinished.append(last)
        wait_for_all(unfinished, self.arrays.timeout_s)

    def close(self, reason: str = "", end: bool = False) -> None:
        """Leave the job, or ``end`` it for all ranks. What is unfinished fails. No error if called twice; nothing
        happens in a process that was forked from the rank's, whose threads and eventfds are still in use."""
        if os.getpid() != self._process:
            return
        self._closed = True  # without the lock: who has it may wait for room on the device, until the job is over
        self.arrays.close(reason, end)
        with self._lock:
            if not self._submitting:  # else we have interrupted that, which closes them in its turn
                self._close_stages()

    def _close_stages(self) -> None:
        for stage in self._stages.values():
            stage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            self.close()


def check(tensor: torch.Tensor, target: torch.Tensor, pieces: int = 1) -> None:
    """Raise ValueError unless ``tensor`` can be summed into ``target``, or one of several equal ``pieces`` of it."""
    for name, given in (("tensor", tensor), ("out", target)):
        if not hasattr(given, "layout"):
            raise ValueError(
                f"{name}: {type(given).__name__} cannot be summed; give a tensor, as torch.as_tensor makes one"
            )
    if any(type(given) is not torch.Tensor and hasattr(given, "to_local") for given in (tensor, target)):
        raise ValueError(
            "a DTensor cannot be summed in the network, as its parts lie on several ranks: give what this rank has of "
            "it, its .to_local()"
        )
    if tensor.dtype not in FLOAT_TYPES or tensor.layout is not torch.strided or tensor.device.type not in DEVICES:
        raise ValueError(
            f"a {tensor.layout} tensor of {tensor.dtype} on {tensor.device} cannot be summed in the network: give "
            "a dense one of float16, bfloat16, float32 or float64 on CPU or CUDA"
        )
    if pieces > 1 and target.numel() * pieces != tensor.numel():
        raise ValueError(
            f"out has {target.numel()} elements, the values are {tensor.numel()}: {pieces} ranks need {pieces} times "
            "as many"
        )
    shape = target.shape if pieces > 1 else tensor.shape
    kind = shape, tensor.dtype, tensor.device
    if target is not tensor and (target.shape, target.dtype, target.device) != kind:
        raise ValueError(f"out is {_text(target)}, the values are {_text(tensor)}")
    # Else the copy that brings the sums would raise it, which on a device is when other ranks count on this one.
    if repeats(target):
        raise ValueError(
            f"sums cannot be written to an expanded tensor, here of shape {tuple(target.shape)} and strides "
            f"{target.stride()}: several of its elements are one place in memory. Give a copy, which .contiguous() "
            "and .clone() make, or the tensor that was expanded"
        )


def has_no_memory(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` stands for others, or for none, which operators alone can sum: one of `torch.func`'s, or of a
    class with a ``__torch_dispatch__``, such as FakeTensor. Not a DTensor, of which each rank has something else."""
    dispatch = torch.Tensor.__torch_dispatch__
    if getattr(type(tensor), "__torch_dispatch__", dispatch) is dispatch:
        return torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return not hasattr(tensor, "to_local")


def _check_contributed(contributed: torch.Tensor, tensor: torch.Tensor, devices: Collection[str]) -> None:
    """Raise ValueError unless ``contributed`` can take what a rank contributes of ``tensor``. ``devices``: types of
    those of which that is not known."""
    if tensor.device.type in devices:
        raise ValueError("what a rank contributes is known of CPU tensors alone: give no contributed")
    if not isinstance(contributed, torch.Tensor):
        raise ValueError(f"contributed: {type(contributed).__name__} is no tensor: give one like the values")
    if contributed.device.type != "cpu" or not is_plain(contributed):
        raise ValueError(
            f"contributed is {_text(contributed)} with strides {contributed.stride()}: give one that is contiguous, on "
            "the CPU, as torch.empty and .contiguous() make them"
        )


def _text(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"


def repeats(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor are one place in memory, as `torch.Tensor.expand` has it."""
    if tensor.is_contiguous():  # also if it is empty
        return False
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def sharing(tensors: Mapping[int, torch.Tensor]) -> set[int]:
    """The keys of those that have memory between their first and last elements in common with another one."""
    found, end, last = set[int](), 0, -1
    for key, tensor in sorted(tensors.items(), key=lambda item: item[1].data_ptr()):
        if tensor.data_ptr() < end:
            found |= {last, key}
        steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if (after := tensor.data_ptr() + (steps + 1) * tensor.itemsize) > end:
            end, last = after, key
    return found
