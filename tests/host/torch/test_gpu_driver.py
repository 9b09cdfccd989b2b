"""CUDA's driver as it is called: arguments of the right widths, contexts, and its errors in sentences. Without a GPU, a
stand-in for its library notes the calls."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inagg_host.torch.gpu import driver

CONTEXT, STREAM = 0x7F0000001000, 0x7F0000002000


class Library:
    """Functions of the driver by name: each notes its arguments, and returns the code that it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Any]]] = []
        self.codes: dict[str, int] = {}
        self.current = 0
        self.absent: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name in self.absent:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            values = [getattr(a, "value", a) for a in arguments]
            self.calls.append((name, values))
            self._fill(name, arguments)
            return self.codes.get(name, 0)

        return call

    def _fill(self, name: str, arguments: tuple[Any, ...]) -> None:
        """What the function returns through pointers."""
        out: Any = getattr(arguments[0], "_obj", None)
        match name:
            case "cuGetErrorString":
                arguments[1]._obj.value = b"operation not supported"
            case "cuCtxGetCurrent":
                out.value = self.current
            case "cuDevicePrimaryCtxRetain":
                out.value = CONTEXT
            case "cuCtxGetStreamPriorityRange":
                out.value, arguments[1]._obj.value = 0, -5
            case "cuStreamCreateWithPriority":
                out.value = STREAM
            case "cuThreadExchangeStreamCaptureMode":
                out.value = {driver.RELAXED: 0, 0: driver.RELAXED}[out.value]

    def called(self, name: str) -> list[list[Any]]:
        return [arguments for called, arguments in self.calls if called == name]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    library = Library()
    monkeypatch.setattr(driver, "_driver", lambda: library)
    monkeypatch.setattr(driver, "_thread", threading.local())
    driver._context.cache_clear()
    yield library
    driver._context.cache_clear()


def test_a_thread_that_has_used_no_device_gets_its_context_once(library: Library) -> None:
    driver.bind(1)
    driver.bind(1)
    assert driver.is_bound()
    assert library.called("cuDeviceGet")[0][1] == 1
    assert library.called("cuCtxSetCurrent") == [[CONTEXT]]


def test_a_context_that_the_thread_has_is_left_to_it(library: Library) -> None:
    library.current = CONTEXT
    driver.bind(0)
    assert not library.called("cuCtxSetCurrent")


def test_a_stream_is_of_the_highest_priority_and_does_not_wait_for_the_default_one(library: Library) -> None:
    assert driver.make_stream() == STREAM
    ((_, flags, priority),) = library.called("cuStreamCreateWithPriority")
    assert (flags, priority) == (driver.NON_BLOCKING, -5)


def test_a_stream_waits_for_a_word_at_an_address_of_64_bits(library: Library) -> None:
    driver.wait_value(STREAM, 0x7FFF_FFFF_FFF8)
    assert library.called("cuStreamWaitValue32_v2") == [[STREAM, 0x7FFF_FFFF_FFF8, 1, 0]]


def test_a_busy_stream_is_well_and_a_failed_one_raises(library: Library) -> None:
    library.codes["cuStreamQuery"] = driver.NOT_READY
    driver.check(STREAM)
    library.codes["cuStreamQuery"] = 700
    with pytest.raises(driver.DriverError, match=r"^cuStreamQuery: operation not supported \(700\)$") as caught:
        driver.check(STREAM)
    assert caught.value.code == 700


def test_the_capture_mode_of_the_thread_is_put_back(library: Library) -> None:
    with pytest.raises(KeyError), driver.out_of_graphs():
        raise KeyError
    assert len(library.called("cuThreadExchangeStreamCaptureMode")) == 2


def test_where_streams_cannot_wait_for_words_it_says_what_to_do(library: Library) -> None:
    library.codes["cuStreamWaitValue32_v2"] = driver.NOT_SUPPORTED
    with pytest.raises(driver.DriverError, match=r"WSL 2, some virtual GPUs.*give tensors on the CPU"):
        driver.wait_value(STREAM, 8)


def test_a_driver_that_is_too_old_is_named(library: Library) -> None:
    library.absent.add("cuStreamWaitValue32_v2")
    with pytest.raises(RuntimeError, match=r"too old: libcuda\.so\.1 has no cuStreamWaitValue32_v2"):
        driver.wait_value(STREAM, 8)


def test_a_machine_without_the_driver_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libcuda-of-no-machine.so.1")
    with pytest.raises(RuntimeError, match="install NVIDIA's driver on the host, and start a container with --gpus"):
        driver._driver.__wrapped__()


def test_compiled_code_gets_the_address_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = ctypes.CDLL(None)
    monkeypatch.setattr(driver, "_driver", lambda: libc)
    assert driver.address("getpid") == ctypes.cast(libc.getpid, ctypes.c_void_p).value
