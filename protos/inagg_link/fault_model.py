"""A bad network, on purpose: what happens to datagrams, seeded.

`FaultModel` is sans-IO: a batch and the time go in, batches and the times at which they arrive come out. A
simulator uses it directly; `fault_link` puts one in front of each direction of a link.

The fate of a datagram depends on the seed and on how many datagrams went before it, not on how they were
batched. Randomness is the raw 64-bit output of PCG64, which NumPy keeps stable over its versions (NEP 19), so
a printed seed repeats a run anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inagg_link.base import Batch, split
from inagg_link.faults import Faults
from inagg_link.port import CORRUPTED, DUPLICATED, LOST, MASKS_AHEAD, REORDERED, Words

_RAW_BITS = 63  # PCG64 gives 64; a probability of 1 must be representable as a threshold
_BITS = np.array([LOST, CORRUPTED, DUPLICATED, REORDERED], np.uint8)  # in the order of the draws of a datagram


def _uniform(generator: np.random.PCG64, count: int) -> NDArray[np.float64]:
    """`count` floats in [0, 1), from the upper 53 bits of as many raw draws."""
    return (generator.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(slots=True)
class FaultCounters:
    """Datagrams. `entered + duplicated == left + dropped + discarded` always."""

    entered: int = 0
    left: int = 0
    """handed on, now or at a later time"""
    dropped: int = 0
    corrupted: int = 0
    discarded: int = 0
    """corrupted ones that the checksum caught"""
    duplicated: int = 0
    reordered: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A batch that arrives at `time_s`. If that is later than it went in, the batch has memory of its own."""

    time_s: float
    batch: Batch


