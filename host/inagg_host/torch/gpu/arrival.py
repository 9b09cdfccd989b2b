"""Where sums arrive: a stream waits for all that brings them, which is launched when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .stream import DeviceStream, Event


class Arrival:
    """Arrival of the sums of one CUDA tensor."""

    def __init__(self, stream: DeviceStream, callbacks: DeviceStream, alone: bool = True) -> None:
        """``stream``: what brings them. ``callbacks``: one where nothing is but waits for sums that have come.
        ``alone``: they come though no thread of the process can run Python, so that a stream may wait for them, and the
        host go on."""
        self.device, self.stream, self.alone, self._callbacks = stream.device, stream, alone, callbacks
        self._event: Event | None = None

    def come(self) -> Event:
        """All that brings the sums is in the stream now; where that is done. To be called once, by one thread."""
        self._event = self.stream.record_event()
        return self._event

    @property
    def coming(self) -> bool:
        """Whether a stream can wait for them: `come` was called."""
        return self._event is not None

    def wait(self) -> None:
        """Have what is launched on the current stream from now on wait for the sums. After `come`."""
        assert self._event is not None, "nothing to wait for yet"
        self._event.wait(torch.cuda.current_stream(self.device))

    @contextmanager
    def there(self) -> Iterator[None]:
        """Have streams of whoever is told of the sums in the block wait for these, and for none that come later."""
        with self._callbacks.current():
            self.wait()
            yield


def refuse_capture(device: torch.device) -> None:
    """Raise RuntimeError if a device's current stream is being captured: what the network does cannot be in a graph."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            refuse_capture_here()


def refuse_capture_here() -> None:
    """Raise as `refuse_capture` does, for the current device."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "inagg cannot be captured into a CUDA graph: its sums come from the network, through the host. Leave the "
            "all-reduce, and the wait for it, outside of torch.cuda.graph; with torch.compile, do not use "
            'mode="reduce-overhead" for what calls it'
        )
