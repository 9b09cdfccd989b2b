"""An operation on its way between device and core, in steps that never wait (but for the values of a block that has a
tie, one in some thousand million lanes). `io.feeder` takes them.

An operation goes through in runs of blocks, each of which has a slot while it is under way: codes are on their way to
the network from it, and results from the network to it. There are only so many slots, so the memory is the same
whatever is submitted. Slots are had in the order of operations: an operation's scales are sent after all values of
those before it, which then have their slots. So none waits for one that is held by an operation behind it.

What the device reads and writes, and why it is there:

- a block is decoded after it was encoded, even in place: its result came from the network, to which its codes went
  after the feeder had seen the encoder done;
- a slot is given to another run when the feeder has seen its decoder done, and all of its codes were sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from inagg_host.codec.job import FRACTION_BITS
from inagg_host.codec.scales import largest_magnitudes
from inagg_host.codec.staging import Arriving, Codec, Staging
from inagg_host.core.schedule import Phase
from inagg_wire import codec, noise, payload, scale
from inagg_wire.scale import FloatType

from .device import BAD, LOOK_ELEMENTS, SHELF_BLOCKS, TIE, Decoded, Device, Encoded, Looked, Mark, Slot

if TYPE_CHECKING:
    from .feeder import Feeder


class Flow(ABC):
    """One operation on its way between device and core. Methods but `__init__` are called by the feeder."""

    def __init__(self, operand: Any, arrived: Callable[[Exception | None], None]) -> None:
        """``arrived`` is called once: all that makes the sums is in the device's *up* stream, or why it will not be. It
        must not wait."""
        self.operand, self._arrived = operand, arrived
        self.over = False
        """``arrived`` was called."""
        self.abandoned = False
        """The core has given it up, and touches its memory no more."""

    @property
    @abstractmethod
    def codec(self) -> Codec:
        """What the core has of it."""

    @abstractmethod
    def step(self, feeder: Feeder) -> bool:
        """Do what can be done; whether anything could."""

    @abstractmethod
    def is_quiet(self, feeder: Feeder) -> bool:
        """After the end: whether neither device nor core have anything more to do with its memory; gives slots back."""

    def end(self, error: Exception | None) -> None:
        """All is launched, or ``error``."""
        if not self.over:
            self.over = True
            self._arrived(error)


class Copied(Flow):
    """Values that are copied to the host, and encoded there."""

    def __init__(self, arriving: Arriving, copied: Mark, arrived: Callable[[Exception | None], None]) -> None:
        """``copied``: after which the values are there."""
        super().__init__(None, arrived)
        self._codec, self._copied = arriving, copied

    @property
    def codec(self) -> Codec:
        return self._codec

    def step(self, feeder: Feeder) -> bool:
        if not self._copied.done():
            return False
        self._codec.arrive()
        self.end(None)
        return True

    def is_quiet(self, feeder: Feeder) -> bool:
        return self._copied.done()


@dataclass(slots=True)
class _Run:
    """A run that has a slot."""

    slot: Slot
    decoder: Decoded | None = None


@dataclass(frozen=True, slots=True)
class _Encoding:
    """Blocks ``first`` to ``end`` - 1 of a run, on their way to the host."""

    mark: Encoded
    slot: Slot
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class _Look:
    """Largest magnitudes on their way."""

    mark: Looked
    shelf: int
    first: int
    count: int


class Coded(Flow):
    """Values that are encoded on the device."""

    def __init__(
        self, staging: Staging, operand: Any, lanes: int, float_type: FloatType,
        arrived: Callable[[Exception | None], None], counted: Callable[[int], None],
    ) -> None:  # fmt: skip
        """``lanes``: of a block. ``counted`` is told at the end how many codes of results named no level."""
        super().__init__(operand, arrived)
        self.staging, self._lanes, self._type, self._counted = staging, lanes, float_type, counted
        self._looked, self._looks = 0, deque[_Look]()
        self._encoded, self._encodings = 0, deque[_Encoding]()
        self._runs: dict[int, _Run] = {}
        self._decoded, self._invalid = 0, 0
        self._starts: list[int] = []

    @property
    def codec(self) -> Codec:
        return self.staging

    def step(self, feeder: Feeder) -> bool:
        busy = self._look(feeder) | self._see(feeder)
        if self.staging.operation is not None:  # it is in the engine
            busy |= self._encode(feeder) | self._publish(feeder) | self._decode(feeder) | self._free(feeder)
            if self._decoded == self.staging.runs:
                self.end(None)
                return True
        return busy

    def is_quiet(self, feeder: Feeder) -> bool:
        while self._looks and self._looks[0].mark.done():
            feeder.shelves.append(self._looks.popleft().shelf)
        while self._encodings and self._encodings[0].mark.done():
            self._encodings.popleft()
        self._free(feeder)
        if self._looks or self._encodings or any(run.decoder is not None for run in self._runs.values()):
            return False
        if not (self.abandoned or all(self.staging.is_complete(run) for run in self._runs)):
            return False  # the device has failed, and the core does not know it yet
        feeder.slots += [run.slot for run in self._runs.values()]
        self._runs.clear()
        self._counted(self._invalid)
        return True

    # --- scales ---

    def _look(self, feeder: Feeder) -> bool:
        busy, most = False, min(SHELF_BLOCKS, LOOK_ELEMENTS // self._lanes)
        while self._looked < self.staging.blocks and feeder.shelves:
            shelf, count = feeder.shelves.pop(), min(self.staging.blocks - self._looked, most)
            mark = feeder.device.look(self.operand, self._lanes, self._looked, count, shelf)
            self._looks.append(_Look(mark, shelf, self._looked, count))
            self._looked += count
            busy = True
        return busy

    def _see(self, feeder: Feeder) -> bool:
        busy = False
        while self._looks and self._looks[0].mark.done():
            look = self._looks.popleft()
            to = self.staging.magnitudes[look.first : look.first + look.count]
            largest_magnitudes(look.mark.found(), 1, FRACTION_BITS[self._type], to)
            feeder.shelves.append(look.shelf)
            self.staging.publish_scales(look.first + look.count)
            busy = True
        return busy

    # --- contributions ---

    def _encode(self, feeder: Feeder) -> bool:
        """The next blocks whose scales are agreed on, as far as their run goes, in one launch."""
        staging = self.staging
        operation, start = staging.operation, self._encoded
        assert operation is not None
        chunk, end = operation.chunk, start
        while end < staging.blocks and staging.is_agreed(end // chunk):
            end = min((end // chunk + 1) * chunk, staging.blocks)
        run = start // staging.run_blocks
        end = min(end, (run + 1) * staging.run_blocks)
        if end == start or not (run in self._runs or feeder.slots):
            return False
        if run not in self._runs:
            slot = feeder.slots.pop()
            self._runs[run] = _Run(slot)
            staging.place(run, slot.codes, slot.results)
        slot = self._runs[run].slot
        agreed, refinements = operation.bytes_of[1, start:end], operation.bytes_of[2, start:end]
        if not self._starts:
            self._starts = [operation.first_block + i.start for i in operation.items if i.phase is Phase.VALUES]
        blocks = np.arange(start, end)
        numbers = np.array(self._starts)[blocks // chunk] + blocks % chunk
        at = start - run * staging.run_blocks
        mark = feeder.device.encode(self.operand, operation.job, slot, at, start, agreed, refinements, numbers)
        self._encodings.append(_Encoding(mark, slot, start, end))
        self._encoded = end
        return True

    def _publish(self, feeder: Feeder) -> bool:
        busy = False
        while self._encodings and self._encodings[0].mark.done():
            encoding = self._encodings.popleft()
            flags, bad = encoding.mark.flags(), -1
            for i in np.flatnonzero(flags).tolist():
                if flags[i] & BAD:
                    bad = encoding.first + i
                    break
                assert flags[i] & TIE
                self._mend(feeder.device, encoding.slot, encoding.first + i)
            self.staging.publish_codes(encoding.end, bad)
            busy = True
        return busy

    def _mend(self, device: Device, slot: Slot, block: int) -> None:
        """Encode a block as the specification does, with as many noise words as it takes. That needs no compiling."""
        operation = self.staging.operation
        assert operation is not None
        job, agreed = operation.job, operation.bytes_of[:, block]
        key = noise.block_key(job.seed, job.rank, self._starts[block // operation.chunk] + block % operation.chunk)
        values, codes = device.fetch(self.operand, job, block), np.zeros(job.lanes, np.uint32)
        unit = scale.unit(job.format, job.workers, int(agreed[1]), int(agreed[2]))
        if unit is not None:
            codes[: values.size] = codec.encode(
                values, job.float_type, job.format, job.workers, unit,
                lambda word: noise.host_words(key, values.size, word),
            )  # fmt: skip
        size, at = job.for_encode.payload_bytes, block % self.staging.run_blocks
        slot.codes[at * size : (at + 1) * size] = np.frombuffer(payload.pack(job.format.up, codes), np.uint8)

    # --- results ---

    def _decode(self, feeder: Feeder) -> bool:
        """The runs whose results are all there; of a reduce-scatter, only this rank's piece has any."""
        staging, busy = self.staging, False
        operation = staging.operation
        assert operation is not None
        own_blocks = operation.fields["piece_blocks"]
        own = operation.fields["own_piece"] * own_blocks
        for number, run in list(self._runs.items()):
            if run.decoder is not None or not staging.is_complete(number):
                continue
            busy = True
            self._decoded += 1
            start = number * staging.run_blocks
            first, end = max(start, own), min(start + staging.run_blocks, own + own_blocks)
            if first >= end:
                feeder.slots.append(self._runs.pop(number).slot)
                continue
            agreed, refinements = operation.bytes_of[1, first:end], operation.bytes_of[2, first:end]
            run.decoder = feeder.device.decode(
                self.operand, operation.job, run.slot, first - start, first - own, agreed, refinements,
                operation.fields["divisor"],
            )  # fmt: skip
        return busy

    def _free(self, feeder: Feeder) -> bool:
        done = [(n, run.decoder) for n, run in self._runs.items() if run.decoder is not None and run.decoder.done()]
        for number, decoder in done:
            self._invalid += decoder.invalid()
            feeder.slots.append(self._runs.pop(number).slot)
        return bool(done)
