"""Where sums arrive: a stream waits for all that brings them, which is launched when they are asked for."""

from __future__ import annotations

import torch

from .lane import Lane, Mark


class Arrival:
    """Of the sums of one CUDA tensor."""

    def __init__(self, lane: Lane) -> None:
        """``lane``: what brings them."""
        assert lane.stream is not None
        self.device, self.stream = lane.device, lane.stream
        self._lane = lane
        self._mark: Mark | None = None

    def come(self) -> None:
        """All that brings the sums is in the lane now. To be called once, by one thread."""
        self._mark = self._lane.mark()

    @property
    def coming(self) -> bool:
        """Whether a stream can wait for them: `come` was called."""
        return self._mark is not None

    def wait(self) -> None:
        """What is launched on the current stream from now on waits for the sums. After `come`."""
        assert self._mark is not None, "nothing to wait for yet"
        self._mark.before(torch.cuda.current_stream(self.device))


def refuse_capture(device: torch.device) -> None:
    """Raise RuntimeError if the current stream is being captured: what the network does cannot be in a graph."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "inagg cannot be captured into a CUDA graph: its sums come from the network, through the host. Leave the "
            "all-reduce, and the wait for it, outside of torch.cuda.graph; with torch.compile, do not use "
            'mode="reduce-overhead" for what calls it'
        )
