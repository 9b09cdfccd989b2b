"""Tensors of one device on their way to the switch and back, beside the training stream.

All that the device does for a tensor is launched when it is submitted, on streams of our own (`gpu.device`). So no
thread waits for the device, and whoever needs the sums has a stream wait for them.

Of a large tensor codes alone cross the bus: the device encodes and decodes it, and host and device tell each other four
times how far they are. A small one is copied to the host as it is, and back: its values cross the bus in less time than
a word of that takes to be noticed, and twice is enough. With the policy "fallback" all are copied, since what is left
when the switch fails must be in the host's memory, where the inner group can sum it. The bits are the same.

Who uses a tensor's memory is ordered so: our streams wait for what is on the training stream when it is submitted, and
that stream waits for the sums before it uses the memory again. A tensor is kept until the device has done with it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress

import torch
from torch import Tensor

from inagg_host import warmup
from inagg_host.allreduce import AllReduce
from inagg_host.codec.staging import Arriving, Codec, Staging
from inagg_host.errors import again
from inagg_host.io.futures import Work
from inagg_host.io.watchdog import Watchdog
from inagg_host.task import Task, make_staged_task
from inagg_wire.scale import FloatType

from .gpu.arrival import Arrival, refuse_capture, refuse_capture_here
from .gpu.device import Operand, TensorDevice, is_aligned, is_plain, overlap, view
from .gpu.floats import DTYPES
from .gpu.platform import Platform
from .gpu.stream import DeviceStream, Event
from .in_flight import InFlight, wait_for
from .work import TensorWork

log = logging.getLogger("inagg")

FLOAT_TYPES = {dtype: float_type for float_type, dtype in DTYPES.items()}
"""Types that the switch can sum, and the engine's names of them."""


LOOK_S = 0.5
"""How often somebody asks whether the device still works."""
LOOKS = 10
"""Number of `LOOK_S` for which the end waits for the answer."""


