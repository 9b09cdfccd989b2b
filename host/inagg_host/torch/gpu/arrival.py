"""Where sums arrive: a stream brings them, and other streams wait for that, as they would for NCCL.

A stream can wait for what another one was given, by an event. But sums are to be waited for before anybody knows when
the network will have brought them, and so before what brings them to the device is launched. So the stream waits for a
word in the host's memory, which the stream that brings them writes.

CUDA does not know of such a wait ("Stream Memory Operations" warns of that). What is to bring the sums must not queue
behind it: so it has streams of its own, of the highest priority. With CUDA_DEVICE_MAX_CONNECTIONS=1 all streams share a
queue; there, and where the driver cannot do it, and with INAGG_BLOCKING_WAIT=1, the host waits, and then the stream.
"""

from __future__ import annotations

import logging
import os
import threading

import torch

from . import driver
from .lane import Lane, Mark, on_device

log = logging.getLogger("inagg")

WORDS = 4096
"""Sums of one lane that may be on their way at a time. More: the host waits for them."""


class Words:
    """Words in the host's memory that one lane writes. Each counts up, and goes from one tensor to the next: the lane
    writes what it was to write for the one before it writes for the other. So who waits for a number sees that one or
    a later one."""

    def __init__(self, lane: Lane) -> None:
        self._lock, self._values = threading.Lock(), [0] * WORDS
        self._free = list(range(WORDS)) if lane.stream is not None and self._can_wait(lane.device) else []

    def _can_wait(self, device: torch.device) -> bool:
        if os.environ.get("INAGG_BLOCKING_WAIT", "0") != "0" or os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
            return False
        self._memory = torch.zeros(WORDS, dtype=torch.int32, pin_memory=True)
        with on_device(device):
            self._address = driver.device_address(self._memory.data_ptr())
            stream = driver.make_stream()
            try:
                driver.write_word(stream, self._address, 0)
                driver.wait_for_word(stream, self._address, 0)
            except driver.DriverError as error:
                if error.code != driver.NOT_SUPPORTED:
                    raise
                log.warning("streams cannot wait for sums here, so the host does: %s", error)
                return False
        return True

    def take(self) -> tuple[int, int, int] | None:
        """The number of a word, its address on the device, and what will be written there; None: there is none."""
        with self._lock:
            if not self._free:
                return None
            number = self._free.pop()
            self._values[number] = (self._values[number] + 1) & 0xFFFFFFFF
            return number, self._address + 4 * number, self._values[number]

    def give_back(self, number: int) -> None:
        """The lane has been given it to write."""
        with self._lock:
            self._free.append(number)


class Arrival:
    """Of the sums of one CUDA tensor."""

    def __init__(self, lane: Lane, words: Words) -> None:
        """``lane``: what brings them, and whose ``words`` are."""
        assert lane.stream is not None
        self.device, self.stream = lane.device, lane.stream
        self._lane, self._words, self._word = lane, words, words.take()
        self._mark: Mark | None = None

    @property
    def blocks_host(self) -> bool:
        """Whether a stream can wait only when all that brings the sums was launched."""
        return self._word is None

    def come(self) -> None:
        """All that brings the sums is in the lane now. To be called once, by one thread."""
        if self._word is not None:
            number, address, value = self._word
            with on_device(self.device):
                driver.write_word(self.stream.cuda_stream, address, value)
            self._words.give_back(number)
        self._mark = self._lane.mark()

    def wait(self) -> None:
        """What is launched on the current stream from now on waits for the sums."""
        refuse_capture(self.device)
        current = torch.cuda.current_stream(self.device)
        if self._mark is not None:
            with torch.cuda.stream(current):
                self._mark.before_current()
            return
        assert self._word is not None, "nothing to wait for yet"
        with on_device(self.device):
            driver.wait_for_word(current.cuda_stream, *self._word[1:])

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
