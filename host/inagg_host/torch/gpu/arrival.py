"""Where sums arrive: the host waits until all that brings them is launched, and then a stream waits for that.

A stream could wait for a word in the host's memory instead, before anybody knows when the network will bring the sums,
and the host go on ("Stream Memory Operations" in the CUDA Driver API). It must not. As long as a stream waits so, a
copy from memory that is not pinned, the first launch of a kernel and cudaFree wait for it, and meanwhile no other
thread of the process launches anything (seen on an H100, driver 580): so neither does the one that is to bring the
sums, and all stands still for ever. Nor does it help to load all kernels at the start (CUDA_MODULE_LOADING=EAGER).
"""

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

    def wait(self) -> None:
        """What is launched on the current stream from now on waits for the sums. After `come`."""
        assert self._mark is not None, "nothing to wait for yet"
        with torch.cuda.stream(torch.cuda.current_stream(self.device)):
            self._mark.before_current()

    def there(self) -> bool:
        """Whether the sums are on the device."""
        return self._mark is not None and self._mark.done()


def refuse_capture(device: torch.device) -> None:
    """Raise RuntimeError if the current stream is being captured: what the network does cannot be in a graph."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "inagg cannot be captured into a CUDA graph: its sums come from the network, through the host. Leave the "
            "all-reduce, and the wait for it, outside of torch.cuda.graph; with torch.compile, do not use "
            'mode="reduce-overhead" for what calls it'
        )
