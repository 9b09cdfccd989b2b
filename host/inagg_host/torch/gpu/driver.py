"""The few functions of CUDA's driver that PyTorch does not have: streams of our own, which wait for words. See
"Stream Management" and "Stream Memory Operations" in the CUDA Driver API; pointers and streams are integers here.

All of them need the device's context to be the calling thread's: see `bind`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

LIBRARY = "libcuda.so.1"
NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: the legacy default stream, which most train on, does not wait for it, nor it for that."""
RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: what this thread does is no part of what another one captures into a graph."""

NOT_READY = 600
"""CUDA_ERROR_NOT_READY: what a stream has to do is not done."""
NOT_SUPPORTED = 801
"""CUDA_ERROR_NOT_SUPPORTED: this device, or its driver, cannot do that."""


class DriverError(RuntimeError):
    """A function of the driver has failed. ``code``: the CUresult."""

    def __init__(self, name: str, code: int) -> None:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        hint = ""
        if code == NOT_SUPPORTED:
            hint = "; where streams cannot wait for words in memory (WSL 2, some virtual GPUs), give tensors on the CPU"
        super().__init__(f"{name}: {(text.value or b'unknown error').decode()} ({code}){hint}")
        self.code = code


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise RuntimeError(
            f"CUDA's driver is not here ({error}), which CUDA tensors need: install NVIDIA's driver on the host, and "
            "start a container with --gpus all; on AMD's GPUs (ROCm) give inagg tensors on the CPU"
        ) from error


def _function(name: str) -> Any:
    try:
        return getattr(_driver(), name)
    except AttributeError as error:
        raise RuntimeError(
            f"CUDA's driver is too old: {LIBRARY} has no {name}, which CUDA tensors need. Install NVIDIA's driver 515 "
            "(CUDA 11.7) or later"
        ) from error


def _call(name: str, *arguments: Any) -> None:
    code = int(_function(name)(*arguments))
    if code != 0:
        raise DriverError(name, code)


def address(name: str) -> int:
    """Return the address of a function, for compiled code. Raises RuntimeError if there is none."""
    return ctypes.cast(_function(name), ctypes.c_void_p).value or 0


@cache
def _context(ordinal: int) -> int:
    """The primary context of a device, which PyTorch uses."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(device), ordinal)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context.value or 0


_thread = threading.local()


def is_bound() -> bool:
    """Whether the calling thread uses a device: `bind` was called."""
    return getattr(_thread, "bound", False)


def bind(ordinal: int) -> None:
    """Have the calling thread use a device, if it has used none: PyTorch puts that off until it launches something."""
    if is_bound():
        return
    current = ctypes.c_void_p()
    _call("cuCtxGetCurrent", ctypes.byref(current))
    if not current.value:
        _call("cuCtxSetCurrent", ctypes.c_void_p(_context(ordinal)))
    _thread.bound = True


def make_stream() -> int:
    """A stream of the highest priority that nobody else has. PyTorch's come from a pool of 32, in turn: what brings
    sums might come after what a user computes on the same one."""
    least, greatest, stream = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    _call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    _call("cuStreamCreateWithPriority", ctypes.byref(stream), ctypes.c_uint(NON_BLOCKING), greatest)
    return stream.value or 0


def check(stream: int) -> None:
    """Raise what went wrong with a stream, or with all of its device. Does not wait."""
    code = int(_function("cuStreamQuery")(ctypes.c_void_p(stream)))
    if code not in (0, NOT_READY):
        raise DriverError("cuStreamQuery", code)


def wait_value(stream: int, address: int) -> None:
    """Have what comes next in a stream wait until the uint32 at an address, in pinned memory, is 1 or more."""
    _call("cuStreamWaitValue32_v2", ctypes.c_void_p(stream), ctypes.c_uint64(address), ctypes.c_uint32(1), 0)


@contextmanager
def out_of_graphs() -> Iterator[None]:
    """The calling thread may wait for the device in the block while another one captures a graph, which forbids that to
    all threads else."""
    mode = ctypes.c_int(RELAXED)
    _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
