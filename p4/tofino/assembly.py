"""Reads the assembler's input (.bfa), as far as a packet's way through the chip stands in it.

Its lines are `key: value` or `- value`, by indentation; a value may be a map or list in braces on the same line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

PLACE: Final = re.compile(r"(T?[BHW]\d+)(?:\((\d+)(?:\.\.(\d+))?\))?")
"""A container, or bits of it."""
NAMED: Final = re.compile(r"(.+?)(?:\.(\d+)-(\d+))?(?:\((\d+)(?:\.\.(\d+))?\))?")
"""A field, the part of it that one container holds, and bits of that part."""
BITS: Final = {"B": 8, "H": 16, "W": 32}

Slice = tuple[str, int, int]
"""A container, the first bit of it, and how many."""


@dataclass
class Line:
    """A line, and those that are indented below it."""

    key: str
    value: str
    below: list[Line] = field(default_factory=list)

    def get(self, key: str) -> Line | None:
        return next((line for line in self.below if line.key == key), None)

    def text(self, key: str) -> str | None:
        line = self.get(key)
        return None if line is None else line.value


def read(text: str) -> Line:
    """The whole file below one line."""
    root = Line("", "")
    above: list[tuple[float, Line]] = [(-1, root)]
    for raw in text.splitlines():
        code = _without_comment(raw).rstrip()
        if not code.strip():
            continue
        # Items of a list stand as far in as what they are below.
        indent = len(code) - len(code.lstrip()) + 0.5 * code.lstrip().startswith("- ")
        while above[-1][0] >= indent:
            above.pop()
        line = _line(code.strip())
        above[-1][1].below.append(line)
        above.append((indent, line))
    return root


def _without_comment(text: str) -> str:
    quoted = False
    for place, letter in enumerate(text):
        quoted ^= letter == '"'
        if letter == "#" and not quoted and (place == 0 or text[place - 1] in " \t"):
            return text[:place]
    return text


def _line(text: str) -> Line:
    if text.startswith("- "):
        return Line("-", text[2:].strip())
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == ":" and not depth and (place + 1 == len(text) or text[place + 1] == " "):
            return Line(text[:place].strip(), text[place + 1 :].strip())
    return Line(text, "")


def split(text: str, by: str = ",") -> list[str]:
    """At separators that stand in no brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == by and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def pairs(text: str) -> list[tuple[str, str]]:
    """`{ a: b, c: d }`, where a key may stand twice."""
    found = (item.partition(":") for item in split(text.strip().removeprefix("{").removesuffix("}")))
    return [(key.strip(), value.strip()) for key, _, value in found]


def inline(text: str) -> dict[str, str]:
    """`{ a: b, c: d }`"""
    return dict(pairs(text))


def listed(text: str) -> list[str]:
    """`[ a, b ]`, or `a`."""
    return split(text.strip().removeprefix("[").removesuffix("]"))


def number_range(text: str) -> tuple[int, int]:
    """`3..5`, or `3`: first and last."""
    first, _, last = text.partition("..")
    return int(first, 0), int(last or first, 0)


class Containers:
    """Where the fields of one direction are. The chip this is for keeps a field in one place in all stages; fields that
    are never needed at once may share one."""

    def __init__(self, phv: Line) -> None:
        self.parts: dict[str, list[tuple[int, int, Slice]]] = {}
        """By field: the first bit of a part of it, how many, and where."""
        for line in phv.below:
            if line.key == "context_json":
                continue
            name, low, high = re.fullmatch(r"(.+?)(?:\.(\d+)-(\d+))?", line.key).groups()  # type: ignore[union-attr]
            place = line.value
            if place.startswith("{"):
                places = set(inline(place).values())
                if len(places) != 1:
                    raise ValueError(f"{line.key} moves: {place}")
                (place,) = places
            at = self._container(place)
            if at is None:
                raise ValueError(f"{line.key}: cannot read {place}")
            first = int(low or 0)
            width = int(high) - first + 1 if high else at[2]
            if width != at[2]:
                raise ValueError(f"{line.key}: {width} bits in {place}")
            self.parts.setdefault(name, []).append((first, width, at))

    @staticmethod
    def _container(text: str) -> Slice | None:
        found = PLACE.fullmatch(text.strip())
        if found is None:
            return None
        name, low, high = found.groups()
        if low is None:
            return name, 0, BITS[name.lstrip("T")[0]]
        return name, int(low), int(high or low) - int(low) + 1

    def field(self, name: str, low: int = 0, width: int | None = None) -> list[Slice]:
        """Where bits of a field are, the lowest first. Raises KeyError."""
        parts = sorted(self.parts[name])
        if width is None:
            width = max(first + size for first, size, _ in parts) - low
        found, at = [], low
        for first, size, (container, bit, _) in parts:
            if first <= at < min(first + size, low + width):
                end = min(first + size, low + width)
                found.append((container, bit + at - first, end - at))
                at = end
        if at != low + width:
            raise KeyError(f"{name}: bits {low} to {low + width - 1} are in no container")
        return found

    def find(self, text: str) -> list[Slice] | None:
        """What an operand names; None if it is no container and no field."""
        text = text.strip()
        at = self._container(text)
        if at is not None:
            return [at]
        found = NAMED.fullmatch(text)
        if found is None or found[1] not in self.parts:
            return None
        name, low, high, first, last = found.groups()
        base = int(low or 0)
        if first is not None:
            return self.field(name, base + int(first), int(last or first) - int(first) + 1)
        return self.field(name, base, int(high) - base + 1 if high else None)


def part(root: Line, kind: str, direction: str) -> Line:
    """A part of the file: `parser ingress:`, `phv egress:` and so on. Raises ValueError."""
    for line in root.below:
        if line.key == f"{kind} {direction}":
            return line
    raise ValueError(f"the assembly has no {kind} {direction}")


def stages(root: Line, direction: str) -> Iterator[tuple[int, Line]]:
    for line in root.below:
        found = re.fullmatch(rf"stage (\d+) {direction}", line.key)
        if found is not None:
            yield int(found[1]), line


def text_of(at: Slice) -> str:
    """`W3` or `B5(2)` or `H2(0..8)`."""
    name, low, width = at
    if (low, width) == (0, BITS[name.lstrip("T")[0]]):
        return name
    return f"{name}({low})" if width == 1 else f"{name}({low}..{low + width - 1})"


def one(fields: Containers, text: str) -> str:
    """The one place that an operand names."""
    found = fields.find(text)
    if found is None or len(found) != 1:
        raise ValueError(f"{text} is no one place")
    return text_of(found[0])


def ternary(text: str, width: int) -> tuple[int, int]:
    """Mask and value of `0x0*1`, `0b10*` or `*`."""
    if text == "*":
        return 0, 0
    base = {"0x": 4, "0o": 3, "0b": 1}.get(text[:2])
    if base is None:
        return (1 << width) - 1, int(text, 0)
    mask = value = 0
    for digit in text[2:].replace("_", ""):
        mask, value = mask << base, value << base
        if digit != "*":
            mask, value = mask | (1 << base) - 1, value | int(digit, 16)
    # Digits that are left out in front are zeros that must be there.
    given = base * len(text[2:].replace("_", ""))
    if given < width:
        mask |= (1 << width) - (1 << given)
    return mask & (1 << width) - 1, value