class Stage:
    """One device's part in one job. The first tensor makes it, and waits for kernels to be compiled; later tensors do
    not."""

    def __init__(self, arrays: AllReduce, platform: Platform) -> None:
        refuse_capture(platform.device)
        for unit in warmup.device_units():
            unit.compile()
        self._arrays = arrays
        encodes = arrays.config.policy == "raise" and platform.can_encode()
        self._copied_bytes = platform.copied_bytes
        self._jobs = {float_type: arrays.job(float_type) for float_type in FloatType if encodes}
        self._flights = dict[Future[None], InFlight]()
        self._told_of_host = False
        self._closed = threading.Event()
        self._looks = threading.Thread(target=self._look_after, name="inagg-device", daemon=True)
        with ExitStack() as made:  # there may be no more threads
            self.device = TensorDevice(platform, self._jobs)
            made.callback(self.device.close)
            self._encodes = self.device.encodes
            self._watchdog = Watchdog(arrays.timeout_s)
            made.callback(self._watchdog.close)
            self._looks.start()
            made.pop_all()

    def set_timeout(self, limit_s: float) -> None:
        """Set how long the device waits for the sums of what is submitted from now on."""
        self._watchdog.limit_s = limit_s

    def submit(
        self, tensor: Tensor, target: Tensor, divisor: int, result: Tensor, turn: int, tag: int, scatter: bool
    ) -> TensorWork:
        """Submit as `TensorAllReduce.submit` does, but tensors that were checked; ``result``: what the work says that
        it has made. Calls are in the order of the job."""
        begin = self._encode if self._encodes and tensor.nbytes > self._copied_bytes else self._copy
        with self.device.here():
            if tensor.is_cuda:
                refuse_capture_here()
            self._arrays.wake()  # that takes a while, in which all this goes on
            return begin(tensor, target, divisor, result, turn, tag, scatter)

    def _encode(
        self, tensor: Tensor, target: Tensor, divisor: int, result: Tensor, turn: int, tag: int, scatter: bool
    ) -> TensorWork:
        """Encode and decode on the device."""
        float_type, chunk = FLOAT_TYPES[tensor.dtype], self._arrays.chunk
        job = self._jobs[float_type]
        shares = tensor.numel() // target.numel() if scatter else 1
        values = tensor.contiguous().resolve_neg()
        if scatter:  # as blocks begin anew with each piece
            padding = -target.numel() % job.lanes
            values = torch.nn.functional.pad(values.view(shares, -1), (0, padding)) if padding else values
        values = values.view(-1)
        if not is_aligned(values):
            values = values.clone()
        plain = is_plain(target) and is_aligned(target)
        if scatter and overlap(tensor, target):  # sums are written where later pieces may not be encoded yet
            plain &= target.data_ptr() == tensor.data_ptr() + job.rank * target.nbytes and tensor.is_contiguous()
        landing = target if plain else torch.empty_like(target, memory_format=torch.contiguous_format)
        operand = Operand(values, landing.view(-1))
        piece = job.blocks(target.numel())
        board = self.device.board(job, shares * piece, chunk)
        staging = Staging(board, chunk, self._arrays.wake)
        own = range(job.rank * piece, (job.rank + 1) * piece) if scatter else range(piece)

        def launch() -> None:
            self.device.launch(operand, job, board, chunk, own, divisor)
            if scatter:  # this rank's sums may be there while the pieces of others are still encoded from its memory
                self.device.decode_stream.wait_event(self.device.encode_stream.record_event())
            if not plain:
                self.device.decode_stream.do(lambda: bring(target, landing))

        def finish() -> None:
            self._arrays.count_invalid(int(board.invalid[own.start : own.stop].sum()))

        def submit() -> Work:
            task = make_staged_task(tensor.numel(), float_type, divisor, shares)
            return self._arrays.submit_task(task, turn, tag, staging)

        used, streams = (operand, landing, target), (self.device.scan_stream, self.device.encode_stream)
        return self._begin(staging, submit, launch, finish, result, used, streams)

    def _copy(
        self, tensor: Tensor, target: Tensor, divisor: int, result: Tensor, turn: int, tag: int, scatter: bool
    ) -> TensorWork:
        """Copy the values to the host, sum them there, and copy the sums to the device."""
        if (failure := self._arrays.failure) is not None:  # before the device, which may be stuck, has to do with it
            raise again(failure)
        values, stream = tensor.contiguous().resolve_neg(), self.device.decode_stream
        there = stream.pinned(tensor.numel(), dtype=tensor.dtype)
        landing = stream.pinned(target.numel(), dtype=target.dtype) if scatter else there
        given, sums, float_type, words = view(there), view(landing), FLOAT_TYPES[tensor.dtype], self.device.words()
        copied = list[Event]()
        arriving = Arriving(self._arrays.wake, words, sums, lambda: wait_for(copied))

        def submit() -> Work:
            try:
                self.device.copy_to_host(values, there.data_ptr(), words.ctypes.data)
                copied.append(self.device.scan_stream.record_event())
            except Exception as error:  # of the device: all ranks must hear of it
                arriving.fail(error)
                with suppress(Exception):
                    copied.append(self.device.scan_stream.record_event())
            task = Task(given, sums, float_type, divisor, scatters=scatter, target=sums)
            return self._arrays.submit_task(task, turn, tag, arriving)

        def launch() -> None:
            if is_plain(target):
                self.device.copy_from_host(landing.data_ptr(), target, arriving.summed)
            else:
                stream.wait_value(arriving.summed)
                stream.do(lambda: bring(target, landing.view(target.shape)))

        def finish() -> None:
            self.device.give_back(words)

        return self._begin(arriving, submit, launch, finish, result, (values, target, there, landing), ())

    def _begin(
        self, codec: Codec, submit: Callable[[], Work], launch: Callable[[], None], finish: Callable[[], None],
        result: Tensor, used: object, streams: tuple[DeviceStream, ...],
    ) -> TensorWork:  # fmt: skip
        """Submit, and launch what brings the sums. ``finish`` is called when all is done; ``used``: what is to be kept
        until then: until ``streams`` have come to where they are then, if that is not before the sums."""
        stream, alone, events, arrival = self.device.decode_stream, True, list[Event](), None
        failed: BaseException | None = None
        flight = InFlight(codec, self._watchdog, self._arrays, finish, used)
        try:
            flight.follow(submit())
        except BaseException as error:  # it is refused, or Ctrl-C
            with suppress(Exception):
                events.append(self.device.scan_stream.record_event())
            flight.dropped(events, error)
            raise
        try:
            self._flights[flight.done] = flight
            flight.done.add_done_callback(self._is_over)
            alone = self._arrays.runs_without_python()
            launch()
        except BaseException as error:  # of the device, or Ctrl-C: all ranks must hear of it
            flight.fail(error)
            failed = error
        try:  # nothing is called in between, where Ctrl-C might come
            events += [each.record_event() for each in streams]
            if stream.external is None:
                events.append(stream.record_event())
            else:
                arrival = Arrival(stream, self.device.callback_stream, alone)
                events.append(arrival.come())
            flight.launched(events)
        except BaseException as error:  # the same
            flight.fail(error)
            flight.lost()
            arrival, failed = None, failed or error
        if not alone and not self._told_of_host:
            self._told_of_host = True
            log.warning(
                "whoever waits for sums on %s waits on the host: the switch is out of reach, or sockets have no "
                "UDP_SEGMENT or UDP_GRO here", self.device.device,
            )  # fmt: skip
        if failed is not None and not isinstance(failed, Exception):
            raise failed
        return TensorWork(flight.done, [result], arrival=arrival)

    def _is_over(self, done: Future[None]) -> None:
        self._flights.pop(done, None)

    def _look_after(self) -> None:
        """See whether the device still works: what went wrong on it after all was launched nobody else would know
        before the time limit."""
        while not self._closed.wait(LOOK_S):
            if flights := list(self._flights.values()):
                try:
                    for stream in self.device.streams:
                        stream.check()
                except Exception as error:
                    for flight in flights:
                        flight.fail(error)

    @property
    def unfinished(self) -> list[Future[None]]:
        """Futures of what was submitted and is not over."""
        return list(self._flights)

    def close(self) -> None:
        """Nothing more is submitted; the job has ended. No error if called twice."""
        self._closed.set()
        self._looks.join(LOOKS * LOOK_S)  # CUDA's driver may never return from a GPU that is lost
        self._watchdog.close()
        self.device.close()


@torch.inference_mode()
def bring(target: Tensor, landing: Tensor) -> None:
    """Copy the sums to where they belong. That may be a tensor of `torch.inference_mode`, which can be written to in it
    alone, and the caller of this need not be in it."""
    target.copy_(landing, non_blocking=True)
