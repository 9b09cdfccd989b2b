"""What stands between an operation and the thread that brings its values: the feeder's side of `codec.staged`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from .bell import Bell
from .calls import Addresses
from .job import Job
from .ordered import load_word, store_word, swap_word
from .staged import (
    CODED,
    FAILED,
    LEFT,
    RUN,
    RUN_BYTES,
    SCALED,
    STAGED,
    WAITING,
    arriving_scale_address,
    staged_addresses,
)

if TYPE_CHECKING:
    from inagg_host.core.operation import Operation


class Codec:
    """What stands between an operation and the thread that brings its values: one for each operation."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake``: has the transport ask again; for any thread."""
        self._wake = wake
        self.record = np.zeros(1, STAGED)
        self.address: int = self.record.ctypes.data
        self.error: BaseException | None = None
        """Why there will be no codes."""

    def fields(self, kernels: Addresses) -> dict[str, int]:
        """What the operation's record is to say; ``kernels``: those of the CPU. On the transport's thread."""
        raise NotImplementedError

    def begin(self, operation: Operation) -> None:
        """It is in the engine. On the transport's thread, before the core calls any kernel."""

    def fail(self, error: BaseException) -> None:
        """There will be no more: the kernels say `RAISED` from now on."""
        self.error = error
        store_word(self.address + FAILED, 1)
        self._wake()

    def _publish(self, counter: int, count: int) -> None:
        store_word(self.address + counter, count)
        if swap_word(self.address + WAITING, 0):
            self._wake()


class Arriving(Codec):
    """Values that are on their way to the host's memory, where the kernels of the CPU find them."""

    def __init__(self, wake: Callable[[], None], wait: Callable[[], None]) -> None:
        """``wait``: returns when they are there."""
        super().__init__(wake)
        self._wait = wait

    def wait(self) -> None:
        """Wait until they are there; raises what went wrong."""
        self._wait()
        if self.error is not None:
            raise self.error

    def fields(self, kernels: Addresses) -> dict[str, int]:
        """As of the CPU, but scales, with which all begins, must wait for `arrive`."""
        self.record["scale"] = kernels.scale
        return {**kernels._asdict(), "scale": arriving_scale_address(), "staged": self.address}

    def arrive(self) -> None:
        """All values are there."""
        self._publish(SCALED, 1 << 62)


class Staging(Codec):
    """Values on a device."""

    def __init__(self, blocks: int, bell: Bell, wake: Callable[[], None]) -> None:
        """``bell``: rung when a chunk's scales are agreed on, and when the results of a run are there."""
        super().__init__(wake)
        self.blocks, self._bell = blocks, bell
        self.magnitudes = np.zeros(blocks, np.uint64)
        """As of `inagg_host.codec.largest`."""
        self.operation: Operation | None = None
        self.record["bell"], self.record["bad"] = bell.address, -1
        self.record["magnitudes"] = self.magnitudes.ctypes.data

    def fields(self, kernels: Addresses) -> dict[str, int]:
        """The kernels of this module; nothing is drafted."""
        return {**staged_addresses()._asdict(), "staged": self.address, "drafting": 0}

    def begin(self, operation: Operation) -> None:
        """Make room for what both threads tell each other of it."""
        job = operation.job
        self.run_blocks = run_blocks(job)
        self._told = np.zeros(operation.lacking.shape[1], np.int64)
        self._runs = np.zeros(-(-self.blocks // self.run_blocks), RUN)
        self._runs["left"] = self.run_blocks
        self._runs["left"][-1] = self.blocks - (self._runs.size - 1) * self.run_blocks
        record = self.record[0]
        record["needs"] = 1 if job.refined else 0  # `core.schedule.Phase`: REFINE or SCALE
        record["told"], record["run_blocks"] = self._told.ctypes.data, self.run_blocks
        record["runs"] = self._runs.ctypes.data
        self.operation = operation

    @property
    def runs(self) -> int:
        """How many there are."""
        return self._runs.size

    # --- on the feeder's thread ---

    def is_agreed(self, chunk: int) -> bool:
        """Whether a chunk may be encoded: its scales, and their refinements, are agreed on."""
        return bool(load_word(self._told.ctypes.data + 8 * chunk))

    def is_complete(self, run: int) -> bool:
        """Whether all results of a run are there, of which so all blocks were sent."""
        return not load_word(self._runs.ctypes.data + run * RUN_BYTES + LEFT)

    def place(self, run: int, codes: npt.NDArray[np.uint8], results: npt.NDArray[np.uint8]) -> None:
        """Where the codes and the results of a run are; before any of its codes are published."""
        self._runs["codes"][run], self._runs["results"][run] = codes.ctypes.data, results.ctypes.data

    def publish_scales(self, count: int) -> None:
        """So many blocks have their magnitudes."""
        self._publish(SCALED, count)

    def publish_codes(self, count: int, bad: int = -1) -> None:
        """So many blocks have their codes; but block ``bad`` has values beyond its scale."""
        if bad >= 0 and self.record["bad"][0] < 0:
            self.record["bad"] = bad
        self._publish(CODED, count)


SLOT_BYTES: Final = 2 << 20
"""Of the codes of a run, and of its results. To copy so much takes 80 us at 25 GB/s, ten times what it takes to begin a
copy."""
RUN_BLOCKS_MOST: Final = 4096


def run_blocks(job: Job) -> int:
    """Blocks of a run: as many as a slot has room for."""
    return min(SLOT_BYTES // max(job.for_encode.payload_bytes, job.for_decode.payload_bytes), RUN_BLOCKS_MOST)
