"""A network between workers and a switch that drops, repeats, delays and reorders, in steps, from a seed."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from inagg_switch.binding import Address

Packet = tuple[bytes, Address]
"""A datagram and the worker's end of its way: its source on the way up, its destination on the way down."""


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities per datagram. A delay is up to ``delay`` steps, or, for the share ``late``, up to ``later``."""

    drop: float = 0.05
    repeat: float = 0.05
    delay: int = 3
    late: float = 0.02
    later: int = 120


CALM = Weather(drop=0.0, repeat=0.0, delay=0, late=0.0)


class Network:
    """One direction. What is due in the same step comes in random order."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self._rng = np.random.default_rng(seed)
        self._weather = weather
        self._queue: list[tuple[int, float, int, Packet]] = []
        self._sent = 0

    def __len__(self) -> int:
        return len(self._queue)

    def send(self, packets: Iterable[Packet], step: int) -> None:
        w, rng = self._weather, self._rng
        for packet in packets:
            copies = 0 if rng.random() < w.drop else 1
            while rng.random() < w.repeat:
                copies += 1
            for _ in range(copies):
                longest = w.later if rng.random() < w.late else w.delay
                due = step + int(rng.integers(longest + 1))
                self._sent += 1
                heapq.heappush(self._queue, (due, rng.random(), self._sent, packet))

    def due(self, step: int) -> list[Packet]:
        """What arrives by ``step``, and leaves the network."""
        arrived = []
        while self._queue and self._queue[0][0] <= step:
            arrived.append(heapq.heappop(self._queue)[3])
        return arrived


def batches(packets: Iterable[Packet], rng: np.random.Generator, most: int = 64) -> list[tuple[list[bytes], Address]]:
    """``packets`` as batches of 1 to ``most`` equal datagrams of one source, in random order."""
    groups: dict[tuple[Address, int], list[bytes]] = {}
    for data, source in packets:
        groups.setdefault((source, len(data)), []).append(data)
    cut = []
    for (source, _), datagrams in groups.items():
        while datagrams:
            count = int(rng.integers(1, most + 1))
            cut.append((datagrams[:count], source))
            datagrams = datagrams[count:]
    return [cut[i] for i in rng.permutation(len(cut))]