class FaultModel:
    """Applies `Faults` to a stream of batches. The same seed and the same datagrams give the same faults."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.faults = faults
        self.seed = seed
        self._counters = FaultCounters()
        # One generator per purpose: how often one of them is asked then changes nothing for the others.
        masks, bits, copies, holds, jitter = np.random.SeedSequence(seed).spawn(5)
        self._masks = np.random.PCG64(masks)
        self._bits = np.random.PCG64(bits)
        self._copies = np.random.PCG64(copies)
        self._holds = np.random.PCG64(holds)
        self._jitter = np.random.PCG64(jitter)
        probabilities = (faults.drop, faults.corrupt, faults.duplicate, faults.reorder)
        self._thresholds = np.array([round(p * 2**_RAW_BITS) for p in probabilities], np.uint64)
        self._idle = not any(probabilities)
        # Fault masks, of which those before `_at` have come true.
        self._ahead: NDArray[np.uint8] = np.zeros(MASKS_AHEAD, np.uint8)
        self._at: Words = np.array([MASKS_AHEAD], np.int64)
        self._counted = MASKS_AHEAD  # up to where they are in the counters

    def __repr__(self) -> str:
        return f"FaultModel({self.faults}, seed={self.seed})"

    @property
    def counters(self) -> FaultCounters:
        """The model's own, live counters, brought up to date. Copy them to keep them."""
        self._count_losses()
        return self._counters

    def apply(self, batch: Batch, now_s: float) -> list[Arrival]:
        """Arrivals of a batch that enters at `now_s`, not in the order of their times.

        Where nothing happens to a batch it is handed on as it is, a view if it was one.
        """
        count = len(batch)
        self._counters.entered += count
        base_s = now_s + self.faults.delay_s
        if self.faults.jitter_s:
            base_s += self.faults.jitter_s * float(_uniform(self._jitter, 1)[0])
        if not self._idle:
            masks = self._next(count)
            if masks.any():
                return self._disturb(batch, masks, base_s)
        self._counters.left += count
        return [Arrival(base_s, batch if base_s <= now_s else batch.copy())]

    # --- masks: the bits of `inagg_link.port`, one byte for each datagram ---

    def _draw(self, count: int) -> NDArray[np.uint8]:
        """The masks of ``count`` datagrams after those that were drawn."""
        raw = self._masks.random_raw(count * len(_BITS)).reshape(count, len(_BITS))
        masks = np.zeros(count, np.uint8)
        for draws, bit, threshold in zip(raw.T, _BITS, self._thresholds, strict=True):
            if threshold:  # most models have one kind of fault: the others would take three times as long as it
                masks |= bit * ((draws >> np.uint64(64 - _RAW_BITS)) < threshold)
        return masks

    def _next(self, count: int) -> NDArray[np.uint8]:
        """The masks of the next ``count`` datagrams, which `apply` counts."""
        self._count_losses()
        at = int(self._at[0])
        if at + count > MASKS_AHEAD:
            return np.concatenate([self._use(MASKS_AHEAD - at), self._draw(count - (MASKS_AHEAD - at))])
        return self._use(count)

    def _use(self, count: int) -> NDArray[np.uint8]:
        self._at += count
        self._counted += count
        return self._ahead[self._counted - count : self._counted].copy()

    def lend(self, ahead: NDArray[np.uint8], at: Words) -> None:
        """Keep the masks that are drawn ahead in ``ahead``, uint8, of `MASKS_AHEAD`, and the place of the next one in
        ``at``, int64, (1,): there a compiled loop takes them."""
        ahead[:], at[:] = self._ahead, self._at
        self._ahead, self._at = ahead, at

    def draw_ahead(self) -> None:
        """Have half of `MASKS_AHEAD` ready, or more."""
        self._count_losses()
        at = int(self._at[0])
        if at < MASKS_AHEAD // 2:
            return
        self._ahead[: MASKS_AHEAD - at] = self._ahead[at:]
        self._ahead[MASKS_AHEAD - at :] = self._draw(at)
        self._at[0] = self._counted = 0

    def _count_losses(self) -> None:
        """Count what a compiled loop has done, which knows losses only."""
        masks, c = self._ahead[self._counted : int(self._at[0])], self._counters
        if masks.size:
            dropped, corrupted = int((masks & LOST).sum()), int((masks == CORRUPTED).sum())
            c.entered += masks.size
            c.dropped += dropped
            c.corrupted += corrupted
            c.discarded += corrupted
            c.left += masks.size - dropped - corrupted
            self._counted = int(self._at[0])

    @property
    def losses_only(self) -> bool:
        """Whether a datagram is lost or arrives as it is, in its place and at once."""
        f = self.faults
        return not (f.duplicate or f.reorder or f.delay_s or f.jitter_s or (f.corrupt and not f.checksum))

    def _disturb(self, batch: Batch, masks: NDArray[np.uint8], base_s: float) -> list[Arrival]:
        faults, counters = self.faults, self._counters
        dropped, corrupted, duplicated, reordered = ((masks & bit) != 0 for bit in _BITS)
        alive = ~dropped
        rows = batch.datagrams

        flipped = np.flatnonzero(corrupted & alive)
        counters.dropped += int(dropped.sum())
        counters.corrupted += flipped.size
        if flipped.size and faults.checksum:
            counters.discarded += flipped.size
            alive[flipped] = False
        elif flipped.size:
            rows = rows.copy()
            draws = _uniform(self._bits, flipped.size * faults.corrupt_bits) * (8 * batch.size)
            places = draws.astype(np.int64).reshape(flipped.size, faults.corrupt_bits)
            for row, bits in zip(flipped, places, strict=True):
                for bit in bits:
                    rows[row, bit >> 3] ^= 0x80 >> (bit & 7)

        duplicated, reordered = duplicated & alive, reordered & alive
        counters.duplicated += int(duplicated.sum())
        counters.reordered += int(reordered.sum())
        copies = alive.astype(np.int64) - reordered  # how many of each arrive in place
        late: list[tuple[float, int]] = []  # time, row
        held = np.flatnonzero(reordered)
        late += zip(base_s + faults.reorder_s * _uniform(self._holds, held.size), held, strict=True)
        if faults.duplicate_s:
            twice = np.flatnonzero(duplicated)
            late += zip(base_s + faults.duplicate_s * _uniform(self._copies, twice.size), twice, strict=True)
        else:
            copies += duplicated

        arrivals = []
        in_place = np.repeat(rows, copies, axis=0)
        if in_place.size:
            # twice the datagrams may be more than one call takes
            parts = split(Batch(in_place.reshape(-1), batch.size, batch.peer))
            arrivals += [Arrival(base_s, part) for part in parts]
        arrivals += [Arrival(float(t), Batch(rows[row].copy(), batch.size, batch.peer)) for t, row in late]
        counters.left += sum(len(arrival.batch) for arrival in arrivals)
        return arrivals
