"""Buckets of gradients through a compressor: what the hook does if one was chosen."""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from inagg_host.allreduce import AllReduce
from inagg_host.compress import Compressor, Floats, parse
from inagg_host.compress.exchange import Exchange, Gather
from inagg_host.compress.memory import Memories, memory_of
from inagg_host.config import ConfigError
from inagg_host.io.futures import CallbackExecutor, Work
from inagg_host.io.serial_executor import SerialExecutor, shutdown_all
from inagg_link.signals import Deferred

from .gpu.device import view
from .gpu.stream import Computed, DeviceStream, Event
from .options import option
from .work import TensorWork

log = logging.getLogger("inagg")

Place = tuple[int, int, int]
"""A parameter's number, and where its gradient begins and ends in a bucket."""


def choose(compressor: str | Compressor | None) -> Compressor | None:
    """The compressor that is meant. Raises `ConfigError` if there is none of that name, or with such options."""
    if not isinstance(compressor, str | Compressor | None):
        raise ConfigError(f"compressor is {compressor!r}: give a Compressor, or a text such as 'ef+topk:k=0.01'")
    try:
        return parse(compressor) if isinstance(compressor, str) else compressor
    except ValueError as error:
        raise ConfigError(str(error)) from None


def with_format(compressor: Compressor | None, options: dict[str, Any]) -> dict[str, Any]:
    """``options`` with a number format in which the switch can sum what ``compressor`` makes; raises `ConfigError` if
    another was asked for."""
    if compressor is None or not compressor.formats:
        return options
    given = option("format", options)
    if given is None:
        return {**options, "format": compressor.formats[0]}
    if given not in compressor.formats:
        raise ConfigError(f"format {given!r}: {compressor} can be summed in {', '.join(compressor.formats)}")
    return options


def spans(bucket: GradBucket) -> list[tuple[int, int]]:
    """Where the gradient of each parameter begins and ends in the buffer of a dense bucket."""
    start, found = bucket.buffer().storage_offset(), []
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        # Of complex numbers the buffer has both parts, one after the other, and torch counts in whole numbers.
        parts = 2 if parameter.is_complex() else 1
        at = parts * int(gradient.storage_offset() - start)
        found.append((at, at + parts * gradient.numel()))
    return found


class Compression:
    """Memories of all parameters, and how often each was compressed. Can be pickled.

    Parameters are numbered as they are first seen. The first time DDP has them all in one bucket (or, if it looks for
    unused ones, in buckets that stay as they are), in an order that the model alone decides: so the numbers are the
    same on all ranks and after a restart, and buckets that are cut anew change nothing.
    """

    def __init__(self, seed: int, memories: Memories | None = None, before: Compression | None = None) -> None:
        """``before``: by which parameters have been numbered, if it was in use with the same ones."""
        self.seed = seed
        self.memories: Memories = {} if memories is None else memories
        self._numbers: dict[torch.Tensor, int] = {} if before is None else before._numbers

    def steps(self) -> bytes:
        """How far this rank is, for `catch_up`."""
        return json.dumps([(n, m.d, m.dtype.str, m.step) for n, m in sorted(self.memories.items())]).encode()

    def catch_up(self, everyone: Sequence[bytes]) -> None:
        """Go on from the furthest steps of all ranks, who have said `steps`: on them hangs noise that all share. A step
        may have failed on some alone, or they have loaded what was saved after different ones."""
        for number, d, dtype, step in itertools.chain.from_iterable(map(json.loads, everyone)):
            memory = memory_of(self.memories, number, d, dtype)
            memory.step = max(memory.step, step)

    def places(self, bucket: GradBucket) -> list[Place]:
        """Return the place of each parameter of a dense bucket."""
        return [(number, *span) for number, span in zip(self._number(bucket), spans(bucket), strict=True)]

    def _number(self, bucket: GradBucket) -> list[int]:
        return [self._numbers.setdefault(parameter, len(self._numbers)) for parameter in bucket.parameters()]

    def begin_model(self, bucket: GradBucket) -> None:
        """Number parameters anew if those of ``bucket`` are another model's: as on a rank that comes from a
        checkpoint."""
        if self._numbers.keys().isdisjoint(bucket.parameters()):
            self._numbers.clear()

    def release(self, bucket: GradBucket) -> None:
        """Give back to the gradients of a bucket, which will not be compressed, what is remembered of them."""
        if bucket.buffer().layout is not torch.strided:  # sparse, of one parameter, of which nothing is remembered
            return
        for number, start, end in self.places(bucket):
            error = self.memories[number].release() if number in self.memories else None
            if error is not None:
                bucket.buffer()[start:end] += torch.from_numpy(error).to(bucket.buffer())

    def __getstate__(self) -> dict[str, Any]:
        return {"seed": self.seed, "memories": self.memories}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["seed"])  # type: ignore[misc]
        self.memories = state["memories"]


