"""The CPU as a device: its streams are threads, its kernels torch operations, and what stands in for CUDA's driver does
what it is told, of the addresses it is given."""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.host.torch import ops

from inagg_host.codec import Job
from inagg_host.codec.launches import DECODE, ENCODE, LARGEST, NAMES, Calls
from inagg_host.codec.ordered import load_word, store_word
from inagg_host.codec.staged import TIES
from inagg_host.codec.table import COLUMNS
from inagg_host.torch.gpu.floats import DTYPES, FLOATS
from inagg_host.torch.gpu.platform import Kernel, Kernels
from inagg_host.torch.gpu.stream import DeviceStream, Event

LOOK_S = 1e-4
"""How often a thread looks whether a word has come."""
THREADS, SHARED = 64, 48
"""What the kernels say that they need."""
INVALID_VALUE = 1
"""CUDA_ERROR_INVALID_VALUE."""
either_way = pytest.mark.parametrize("copied_bytes", [0, 1 << 30], ids=["encoded", "copied"])
"""On the device, or on the host."""

Arguments = dict[str, int]
_INT, _WORD = ctypes.c_uint, ctypes.c_uint64
WORD_CALL = ctypes.CFUNCTYPE(_INT, _WORD, _WORD, _INT, _INT)
LAUNCH_CALL = ctypes.CFUNCTYPE(_INT, _WORD, *[_INT] * 7, *[_WORD] * 3)
COPY_CALL = ctypes.CFUNCTYPE(_INT, *[_WORD] * 4)


class _HostEvent(Event):
    """A place in a `HostStream`."""

    def __init__(self, stream: HostStream) -> None:
        super().__init__(None, stream.device)
        self._stream, self._reached = stream, threading.Event()

    def reach(self) -> None:
        self._reached.set()

    def synchronize(self) -> None:
        self._reached.wait()
        if self._stream.error is not None:
            raise self._stream.error


