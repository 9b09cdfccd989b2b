"""Headers of a program, as its JSON names them, and their values in one packet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = Any
"""A part of the program's JSON."""


@dataclass(frozen=True)
class Field:
    """``place``: in `State.values`."""

    place: int
    bits: int
    signed: bool

    def wrap(self, value: int) -> int:
        """``value`` as this field holds it."""
        value &= (1 << self.bits) - 1
        return value - (1 << self.bits) if self.signed and value >> (self.bits - 1) else value


@dataclass(frozen=True)
class Header:
    """``number``: in `State.valid`; metadata is always valid."""

    name: str
    number: int
    metadata: bool
    fields: dict[str, Field]

    @property
    def bits(self) -> int:
        return sum(f.bits for f in self.fields.values())


@dataclass
class Memory:
    """What outlives a packet: registers, and counters as [packets, bytes]."""

    registers: dict[str, list[int]] = field(default_factory=dict)
    counters: dict[str, list[list[int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Json) -> Memory:
        return cls(
            {array["name"]: [0] * array["size"] for array in program["register_arrays"]},
            {array["name"]: [[0, 0] for _ in range(array["size"])] for array in program["counter_arrays"]},
        )


@dataclass
class State:
    """A packet inside the switch, and what the switch remembers."""

    memory: Memory
    values: list[int]
    valid: list[bool]
    stacks: dict[str, int]
    """How many elements of a header stack are valid."""
    payload: bytes = b""
    """What the parser left."""
    data: tuple[int, ...] = ()
    """Of the action that runs."""
    truncate: int | None = None
    exited: bool = False

    def copy(self) -> State:
        values, valid, stacks = list(self.values), list(self.valid), dict(self.stacks)
        return State(self.memory, values, valid, stacks, self.payload, (), self.truncate)


@dataclass
class Layout:
    """All headers, stacks and fields of a program."""

    headers: dict[str, Header] = field(default_factory=dict)
    stacks: dict[str, list[str]] = field(default_factory=dict)
    size: int = 0

    @classmethod
    def of(cls, program: Json) -> Layout:
        layout = cls()
        types = {kind["name"]: kind["fields"] for kind in program["header_types"]}
        for number, header in enumerate(program["headers"]):
            fields = {}
            for name, bits, *signed in types[header["header_type"]]:
                fields[name] = Field(layout.size, bits, bool(signed and signed[0]))
                layout.size += 1
            layout.headers[header["name"]] = Header(header["name"], number, header["metadata"], fields)
        by_id = {header["id"]: header["name"] for header in program["headers"]}
        for stack in program["header_stacks"]:
            layout.stacks[stack["name"]] = [by_id[number] for number in stack["header_ids"]]
        return layout

    def field(self, header: str, name: str) -> Field:
        return self.headers[header].fields[name]

    def new_state(self, memory: Memory) -> State:
        valid = [header.metadata for header in self.headers.values()]
        return State(memory, [0] * self.size, valid, dict.fromkeys(self.stacks, 0))
