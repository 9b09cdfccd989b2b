"""A stream of a device, and what is done on it; for the CPU, where all is done at once, nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from inagg_host.codec.bell import Bell, ring_address

from . import driver

_Event: Callable[..., torch.cuda.Event] = torch.cuda.Event  # torch types the classes, but not their constructors
_query: Callable[[torch.cuda.Event], bool] = torch.cuda.Event.query
_ExternalStream: Callable[..., torch.cuda.Stream] = torch.cuda.ExternalStream


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Functions of the driver that are called in the block find the device's context."""
    with torch.cuda.device(device):
        driver.bind(torch.cuda.current_device())
        yield


class Mark:
    """A place in a lane."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self._event = event

    def done(self) -> bool:
        """Whether the device has come there. Raises what went wrong on the device."""
        return self._event is None or bool(_query(self._event))

    def wait(self) -> None:
        """Wait until it has."""
        if self._event is not None:
            self._event.synchronize()

    def before_current(self) -> None:
        """What is launched on the current stream from now on waits for it."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)


class Lane:
    """A stream of our own. It is never destroyed, as PyTorch's are not."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, None
        if device.type == "cuda":
            with on_device(device):
                self.stream = _ExternalStream(driver.make_stream(), device=device)

    def __call__(self) -> AbstractContextManager[Any]:
        """What is launched in the block runs here."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def mark(self, bell: Bell | None = None) -> Mark:
        """What is here now. ``bell`` is rung when the device has come to it."""
        if self.stream is None:
            if bell is not None:
                bell.ring()
            return Mark(None)
        event = _Event(blocking=True)
        event.record(self.stream)
        if bell is not None:
            with on_device(self.device):
                driver.call_from_stream(self.stream.cuda_stream, ring_address(), bell.address)
        return Mark(event)

    def after(self, mark: Mark) -> None:
        """What is launched from now on waits for ``mark``."""
        with self():
            mark.before_current()

    def keep(self, *tensors: Tensor) -> None:
        """Do not let the allocator give their memory away before what is here has used it."""
        if self.stream is not None:
            for tensor in tensors:
                tensor.record_stream(self.stream)

    def host(self, *shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Memory of the host that copies reach."""
        return torch.empty(shape, dtype=dtype, pin_memory=self.stream is not None)


def computed(device: torch.device) -> Mark:
    """What is on the current stream of a device now."""
    return Mark(torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None)