class HostStream(DeviceStream):
    """A thread that does in order what it is given, as a stream does."""

    def __init__(self, handle: int = 0, room: int = 0) -> None:
        """``room``: how much may wait here; who gives it more waits, too. 0: for anything."""
        super().__init__(torch.device("cpu"))
        self.handle = handle
        self.error: BaseException | None = None
        """What was raised by something here; nothing is done after it, but events are reached."""
        self._given: queue.Queue[Callable[[], object] | None] = queue.Queue(room)
        self._thread = threading.Thread(target=self._run, name="inagg-stream", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (work := self._given.get()) is not None:
            try:
                if self.error is None or isinstance(getattr(work, "__self__", None), _HostEvent):
                    work()
            except BaseException as error:  # for whoever waits for an event
                self.error = error

    def do(self, launch: Callable[[], object]) -> None:
        self._given.put(launch)

    def wait_value(self, address: int, least: int = 1) -> None:
        def look() -> None:
            while load_word(address) < least:
                time.sleep(LOOK_S)

        self._given.put(look)

    def write(self, address: int, value: int = 1) -> None:
        self._given.put(lambda: store_word(address, value))

    def record_event(self) -> Event:
        event = _HostEvent(self)
        self._given.put(event.reach)
        return event

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def wait_event(self, event: Event) -> None:
        self._given.put(event.synchronize)

    def close(self) -> None:
        self._given.put(None)
        self._thread.join()

    @property
    def closed(self) -> bool:
        return not self._thread.is_alive()


def memory(address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """So many elements at an address."""
    size = count * dtype.itemsize
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8).view(dtype)


class CpuPlatform:
    """See above."""

    def __init__(self, device: torch.device, room: int = 0, one_queue: bool = False, copied_bytes: int = 0) -> None:
        """``room``: of the queues of its streams. ``one_queue``: they have one together, as CUDA's have with
        CUDA_DEVICE_MAX_CONNECTIONS=1: all is done in the order in which it is launched."""
        self.device, self._room, self._one_queue, self.copied_bytes = device, room, one_queue, copied_bytes
        self._handles = itertools.count(1)
        self._streams: dict[int, HostStream] = {}
        self._kernels: dict[int, tuple[np.dtype[np.void], Callable[[int, Arguments], None]]] = {}
        self.refused: str | None = None
        """The function that says `INVALID_VALUE` from now on."""
        self.launched: list[tuple[int, Arguments]] = []
        """Blocks and arguments, by name, of all kernels."""
        self.words: list[tuple[str, int, int]] = []
        """What waits for which words, and writes them: "wait" or "write", the address and the value."""
        self._functions: list[Any] = [
            WORD_CALL(self._wait), WORD_CALL(self._write), LAUNCH_CALL(self._launch), COPY_CALL(self._copy)
        ]  # fmt: skip
        self.calls = Calls(*(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._functions))

    # --- as `Platform` ---

    def can_encode(self) -> bool:
        return True

    def here(self) -> AbstractContextManager[None]:
        return nullcontext()

    def stream(self) -> HostStream:
        if self._one_queue and self._streams:
            return next(iter(self._streams.values()))
        stream = HostStream(next(self._handles), self._room)
        self._streams[stream.handle] = stream
        return stream

    def kernels(self, job: Job, mean: bool) -> Kernels:
        def kernel(arguments: np.dtype[np.void], run: Callable[[int, Arguments], None], programs: int) -> Kernel:
            handle = next(self._handles)
            self._kernels[handle] = arguments, run
            return Kernel(handle, programs, THREADS, SHARED)

        return Kernels(
            kernel(LARGEST, partial(_largest, job), 1),
            kernel(ENCODE, partial(_encode, job), ops.flag_bytes(job)),
            kernel(DECODE, partial(_decode, job, mean), ops.count_words(job)),
        )

    def check(self, failed: int) -> None:
        if failed != 0:
            raise RuntimeError(f"{NAMES[failed & 3]}: {failed >> 2}")

    # --- what is called by address ---

    def _wait(self, stream: int, address: int, least: int, flags: int) -> int:
        assert flags == 0
        if self.refused == NAMES[0]:
            return INVALID_VALUE
        self.words.append(("wait", address, least))
        self._streams[stream].wait_value(address, least)
        return 0

    def _write(self, stream: int, address: int, value: int, flags: int) -> int:
        assert flags == 0
        if self.refused == NAMES[1]:
            return INVALID_VALUE
        self.words.append(("write", address, value))
        self._streams[stream].write(address, value)
        return 0

    def _launch(
        self, function: int, x: int, y: int, z: int, threads: int, wide: int, high: int, shared: int, stream: int,
        pointers: int, extra: int,
    ) -> int:  # fmt: skip
        assert (y, z, threads, wide, high, shared, extra) == (1, 1, THREADS, 1, 1, SHARED, 0)
        if self.refused == NAMES[2] or x == 0:
            return INVALID_VALUE
        arguments, run = self._kernels[function]
        names = arguments.names or ()
        words = [ctypes.c_int64.from_address(at).value for at in memory(pointers, len(names) + 2, torch.int64).tolist()]
        assert words[-2:] == [0, 0]  # addresses of memory for use inside
        given = dict(zip(names, words, strict=False))
        self.launched.append((x, given))
        self._streams[stream].do(partial(run, x, given))
        return 0

    def _copy(self, to: int, source: int, size: int, stream: int) -> int:
        if self.refused == NAMES[3]:
            return INVALID_VALUE
        self._streams[stream].do(lambda: ctypes.memmove(to, source, size))
        return 0


class NoKernels(CpuPlatform):
    """As where Triton is installed, and what it needs is not."""

    def kernels(self, job: Job, mean: bool) -> Kernels:
        raise RuntimeError("Failed to find C compiler.")


# --- kernels: of blocks, and arguments by name ---


def _largest(job: Job, count: int, a: Arguments) -> None:
    values = memory(a["bits"], a["elements"], DTYPES[job.float_type])
    ops.largest(values, job.lanes, memory(a["out"], count, FLOATS[values.element_size()]))


def _encode(job: Job, count: int, a: Arguments) -> None:
    rows = a["row_at"] + count
    ops.encode(
        job, memory(a["values"], a["elements"], DTYPES[job.float_type]),
        memory(a["table"], rows * COLUMNS, torch.int32).view(rows, COLUMNS),
        memory(a["payloads"], rows * job.for_encode.payload_bytes, torch.uint8),
        memory(a["flags"], rows * ops.flag_bytes(job), torch.uint8), memory(a["ties"], 2 * TIES, torch.int64),
        memory(a["counted"], 1, torch.int32), a["row_at"], count, a["first"],
    )  # fmt: skip


def _decode(job: Job, mean: bool, count: int, a: Arguments) -> None:
    rows = a["row_at"] + count
    assert mean == (a["divisor"] != 1)
    ops.decode(
        job, memory(a["payloads"], rows * job.for_decode.payload_bytes, torch.uint8),
        memory(a["table"], rows * COLUMNS, torch.int32).view(rows, COLUMNS),
        memory(a["out"], a["elements"], DTYPES[job.float_type]),
        memory(a["counts"], rows * ops.count_words(job), torch.int32), a["row_at"], count, a["divisor"],
    )  # fmt: skip
