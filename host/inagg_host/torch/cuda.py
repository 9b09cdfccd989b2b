"""Tensors of one device on their way to the switch and back, beside the training stream.

All that the device does for a tensor is launched when it is submitted, on streams of our own, which then wait for the
network: see `gpu.device`. So neither the thread that submits nor the transport's waits for the device, and whoever
needs the sums has a stream wait for them.

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
from contextlib import suppress

import torch
from torch import Tensor

from inagg_host import warmup
from inagg_host.allreduce import AllReduce, AllReduceError
from inagg_host.codec.staging import Arriving, Codec, Staging
from inagg_host.io.futures import Work
from inagg_host.io.watchdog import Watchdog
from inagg_wire.scale import FloatType

from .gpu.arrival import Arrival, refuse_capture, refuse_capture_here
from .gpu.device import Operand, TensorDevice, is_aligned, is_plain, overlap, view
from .gpu.floats import DTYPES
from .gpu.lane import Lane, Mark
from .gpu.platform import Platform
from .work import TensorWork

log = logging.getLogger("inagg")

FLOAT_TYPES = {dtype: float_type for float_type, dtype in DTYPES.items()}
"""What the switch can sum, and what the engine calls it."""


class Stage:
    """Of one job and one device. Made by the first tensor, which waits for kernels to be compiled; all that come later
    do not."""

    def __init__(self, arrays: AllReduce, platform: Platform) -> None:
        refuse_capture(platform.device)
        for unit in warmup.device_units():
            unit.compile()
        self._arrays = arrays
        encodes = arrays.config.policy == "raise" and platform.can_encode()
        self._copied_bytes = platform.copied_bytes
        self._jobs = {float_type: arrays.job(float_type) for float_type in FloatType if encodes}
        self._unfinished = set[Future[None]]()
        self._told_of_host = False
        self.device = TensorDevice(platform, self._jobs)
        self._encodes = self.device.encodes
        self._watchdog = Watchdog(arrays.config.timeout_s)

    def submit(
        self, tensor: Tensor, target: Tensor, divisor: int, result: Tensor, tag: int, scatter: bool
    ) -> TensorWork:
        """As `TensorAllReduce.submit`, of tensors that were checked; ``result``: what the work says that it has made.
        Calls are in the order of the job."""
        begin = self._encode if self._encodes and tensor.nbytes > self._copied_bytes else self._copy
        with self.device.here():
            if tensor.is_cuda:
                refuse_capture_here()
            self._arrays.wake()  # that takes a while, in which all this goes on
            return begin(tensor, target, divisor, result, tag, scatter)

    def _encode(
        self, tensor: Tensor, target: Tensor, divisor: int, result: Tensor, tag: int, scatter: bool
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
                self.device.up.after(self.device.down.mark())
            if not plain:
                self.device.up.do(lambda: bring(target, landing))

        def finish() -> None:
            self._arrays.count_invalid(int(board.invalid[own.start : own.stop].sum()))

        work = self._arrays.submit_staged(staging, tensor.numel(), float_type, divisor, tag, scatter)
        lanes = self.device.look, self.device.down
        return self._begin(work, staging, launch, finish, result, (operand, landing, target), lanes)

    def _copy(
        self, tensor: Tensor, target: Tensor, divisor: int, result: Tensor, tag: int, scatter: bool
    ) -> TensorWork:
        """Copy the values to the host, sum them there, and copy the sums to the device."""
        if (failure := self._arrays.failure) is not None:  # before the device, which may be stuck, has to do with it
            raise failure
        values, up, words = tensor.contiguous().resolve_neg(), self.device.up, self.device.words()
        there = up.host(tensor.numel(), dtype=tensor.dtype)
        landing = up.host(target.numel(), dtype=target.dtype) if scatter else there
        given, float_type = view(there), FLOAT_TYPES[tensor.dtype]
        sums = view(landing) if scatter else given
        wrong: Exception | None = None
        try:
            try:
                self.device.copy_to_host(values, there.data_ptr(), words.ctypes.data)
            except Exception as error:  # of the device: all ranks must hear of it
                wrong = error
            copied = self.device.look.mark()
            arriving = Arriving(self._arrays.wake, words, sums, copied.wait)
            if wrong is not None:
                arriving.fail(wrong)
            work = self._arrays.submit(given, sums, float_type, divisor, tag=tag, arriving=arriving, scatter=scatter)
        except BaseException:  # it is refused, or Ctrl-C: its memory must stay until the device has done with it
            mark = self.device.look.mark()
            threading.Thread(target=_keep, args=(mark, values, there, words), name="inagg-keep", daemon=True).start()
            raise

        def launch() -> None:
            if is_plain(target):
                self.device.copy_from_host(landing.data_ptr(), target, arriving.summed)
            else:
                up.wait(arriving.summed)
                up.do(lambda: bring(target, landing.view(target.shape)))

        def finish() -> None:
            self.device.give_back(words)

        return self._begin(work, arriving, launch, finish, result, (values, target, there, landing), ())

    def _begin(
        self, work: Work, codec: Codec, launch: Callable[[], None], finish: Callable[[], None], result: Tensor,
        used: object, lanes: tuple[Lane, ...],
    ) -> TensorWork:  # fmt: skip
        """Launch what brings the sums of what was submitted. ``finish`` is called when all is done; ``used``: what is
        to be kept until then: until ``lanes`` have come to where they are then, if that is not before the sums."""
        lane, done = self.device.up, Future[None]()
        done.set_running_or_notify_cancel()
        self._unfinished.add(done)
        done.add_done_callback(self._unfinished.discard)
        # Given away by the two below, since a future keeps its callbacks, and these would keep memory that is dear.
        parts, codecs, failures = [(codec, finish, used)], [codec], list[BaseException]()

        def release(work: Work) -> None:
            with suppress(IndexError):  # once, by whoever comes first
                waited_for = codecs.pop()
                self._watchdog.remove(waited_for)
                if waited_for.error is not None:
                    failures.append(waited_for.error)
                if work.exception() is not None:
                    waited_for.release()

        self._watchdog.add(codec)
        # Before all is launched: a large operation fills the queues of the device, and then waits for what is in them.
        work.add_done_callback(release)
        alone = True
        try:
            alone = self._arrays.settle()
            launch()
        except BaseException as error:  # of the device, or Ctrl-C: all ranks must hear of it
            codec.fail(error)
            failures.insert(0, error)
        if not alone and not self._told_of_host:
            self._told_of_host = True
            log.warning(
                "whoever waits for sums on %s waits on the host: the switch is out of reach, or sockets have no "
                "UDP_SEGMENT or UDP_GRO here", self.device.device,
            )  # fmt: skip
        arrival = None if lane.stream is None else Arrival(lane, self.device.told, alone)
        marks = [each.mark() for each in lanes]
        marks.append(lane.mark() if arrival is None else arrival.come())

        def complete(work: Work) -> None:
            kept, error = parts.pop(), work.exception()  # kept until the device has passed all marks
            try:
                try:
                    release(work)  # where the work is done already, this may be called before that is
                finally:
                    for mark in marks:
                        mark.wait()
                kept[1]()
                if error is None and failures:  # the sums had come before the codec was known to have failed
                    error = AllReduceError(f"the device did not bring the sums: {failures[0]}")
                    self._arrays.close(str(error), end=True)
                if error is not None:
                    raise error
            except BaseException as failure:  # it belongs to whoever waits for the work
                done.set_exception(failure)
            else:
                done.set_result(None)

        submitter = threading.get_ident()

        def complete_elsewhere(work: Work) -> None:
            if threading.get_ident() != submitter:
                complete(work)
            else:  # the sums were there before this was chained, and who submits does not wait for the device
                threading.Thread(target=complete, args=(work,), name="inagg-complete", daemon=True).start()

        work.add_done_callback(complete_elsewhere)
        if failures and not isinstance(failures[0], Exception):
            raise failures[0]
        return TensorWork(done, [result], arrival=arrival)

    @property
    def unfinished(self) -> list[Future[None]]:
        """What was submitted and is not over."""
        return list(self._unfinished)

    def close(self) -> None:
        """Nothing more is submitted; the job has ended."""
        self._watchdog.close()
        self.device.close()


def _keep(mark: Mark, *_used: object) -> None:
    """Keep what is used until the device has come to a place."""
    mark.wait()


@torch.inference_mode()
def bring(target: Tensor, landing: Tensor) -> None:
    """Copy the sums to where they belong. That may be a tensor of `torch.inference_mode`, which can be written to in it
    alone, and the caller of this need not be in it."""
    target.copy_(landing, non_blocking=True)
