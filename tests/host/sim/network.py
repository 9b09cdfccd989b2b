"""A network in virtual time that loses, repeats, delays, reorders and damages datagrams, from a seed.

Each batch goes its way in one piece, but for those of its datagrams that something happens to. `inagg_link.faults`
does the same to real links, with numpy, for large batches; this one is made for tiny ones, and for time that a heap of
events keeps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

FATES = ("lost", "damaged", "flipped", "repeated", "late", "overrun")

CHECKED_BYTES = 16
"""The header's first bytes, up to the token: what a receiver compares with what it must be. A flip in the slot, the
generation or the payload can make another valid datagram; only the UDP checksum protects them."""


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities per datagram, of which at most one comes true; times in seconds.

    ``lost``; ``damaged``: a bit flips below the UDP checksum, which is a loss; ``flipped``: a bit flips in the first
    `CHECKED_BYTES` and nothing notices; ``repeated``: a copy comes up to ``late_s`` later; ``late``: it comes up to
    ``late_s`` later itself. All others of a batch come after ``delay_s`` and up to ``jitter_s`` together.
    ``datagram_s``: how long one datagram keeps its wire busy; ``queue``: how many may wait for it, the rest is lost;
    ``sharers``: so many ranks, one after the other, have one wire to the switch, as a rack has its trunk.
    """

    lost: float = 0.0
    damaged: float = 0.0
    flipped: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    late_s: float = 0.01
    delay_s: float = 0.0001
    jitter_s: float = 0.0
    datagram_s: float = 0.0
    queue: int = 1 << 30
    sharers: int = 1

    @property
    def bad(self) -> float:
        """Probability that a datagram has come to nothing."""
        return self.lost + self.damaged + self.flipped

    @property
    def calm(self) -> bool:
        return self.bad + self.repeated + self.late == 0.0


def draw_weather(rng: random.Random) -> Weather:
    """From calm to a storm, with delays from less than a round trip to a thousand of them."""
    level = rng.choice((0.0, 0.001, 0.01, 0.05, 0.2))
    kinds = {"lost": 0.7, "damaged": 0.15, "flipped": 0.15, "repeated": 0.5, "late": 0.5}
    chosen = {kind: level * rng.uniform(0.3, 1.0) if rng.random() < often else 0.0 for kind, often in kinds.items()}
    return Weather(
        lost=chosen["lost"],
        damaged=chosen["damaged"],
        flipped=chosen["flipped"],
        repeated=chosen["repeated"],
        late=chosen["late"],
        late_s=rng.choice((0.0005, 0.005, 0.05, 0.5)),
        delay_s=rng.choice((0.00002, 0.0001, 0.001)),
        jitter_s=rng.choice((0.0, 0.0, 0.0001, 0.002)),
    )


@dataclass(slots=True)
class Network:
    """One direction of the wires of all ranks. ``counts``: datagrams by what happened to them."""

    weather: Weather
    rng: random.Random
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*FATES, "sent"), 0))
    _busy_until_s: dict[object, float] = field(default_factory=dict)

    def carry(self, data: Bytes, size: int, now: float, wire: object) -> Iterator[tuple[float, Bytes]]:
        """When what arrives of ``data``, equal datagrams of ``size`` bytes sent over ``wire``; in memory of its own."""
        w, draw, count = self.weather, self.rng.random, data.size // size
        self.counts["sent"] += count
        start_s = now
        if w.datagram_s:
            start_s = max(now, self._busy_until_s.get(wire, 0.0))
            taken = min(count, w.queue - round((start_s - now) / w.datagram_s))
            self.counts["overrun"] += count - taken
            if taken <= 0:
                return
            data, count = data[: taken * size], taken
            start_s += count * w.datagram_s
            self._busy_until_s[wire] = start_s
        at_s = start_s + w.delay_s + (w.jitter_s * draw() if w.jitter_s else 0.0)
        rows = data.reshape(count, size)
        if w.calm:
            yield at_s, data.copy()
            return
        gone, flipped = w.lost + w.damaged, w.bad
        repeated = flipped + w.repeated
        late = repeated + w.late
        there = []
        for i in range(count):
            fate = draw()
            if fate >= late:
                there.append(i)
            elif fate < gone:
                self.counts["lost" if fate < w.lost else "damaged"] += 1
            elif fate < flipped:
                self.counts["flipped"] += 1
                yield at_s, self._flip(rows[i])
            elif fate < repeated:
                self.counts["repeated"] += 1
                there.append(i)
                yield at_s + w.late_s * draw(), rows[i].copy()
            else:
                self.counts["late"] += 1
                yield at_s + w.late_s * draw(), rows[i].copy()
        if len(there) == count:
            yield at_s, data.copy()
        elif there:
            yield at_s, rows[there].reshape(-1)

    def _flip(self, row: Bytes) -> Bytes:
        damaged, bit = row.copy(), self.rng.randrange(8 * CHECKED_BYTES)
        damaged[bit >> 3] ^= 0x80 >> (bit & 7)
        return damaged
