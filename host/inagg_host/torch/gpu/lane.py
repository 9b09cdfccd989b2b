"""A stream of a device, and what is done on it; for the CPU, nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from . import driver

_Event: Callable[..., torch.cuda.Event] = torch.cuda.Event  # torch types the classes, but not their constructors
_ExternalStream: Callable[..., torch.cuda.Stream] = torch.cuda.ExternalStream


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Functions of the driver that are called in the block find the device's context."""
    with torch.cuda.device(device):
        driver.bind(torch.cuda.current_device())
        yield


_idle: defaultdict[torch.device, list[tuple[int, torch.cuda.Stream]]] = defaultdict(list)
"""Streams that no lane has any more."""


class Mark:
    """A place in a lane."""

    def __init__(self, event: torch.cuda.Event | None, device: torch.device) -> None:
        self._event, self._device = event, device

    def wait(self) -> None:
        """Wait until the device has come there. Raises what went wrong on it."""
        if self._event is not None:
            # A thread that has used no device would begin to use the first one, and take memory there.
            with on_device(self._device), driver.out_of_graphs():
                self._event.synchronize()

    def before(self, stream: torch.cuda.Stream) -> None:
        """What is launched on a stream from now on waits for it."""
        if self._event is not None:
            stream.wait_event(self._event)


class Lane:
    """A stream of our own. It is never destroyed, as PyTorch's are not, but another lane's after `close`."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream, self.handle = device, None, 0
        self._closed = False
        if device.type == "cuda":
            with suppress(IndexError):  # not asked before: another thread may take the last one meanwhile
                self.handle, self.stream = _idle[device].pop()
                return
            with on_device(device):
                self.handle = driver.make_stream()
                self.stream = _ExternalStream(self.handle, device=device)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """What is launched in the block runs here. For any thread."""
        if self.stream is None:
            yield
        else:  # on the device also when the block ends, which else begins to use the first one, as in `Mark.wait`
            with on_device(self.device), torch.cuda.stream(self.stream):
                yield

    def do(self, launch: Callable[[], object]) -> None:
        """What ``launch`` launches runs here. This and `wait` need the thread to be `on_device`."""
        if self.stream is None:
            launch()
            return
        before = torch.cuda.current_stream(self.device)  # torch.cuda.stream does the same, in five times the time
        torch.cuda.set_stream(self.stream)
        try:
            launch()
        finally:
            torch.cuda.set_stream(before)

    def wait(self, address: int) -> None:
        """What comes next waits until the word (int64) at an address, of `host`, is 1 or more."""
        driver.wait_for_word(self.handle, address)

    def mark(self) -> Mark:
        """What is here now."""
        if self.stream is None:
            return Mark(None, self.device)
        event = _Event(blocking=True)
        event.record(self.stream)
        return Mark(event, self.device)

    def check(self) -> None:
        """Raise what went wrong on the device, if that is known by now. For any thread, which does not wait."""
        if self.stream is not None:
            with on_device(self.device), driver.out_of_graphs():
                driver.check(self.handle)

    def after(self, mark: Mark) -> None:
        """What is launched from now on waits for ``mark``."""
        if self.stream is not None:
            mark.before(self.stream)

    def host(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Memory of the host that the device reaches."""
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=self.stream is not None)

    def close(self) -> None:
        """Nothing more comes. No error if called twice."""
        if self.stream is not None and not self._closed:
            self._closed = True
            _idle[self.device].append((self.handle, self.stream))


class Computed(Mark):
    """What is on the current stream of a device when this is made, or moved. What was told before to wait for it has
    nothing to do with that."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(_Event() if device.type == "cuda" else None, device)
        self.move()

    def move(self) -> None:
        """From now on it is what is there now."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))
