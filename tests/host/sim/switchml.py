"""SwitchML's switch (Sapio et al., NSDI 2021, algorithm 3), which tells two uses of a slot apart by one version bit.

It is here to be found out: a copy of a datagram that is two uses late looks new, and is added to another block's sum.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np

from inagg_wire import header as wire
from inagg_wire.layout import Kind, Op
from inagg_wire.noise import switch_words
from inagg_wire.payload import pack, unpack
from inagg_wire.reencode import Integers, combine, contribution_integers, result_codes

from .world import World


@dataclass(slots=True)
class Slot:
    """One slot in one version."""

    seen: int = 0
    count: int = 0
    acc: Integers | None = None


class VersionBitSwitch:
    """Our 2P slots are its P slots in two versions: block b is in slot b mod P, version b div P mod 2."""

    def __init__(self, world: World, token: int, _start: int) -> None:
        self.token, self._world = token, world
        self._slots = {world.lease.base + i: Slot() for i in range(world.lease.slots)}

    def receive(self, data: bytes, rank: int) -> list[tuple[bytes, list[int]]]:
        datagram, n, bit = wire.parse(data), self._world.workers, 1 << rank
        h, fmt = datagram.header, self._world.format
        slot = self._slots[h.slot]
        if slot.seen & bit:
            return [(self._result(h, slot), [rank])] if slot.count == 0 else []
        slot.seen |= bit
        self._slots[self._world.lease.base + ((h.slot - self._world.lease.base) ^ self._world.window)].seen &= ~bit
        slot.count = (slot.count + 1) % n
        integers, _ = contribution_integers(h.op, fmt, n, unpack(h.format, datagram.payload))
        alone = slot.count == 1 % n or slot.acc is None
        slot.acc = integers if alone or slot.acc is None else combine(h.op, slot.acc, integers)
        return [(self._result(h, slot), list(range(n)))] if slot.count == 0 else []

    def _result(self, h: wire.Header, slot: Slot) -> bytes:
        assert slot.acc is not None
        fmt, n = self._world.format, self._world.workers
        words = switch_words(self._world.seed, h.slot, h.generation, h.lanes)
        encoding = fmt.result_encoding(h.op, n)
        head = replace(h, kind=Kind.RESULT, format=encoding)
        acc = np.clip(slot.acc, 0, 255) if h.op is Op.MAX else slot.acc
        return wire.Datagram(head, pack(encoding, result_codes(h.op, fmt, n, acc, words))).pack()

    def key(self) -> Hashable:
        return tuple((s.seen, s.count, b"" if s.acc is None else s.acc.tobytes()) for s in self._slots.values())
