"""Containers of a packet: what parser, tables and deparser share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

PLACE: Final = re.compile(r"(T?[BHW]\d+)(?:\((\d+)(?:\.\.(\d+))?\))?")
BITS: Final = {"B": 8, "H": 16, "W": 32}

Slice = tuple[str, int, int]
"""A container, the first bit of it, and how many."""


@cache
def bits_of(container: str) -> int:
    """How wide a container is."""
    return BITS[container.lstrip("T")[0]]


@cache
def place(text: str) -> Slice:
    """``W3`` or ``B5(2)`` or ``H2(0..8)``."""
    found = PLACE.fullmatch(text)
    assert found is not None, text
    name, low, high = found.groups()
    if low is None:
        return name, 0, bits_of(name)
    return name, int(low), int(high or low) - int(low) + 1


class Containers(dict[str, int]):
    """Values by container; those that nobody wrote are not in it, and read as 0."""

    def read(self, at: Slice) -> int:
        name, low, width = at
        return self.get(name, 0) >> low & (1 << width) - 1

    def write(self, at: Slice, value: int) -> None:
        name, low, width = at
        mask = (1 << width) - 1 << low
        self[name] = self.get(name, 0) & ~mask | value << low & mask

    def join(self, places: Iterable[str]) -> int:
        """What stands in some places, the lowest bits first."""
        value = bits = 0
        for text in places:
            at = place(text)
            value |= self.read(at) << bits
            bits += at[2]
        return value

    def sum(self, parts: Iterable[tuple[int, str | int]]) -> int:
        """What stands in some places, or numbers, each by its first bit."""
        return sum((it if isinstance(it, int) else self.read(place(it))) << bit for bit, it in parts)
