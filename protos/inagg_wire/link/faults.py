"""A bad network, on purpose: seeded faults around any link.

`FaultModel` is sans-IO: a batch and the time go in, batches and the times at which they arrive come out. A
simulator uses it directly; `FaultLink` puts one in front of each direction of a link.

The fate of a datagram depends on the seed and on how many datagrams went before it, not on how they were
batched. Randomness is the raw 64-bit output of PCG64, which NumPy keeps stable over its versions (NEP 19), so
a printed seed repeats a run anywhere.
"""

from __future__ import annotations

import heapq
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inagg_wire.link.base import Address, Batch, Counters, Link, Traffic, count_datagrams, split
from inagg_wire.link.port import (
    CORRUPTED,
    DUPLICATED,
    FATE_AT,
    FATED,
    FATES,
    LOST,
    RECEIVING,
    REORDERED,
    SENDING,
    Port,
    Words,
)

Direction = Literal["send", "receive"]

_RAW_BITS = 63  # PCG64 gives 64; a probability of 1 must be representable as a threshold
_BITS = np.array([LOST, CORRUPTED, DUPLICATED, REORDERED], np.uint8)  # in the order of the draws of a datagram


def _uniform(generator: np.random.PCG64, count: int) -> NDArray[np.float64]:
    """`count` floats in [0, 1), from the upper 53 bits of as many raw draws."""
    return (generator.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True, slots=True)
