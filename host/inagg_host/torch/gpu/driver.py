"""The few functions of CUDA's driver that PyTorch does not have: streams of our own, words in the host's memory that
streams write and wait for, and calls from a stream. See "Stream Memory Operations", "Stream Management" and "Execution
Control" in the CUDA Driver API; pointers, streams and device addresses are integers here.

All of them need the device's context to be the calling thread's: see `bind`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

LIBRARY = "libcuda.so.1"
NOT_SUPPORTED = 801
"""CUDA_ERROR_NOT_SUPPORTED."""
NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: the legacy default stream, which most train on, does not wait for it, nor it for that."""
AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ: until (int32)(word - value) >= 0."""
RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: what this thread does is no part of what another one captures into a graph."""


class DriverError(RuntimeError):
    """A function of the driver has failed. ``code``: the CUresult."""

    def __init__(self, name: str, code: int) -> None:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        super().__init__(f"{name}: {(text.value or b'unknown error').decode()} ({code})")
        self.code = code


@cache
def _driver() -> Any:
    return ctypes.CDLL(LIBRARY)


def _call(name: str, *arguments: Any) -> None:
    code = int(getattr(_driver(), name)(*arguments))
    if code != 0:
        raise DriverError(name, code)


@cache
def _context(ordinal: int) -> int:
    """The primary context of a device, which PyTorch uses."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(device), ordinal)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context.value or 0


def bind(ordinal: int) -> None:
    """Have the calling thread use a device, if it has used none: PyTorch puts that off until it launches something."""
    current = ctypes.c_void_p()
    _call("cuCtxGetCurrent", ctypes.byref(current))
    if not current.value:
        _call("cuCtxSetCurrent", ctypes.c_void_p(_context(ordinal)))


def make_stream() -> int:
    """A stream of the highest priority that nobody else has. PyTorch's come from a pool of 32, in turn: one that a user
    has made to wait for sums might be the one that is to bring them."""
    least, greatest, stream = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    _call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    _call("cuStreamCreateWithPriority", ctypes.byref(stream), ctypes.c_uint(NON_BLOCKING), greatest)
    return stream.value or 0


def device_address(host_address: int) -> int:
    """Of pinned memory of the host."""
    found = ctypes.c_uint64()
    _call("cuMemHostGetDevicePointer_v2", ctypes.byref(found), ctypes.c_void_p(host_address), ctypes.c_uint(0))
    return found.value


def write_word(stream: int, address: int, value: int) -> None:
    """Have a stream write 32 bits, after all that it was given before and what that has written."""
    _call(
        "cuStreamWriteValue32_v2", ctypes.c_void_p(stream), ctypes.c_uint64(address), ctypes.c_uint32(value),
        ctypes.c_uint(0),
    )  # fmt: skip


def wait_for_word(stream: int, address: int, value: int) -> None:
    """Have a stream wait until 32 bits are ``value`` or later, as numbers that wrap."""
    _call(
        "cuStreamWaitValue32_v2", ctypes.c_void_p(stream), ctypes.c_uint64(address), ctypes.c_uint32(value),
        ctypes.c_uint(AT_LEAST),
    )  # fmt: skip


def call_from_stream(stream: int, function: int, argument: int) -> None:
    """Have a thread of the driver call ``void function(argument)`` when a stream has come there. It must call nothing
    of CUDA, and not wait."""
    _call("cuLaunchHostFunc", ctypes.c_void_p(stream), ctypes.c_void_p(function), ctypes.c_void_p(argument))


def stay_out_of_graphs() -> None:
    """The calling thread may use the device while another thread captures a graph."""
    mode = ctypes.c_int(RELAXED)
    _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
