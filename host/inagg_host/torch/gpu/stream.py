"""Streams of a device, and events in them, named as PyTorch's are; for the CPU, nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import torch
from torch import Tensor

from . import driver

_Event: Callable[..., torch.cuda.Event] = torch.cuda.Event  # torch types the classes, but not their constructors
_ExternalStream: Callable[..., torch.cuda.Stream] = torch.cuda.ExternalStream


def on_device(device: torch.device) -> AbstractContextManager[None]:
    """Functions of the driver that are called in the block find the device's context."""
    # A thread that has used the device, and no other since, is there: that is so nearly always, and known in a tenth
    # of the time.
    return nullcontext() if driver.is_bound() and torch.cuda.current_device() == device.index else _entered(device)


@contextmanager
def _entered(device: torch.device) -> Iterator[None]:
    with torch.cuda.device(device):
        driver.bind(torch.cuda.current_device())
        yield


_idle: defaultdict[torch.device, list[tuple[int, torch.cuda.Stream]]] = defaultdict(list)
"""Streams that no `DeviceStream` has any more."""


class Event:
    """A place in a stream."""

    def __init__(self, event: torch.cuda.Event | None, device: torch.device) -> None:
        self._event, self._device = event, device

    def synchronize(self) -> None:
        """Wait until the device has come there. Raises what went wrong on it."""
        if self._event is not None:
            # A thread that has used no device would begin to use the first one, and take memory there.
            with on_device(self._device), driver.out_of_graphs():
                self._event.synchronize()

    def wait(self, stream: torch.cuda.Stream) -> None:
        """Have what is launched on a stream from now on wait for it."""
        if self._event is not None:
            stream.wait_event(self._event)


class DeviceStream:
    """A stream of our own. It is never destroyed, as PyTorch's are not, but another one's after `close`."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.handle = device, 0
        self.external: torch.cuda.Stream | None = None
        """PyTorch's object of it; None: on the CPU there is none."""
        self._closed = False
        if device.type == "cuda":
            with suppress(IndexError):  # not asked before: another thread may take the last one meanwhile
                self.handle, self.external = _idle[device].pop()
                return
            with on_device(device):
                self.handle = driver.make_stream()
                self.external = _ExternalStream(self.handle, device=device)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Have what is launched in the block run here. For any thread."""
        if self.external is None:
            yield
        else:  # on the device also when the block ends, which else begins to use the first one, as in `Event`
            with on_device(self.device), torch.cuda.stream(self.external):
                yield

    def do(self, launch: Callable[[], object]) -> None:
        """Have what ``launch`` launches run here. This and `wait_value` need the thread to be `on_device`."""
        if self.external is None:
            launch()
            return
        before = torch.cuda.current_stream(self.device)  # torch.cuda.stream does the same, in five times the time
        torch.cuda.set_stream(self.external)
        try:
            launch()
        finally:
            torch.cuda.set_stream(before)

    def wait_value(self, address: int) -> None:
        """Have what comes next wait until the word (int64) at an address, of `pinned`, is 1 or more."""
        driver.wait_value(self.handle, address)

    def record_event(self) -> Event:
        """Where it is now."""
        if self.external is None:
            return Event(None, self.device)
        event = _Event(blocking=True)
        event.record(self.external)
        return Event(event, self.device)

    def wait_event(self, event: Event) -> None:
        """Have what is launched from now on wait for ``event``."""
        if self.external is not None:
            event.wait(self.external)

    def check(self) -> None:
        """Raise what went wrong on the device, if that is known by now. For any thread, which does not wait."""
        if self.external is not None:
            with on_device(self.device), driver.out_of_graphs():
                driver.check(self.handle)

    def pinned(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Memory of the host that the device reaches."""
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=self.external is not None)

    def close(self) -> None:
        """Nothing more comes. No error if called twice."""
        if self.external is not None and not self._closed:
            self._closed = True
            _idle[self.device].append((self.handle, self.external))


class Computed(Event):
    """Where the current stream of a device is when this is made, or recorded again. What was told before to wait for it
    has nothing to do with that."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(_Event() if device.type == "cuda" else None, device)
        self.record()

    def record(self) -> None:
        """From now on it is where that is now."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))