class Faults:
    """What happens to datagrams. `drop`, `corrupt`, `duplicate` and `reorder` are independent probabilities
    per datagram.

    `drop`: it is gone.
    `corrupt`: `corrupt_bits` of its bits, drawn with replacement, are flipped below the UDP checksum. A
    kernel that checks would discard it, and so do we, unless `checksum` is False: then it is delivered as it
    is.
    `duplicate`: it arrives twice; the copy right behind it, or up to `duplicate_s` seconds later (uniform) if
    that is not 0.
    `reorder`: it is held back for up to `reorder_s` seconds (uniform), so that later ones overtake it.
    `delay_s`, `jitter_s`: every batch takes `delay_s` plus up to `jitter_s` (uniform, one draw per batch, so
    batches overtake one another but the datagrams of a batch do not). The jitter therefore does depend on the
    batching.

    ValueError: a probability is not in 0..1, or a time is negative or not finite.
    """

    drop: float = 0.0
    corrupt: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt_bits: int = 1
    checksum: bool = True
    duplicate_s: float = 0.0
    reorder_s: float = 0.001
    delay_s: float = 0.0
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("drop", "corrupt", "duplicate", "reorder"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is a probability, 0..1, not {getattr(self, name)}")
        for name in ("duplicate_s", "reorder_s", "delay_s", "jitter_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0.0):
                raise ValueError(f"{name} is a time in seconds, not {getattr(self, name)}")
        if self.corrupt_bits < 1:
            raise ValueError(f"corrupt_bits is at least 1, not {self.corrupt_bits}")

    def __repr__(self) -> str:
        changed = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Faults({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"


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
        fates, bits, copies, holds, jitter = np.random.SeedSequence(seed).spawn(5)
        self._fates = np.random.PCG64(fates)
        self._bits = np.random.PCG64(bits)
        self._copies = np.random.PCG64(copies)
        self._holds = np.random.PCG64(holds)
        self._jitter = np.random.PCG64(jitter)
        probabilities = (faults.drop, faults.corrupt, faults.duplicate, faults.reorder)
        self._thresholds = np.array([round(p * 2**_RAW_BITS) for p in probabilities], np.uint64)
        self._idle = not any(probabilities)
        self._ahead: NDArray[np.uint8] = np.full(
            FATES, 0, np.uint8
        )  # fates, of which those before `_at` have come true
        self._at: Words = np.array([FATES], np.int64)
        self._counted = FATES  # up to where they are in the counters

    def __repr__(self) -> str:
        return f"FaultModel({self.faults}, seed={self.seed})"

    @property
    def counters(self) -> FaultCounters:
        """The model's own, live counters, brought up to date. Copy them to keep them."""
        self._count_losses()
        return self._counters

    def apply(self, batch: Batch, now_s: float) -> list[Arrival]:
        """What becomes of a batch that enters at `now_s`: arrivals, not in the order of their times.

        Where nothing happens to a batch it is handed on as it is, a view if it was one.
        """
        count = len(batch)
        self._counters.entered += count
        base_s = now_s + self.faults.delay_s
        if self.faults.jitter_s:
            base_s += self.faults.jitter_s * float(_uniform(self._jitter, 1)[0])
        if not self._idle:
            fates = self._next(count)
            if fates.any():
                return self._disturb(batch, fates, base_s)
        self._counters.left += count
        return [Arrival(base_s, batch if base_s <= now_s else batch.copy())]

    # --- fates: the bits of `inagg_wire.link.port`, one byte for each datagram ---

    def _draw(self, count: int) -> NDArray[np.uint8]:
        """The fates of ``count`` datagrams after those that were drawn."""
        raw = self._fates.random_raw(count * len(_BITS)).reshape(count, len(_BITS))
        hit = (raw >> np.uint64(64 - _RAW_BITS)) < self._thresholds
        fates: NDArray[np.uint8] = hit @ _BITS
        return fates

    def _next(self, count: int) -> NDArray[np.uint8]:
        """The fates of the next ``count`` datagrams, which `apply` counts."""
        self._count_losses()
        at = int(self._at[0])
        if at + count > FATES:
            return np.concatenate([self._use(FATES - at), self._draw(count - (FATES - at))])
        return self._use(count)

    def _use(self, count: int) -> NDArray[np.uint8]:
        self._at += count
        self._counted += count
        return self._ahead[self._counted - count : self._counted].copy()

    def lend(self, ahead: NDArray[np.uint8], at: Words) -> None:
        """Keep the fates that are drawn ahead in ``ahead``, uint8, of `FATES`, and the place of the next one in ``at``,
        int64, (1,): there a compiled loop takes them."""
        ahead[:], at[:] = self._ahead, self._at
        self._ahead, self._at = ahead, at

    def draw_ahead(self) -> None:
        """Have half of `FATES` ready, or more."""
        self._count_losses()
        at = int(self._at[0])
        if at < FATES // 2:
            return
        self._ahead[: FATES - at] = self._ahead[at:]
        self._ahead[FATES - at :] = self._draw(at)
        self._at[0] = self._counted = 0

    def _count_losses(self) -> None:
        """Count what a compiled loop has done, which knows losses only."""
        fates, c = self._ahead[self._counted : int(self._at[0])], self._counters
        if fates.size:
            dropped, corrupted = int((fates & LOST).sum()), int((fates == CORRUPTED).sum())
            c.entered += fates.size
            c.dropped += dropped
            c.corrupted += corrupted
            c.discarded += corrupted
            c.left += fates.size - dropped - corrupted
            self._counted = int(self._at[0])

    @property
    def losses_only(self) -> bool:
        """Whether a datagram is lost or arrives as it is, in its place and at once."""
        f = self.faults
        return not (f.duplicate or f.reorder or f.delay_s or f.jitter_s or (f.corrupt and not f.checksum))

    def _disturb(self, batch: Batch, fates: NDArray[np.uint8], base_s: float) -> list[Arrival]:
        faults, counters = self.faults, self._counters
        dropped, corrupted, duplicated, reordered = ((fates & bit) != 0 for bit in _BITS)
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


class FaultLink(Link):
    """A link with faults in one direction or both; each direction has a model of its own, seeded from `seed`.

    Batches that arrive later than they were sent are held here, and go on when this link is used again at or
    after their time: a `receive` waits no longer than until the next is due (`next_due_s`). What is still
    held when the link is closed is lost, and stands in `lost_at_close`.

    `seed`: drawn if None; in any case an attribute, and in the repr. `clock`: seconds, monotonic.
    """

    def __init__(
        self,
        link: Link,
        faults: Faults,
        seed: int | None = None,
        *,
        directions: Sequence[Direction] = ("send", "receive"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if unknown := set(directions) - {"send", "receive"}:
            raise ValueError(f"directions are 'send' and 'receive', not {sorted(unknown)}")
        self.link = link
        self.faults = faults
        self.seed = secrets.randbits(32) if seed is None else seed
        self.sending = self._model("send", directions, 0)
        self.receiving = self._model("receive", directions, 1)
        self.lost_at_close = 0
        self._clock = clock
        self._lent = False
        # heaps of (time, number, batch): the number keeps the order of equal times and is never equal itself
        self._outbound: list[tuple[float, int, Batch]] = []
        self._inbound: list[tuple[float, int, Batch]] = []
        self._number = 0

    def _model(self, direction: Direction, directions: Sequence[Direction], index: int) -> FaultModel:
        faults = self.faults if direction in directions else Faults()
        seed = np.random.SeedSequence([self.seed, index]).generate_state(1, np.uint64)[0]
        return FaultModel(faults, int(seed))

    def __repr__(self) -> str:
        return f"FaultLink({self.link!r}, {self.faults}, seed={self.seed})"

    @property
    def address(self) -> Address:
        return self.link.address

    @property
    def counters(self) -> Counters:
        return self.link.counters

    @property
    def traffic(self) -> Traffic:
        return self.link.traffic

    def port(self) -> Port | None:
        port, models = self.link.port(), (self.sending, self.receiving)
        if not self._lent:
            if port is None or port.words[FATED]:
                return None  # a port has the fates of one link, perhaps one below
            for direction, model in ((SENDING, self.sending), (RECEIVING, self.receiving)):
                model.lend(port.fates[direction], port.words[FATE_AT + direction : FATE_AT + direction + 1])
            port.words[FATED], self._lent = 1, True
        for model in models:
            model.draw_ahead()  # in any case: a loop that has the port already may be waiting for them
        if self._outbound or self._inbound or not all(model.losses_only for model in models):
            return None
        return port

    def receive_failed(self, number: int) -> None:
        self.link.receive_failed(number)

    @property
    def next_due_s(self) -> float | None:
        due = [heap[0][0] for heap in (self._outbound, self._inbound) if heap]
        below = self.link.next_due_s
        return min(due if below is None else [*due, below], default=None)

    def fileno(self) -> int:
        return self.link.fileno()

    def close(self) -> None:
        self.lost_at_close += sum(len(batch) for _, _, batch in self._outbound + self._inbound)
        self._outbound, self._inbound = [], []
        self.link.close()

    def send(self, batch: Batch) -> int:
        """As any link's; what a fault takes counts as accepted, since a network takes it only after the
        kernel has.
        """
        count = count_datagrams(batch.data, batch.size)
        now_s = self._clock()
        self._send_due(now_s)
        refused = 0
        for arrival in self.sending.apply(batch, now_s) if count else ():
            if arrival.time_s <= now_s:
                refused += len(arrival.batch) - self.link.send(arrival.batch)
            else:
                self._hold(self._outbound, arrival)
        return max(count - refused, 0)

    def send_many(self, data: NDArray[np.uint8], size: int, peers: Sequence[Address]) -> int:
        return sum(self.send(Batch(data, size, peer)) for peer in peers)

    def receive(self, timeout_s: float) -> list[Batch]:
        now_s = self._clock()
        self._send_due(now_s)
        due_s = self.next_due_s
        if due_s is not None:
            timeout_s = min(timeout_s, max(due_s - now_s, 0.0))
        received = self.link.receive(timeout_s)
        now_s = self._clock()
        for batch in received:
            for arrival in self.receiving.apply(batch, now_s):
                self._hold(self._inbound, arrival)
        self._send_due(now_s)
        return self._take_due(self._inbound, now_s)

    def _hold(self, heap: list[tuple[float, int, Batch]], arrival: Arrival) -> None:
        heapq.heappush(heap, (arrival.time_s, self._number, arrival.batch))
        self._number += 1

    def _take_due(self, heap: list[tuple[float, int, Batch]], now_s: float) -> list[Batch]:
        due = []
        while heap and heap[0][0] <= now_s:
            due.append(heapq.heappop(heap)[2])
        return due

    def _send_due(self, now_s: float) -> None:
        for batch in self._take_due(self._outbound, now_s):
            self.link.send(batch)
