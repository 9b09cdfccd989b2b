"""CUDA tensors on their way to the switch and back, beside the training stream.

The training stream is never waited for on the thread that submits: a stream of our own takes the tensor once the
training stream has computed it, a thread of our own waits for that and submits, and when the sums are there another
stream brings them up. Whoever needs the sums lets its stream wait for that (`TensorWork.synchronize`, or a future that
knows the device).

The tensor is encoded and decoded on the device (`gpu.codec`), so that codes alone cross the bus. With the policy
"fallback" it is staged as it is through pinned memory, and encoded on the CPU: what is left when the switch fails must
be in the host's memory, where the inner group can sum it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from inagg_host.codec.callbacks import MakeCodec
from inagg_host.io.futures import Work

from .gpu.codec import DeviceCodec, Lane
from .work import Arrival, TensorWork

Finish = Callable[[], None] | None
Begin = Callable[[], tuple[Work, Finish]]
_Event: Callable[..., torch.cuda.Event] = torch.cuda.Event  # torch types the class, but not its constructor


class Sums(Protocol):
    """What the stage submits to: `TensorAllReduce`."""

    def submit_cpu(
        self, tensor: Tensor, target: Tensor, divisor: int, finish: Finish, tag: int, *, scatter: bool = False
    ) -> tuple[Work, Finish]:
        """Submit a tensor of the CPU; the work, and what is to be called when its sums are there."""

    def submit_codec(self, codec: MakeCodec, tensor: Tensor, divisor: int, tag: int, scatter: bool = False) -> Work:
        """Submit what ``codec`` knows of ``tensor``."""

    @property
    def codec_lanes(self) -> int | None:
        """Lanes of a block, for codecs; None: tensors must come through the host's memory."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Streams of one device. ``look`` alone waits for the training stream: for values that are to be summed."""

    look: Lane
    down: Lane
    up: Lane


class CudaStage:
    """Stages tensors of any device, in order. Those of the CPU only queue behind the others."""

    def __init__(self, sums: Sums, devices: frozenset[str] = frozenset({"cuda"})) -> None:
        """``devices``: types of devices that are staged."""
        self._sums, self._devices = sums, devices
        self._lanes: dict[torch.device, Lanes] = {}
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="inagg-stage", daemon=True)
        self._thread.start()

    def submit(
        self, tensor: Tensor, target: Tensor, divisor: int, finish: Finish, result: Tensor, tag: int,
        scatter: bool = False,
    ) -> TensorWork:  # fmt: skip
        """As `TensorAllReduce.submit`, of tensors that were checked; ``finish`` may launch kernels."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        if tensor.device.type not in self._devices:
            on_host = partial(self._sums.submit_cpu, tensor, target, divisor, finish, tag, scatter=scatter)
            self._queue.put(lambda: self._sum(on_host, done))
            return TensorWork(done, [result])
        device = tensor.device
        if device not in self._lanes:
            self._lanes[device] = Lanes(Lane(device), Lane(device), Lane(device))
        used = self._lanes[device]
        up = used.up
        ready = _Event() if up.stream is not None else None

        def arrive(copy: Finish) -> Callable[[], None]:
            """What is to be done when the sums are there, in the order of the stream that brings them."""

            def arrived() -> None:
                with up():
                    for call in (copy, finish):
                        if call is not None:
                            call()
                    if ready is not None:
                        ready.record(up.stream)

            return arrived

        lanes = self._sums.codec_lanes
        if lanes is None:
            begin = self._stage(tensor, target, divisor, used, arrive, tag, scatter)
        else:
            begin = self._encode(tensor, target, divisor, lanes, used, arrive, tag, scatter)
        self._queue.put(lambda: self._sum(begin, done))
        arrival = None if ready is None or up.stream is None else Arrival(device, up.stream, ready)
        return TensorWork(done, [result], arrival=arrival)

    def _stage(
        self, tensor: Tensor, target: Tensor, divisor: int, used: Lanes,
        arrive: Callable[[Finish], Callable[[], None]], tag: int, scatter: bool,
    ) -> Begin:  # fmt: skip
        """Copy the tensor down, sum it there, and copy the sums up."""
        used.look.after_current()
        with used.look():
            there = used.look.down(tensor)
            wait = used.look.mark()
        landing = used.look.host(*target.shape, dtype=target.dtype) if scatter else there
        used.look.keep(tensor)
        used.up.keep(target)

        def copy() -> None:
            target.copy_(landing, non_blocking=True)

        def begin() -> tuple[Work, Finish]:
            wait()
            return self._sums.submit_cpu(there, landing, divisor, arrive(copy), tag, scatter=scatter)

        return begin

    def _encode(
        self, tensor: Tensor, target: Tensor, divisor: int, lanes: int, used: Lanes,
        arrive: Callable[[Finish], Callable[[], None]], tag: int, scatter: bool,
    ) -> Begin:  # fmt: skip
        """Encode and decode on the device."""
        plain = target.is_contiguous() and not target.is_neg() and not scatter
        values = tensor.contiguous().resolve_neg()
        shares = tensor.numel() // target.numel() if scatter else 1
        if scatter:  # as blocks begin anew with each piece
            padded = -(-target.numel() // lanes) * lanes - target.numel()
            values = torch.nn.functional.pad(values.view(shares, -1), (0, padded))
        landing = target if plain else torch.empty_like(values)
        codec = DeviceCodec(values.view(-1), landing.view(-1), lanes, used.down, used.up, shares=shares)
        wait = codec.start(used.look)
        used.up.keep(target)

        def copy() -> None:
            own = landing[codec.job.rank, : target.numel()] if scatter else landing
            target.copy_(own.view(target.shape))

        def begin() -> tuple[Work, Finish]:
            wait()
            return self._sums.submit_codec(codec.bind, tensor, divisor, tag, scatter), arrive(None if plain else copy)

        return begin

    def _sum(self, begin: Begin, done: Future[None]) -> None:
        """Submit, and complete ``done`` when the sums are there and what comes then has run."""

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
            work, after = begin()
        except Exception as error:  # of an earlier kernel, perhaps
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