class Apart:
    """Parameters of a bucket that a process group averages exactly."""

    def __init__(self, bucket: GradBucket, mask: Sequence[bool], group: dist.ProcessGroup) -> None:
        """Begins. ``mask``: which of the bucket's parameters they are."""
        self.mask = mask
        buffer = bucket.buffer()
        self._gradients = [buffer[start:end] for (start, end), plain in zip(spans(bucket), mask, strict=True) if plain]
        self._work: dist.Work | None = None
        if self._gradients:
            self._flat = torch.cat(self._gradients).div_(group.size())
            self._work = group.allreduce([self._flat])

    def finish(self) -> None:
        """Wait, and put the averages where the gradients are."""
        if self._work is None:
            return
        self._work.wait()
        start = 0
        for gradient in self._gradients:
            gradient.copy_(self._flat[start : start + gradient.numel()])
            start += gradient.numel()


class Streams:
    """Streams of one device: to the host and back. They are two, since the next bucket's values may not be computed yet
    when sums are to go to the device."""

    def __init__(self, device: torch.device) -> None:
        self._to_host, self.to_device = DeviceStream(device), DeviceStream(device)

    def fetch(self, buffer: torch.Tensor, wide: torch.dtype, ready: Event) -> Floats:
        """The values of ``buffer``, which are there when the device has come to ``ready``; waits for them."""
        buffer = buffer.detach()
        if self._to_host.external is not None:
            there = self._to_host.pinned(*buffer.shape, dtype=buffer.dtype)
            self._to_host.wait_event(ready)
            with self._to_host.current():
                there.copy_(buffer, non_blocking=True)
            self._to_host.record_event().synchronize()
            buffer = there
        values: Floats = view(buffer.to(wide))
        return values

    def close(self) -> None:
        """Nothing more comes."""
        for stream in (self._to_host, self.to_device):
            stream.close()


class CompressedSums:
    """One rank's compressed buckets on their way, one after the other, on threads of their own.

    On one thread ranks take the values from the device, agree on what they must and send; all of them have the same
    order there, which is that of the calls. On another the sums are waited for.
    """

    def __init__(
        self, compression: Compression, arrays: AllReduce, rank: int, workers: int, gather: Gather | None
    ) -> None:
        self._compression, self._workers = compression, workers
        self._arrays = arrays
        self._exchange = Exchange(arrays, rank, workers, compression.seed, gather)
        self._begin = SerialExecutor("inagg-compress")
        self._end = SerialExecutor("inagg-decompress")
        self._callbacks = CallbackExecutor()
        self._streams: dict[torch.device, Streams] = {}

    @property
    def counts(self) -> Counter[str]:
        """Counts of the exchange: see `Exchange.counts`."""
        return self._exchange.counts

    def average(self, compressor: Compressor, bucket: GradBucket, apart: Apart, call: int) -> TensorWork:
        """Average a bucket in place. Values of 16 bits are compressed as float32. ``apart`` are those parameters that
        are averaged otherwise, and are waited for here; ``call``: as of `Exchange.begin`."""
        buffer, places = bucket.buffer(), self._compression.places(bucket)
        places = [p for p, plain in zip(places, apart.mask, strict=True) if not plain]
        work = Work()
        wide = torch.float64 if buffer.dtype is torch.float64 else torch.float32
        if buffer.device not in self._streams:
            self._streams[buffer.device] = Streams(buffer.device)
        streams, ready = self._streams[buffer.device], Computed(buffer.device)

        def begin() -> Callable[[], dict[int, Floats]]:
            try:
                values = streams.fetch(buffer, wide, ready)
            except BaseException as error:  # else the others' sums of this bucket would be with this rank's next one
                self._arrays.close(f"a bucket's values did not come: {type(error).__name__}: {error}", end=True)
                raise
            vectors = {number: values[start:end] for number, start, end in places}
            return self._exchange.begin(compressor, vectors, self._compression.memories, call)

        with Deferred():
            begun = self._begin.submit(begin)
            self._end.submit(self._finish, begun, buffer, places, apart, streams.to_device, work)
        return TensorWork(work, [buffer])

    def _finish(
        self,
        begun: Future[Callable[[], dict[int, Floats]]],
        buffer: torch.Tensor,
        places: list[Place],
        apart: Apart,
        stream: DeviceStream,
        work: Work,
    ) -> None:
        try:
            totals = begun.result()()
            with stream.current():
                for number, start, end in places:
                    buffer[start:end] = torch.from_numpy(totals[number]).div_(self._workers)
                apart.finish()
            stream.record_event().synchronize()
        except BaseException as error:  # whatever it is, it belongs to whoever waits
            work.finish(error, self._callbacks)
        else:
            work.finish(np.empty(0), self._callbacks)  # it is the tensor that has the sums

    def close(self) -> None:
        """Stop. The job must have ended, so that nothing waits but a gather, which does not hear of it: for as long as
        an operation may take."""
        if not shutdown_all((self._begin, self._end, self._callbacks), self._arrays.timeout_s):
            log.warning("after %g s a gather still waits for another rank", self._arrays.timeout_s)
            return  # what a stream does is not over
        for streams in self._streams.values():
            streams.close()
