"""Parser and deparser of a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .expressions import compile_value
from .layout import Header, Json, Layout, State

PARSER_ERROR = "parser_error"


class PacketTooShort(Exception):
    """A header ends beyond the packet."""


class Cursor:
    """The rest of a packet's bytes."""

    def __init__(self, packet: bytes) -> None:
        self.packet = packet
        self.at = 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.packet):
            raise PacketTooShort
        self.at += size
        return self.packet[self.at - size : self.at]


@dataclass
class Transition:
    value: int
    mask: int
    next_state: str | None


@dataclass
class ParseState:
    operations: list[Callable[[State, Cursor], None]]
    key: list[tuple[Callable[[State], int], int]]
    """Values and their bits, padded to whole bytes."""
    transitions: list[Transition]


class Parser:
    def __init__(self, layout: Layout, program: Json) -> None:
        (json,) = program["parsers"]
        self.layout = layout
        self.start = json["init_state"]
        self.states = {state["name"]: self._state(state) for state in json["parse_states"]}
        (deparser,) = program["deparsers"]
        self.order = [layout.headers[name] for name in deparser["order"]]
        self.too_short = dict(map(tuple, program["errors"]))["PacketTooShort"]
        self.error = layout.field("standard_metadata", PARSER_ERROR).place

    def _state(self, json: Json) -> ParseState:
        key = []
        for part in json["transition_key"]:
            if part["type"] != "field":
                raise NotImplementedError(f"a transition on {part['type']}")
            bits = self.layout.field(*part["value"]).bits
            key.append((compile_value(self.layout, part), -(-bits // 8) * 8))
        everything = (1 << sum(bits for _, bits in key)) - 1
        transitions = []
        for transition in json["transitions"]:
            if transition["type"] == "default":
                transitions.append(Transition(0, 0, transition["next_state"]))
            elif transition["type"] == "hexstr":
                mask = everything if transition["mask"] is None else int(transition["mask"], 16)
                transitions.append(Transition(int(transition["value"], 16) & mask, mask, transition["next_state"]))
            else:
                raise NotImplementedError(f"a transition of type {transition['type']}")
        return ParseState([self._operation(operation) for operation in json["parser_ops"]], key, transitions)

    def _operation(self, json: Json) -> Callable[[State, Cursor], None]:
        parameters = json["parameters"]
        if json["op"] == "extract":
            name = parameters[0]["value"]
            if parameters[0]["type"] == "stack":
                elements = [self.layout.headers[element] for element in self.layout.stacks[name]]

                def extract_next(state: State, cursor: Cursor) -> None:
                    extract(elements[state.stacks[name]], state, cursor)
                    state.stacks[name] += 1

                return extract_next
            header = self.layout.headers[name]
            return lambda state, cursor: extract(header, state, cursor)
        if json["op"] == "set":
            field = self.layout.field(*parameters[0]["value"])
            value = compile_value(self.layout, parameters[1])

            def assign(state: State, cursor: Cursor) -> None:
                state.values[field.place] = field.wrap(value(state))

            return assign
        raise NotImplementedError(f"the parser's operation {json['op']}")

    def parse(self, packet: bytes, state: State) -> None:
        """Fills ``state``. A packet that is too short ends here, with the headers so far, and goes on."""
        cursor, name = Cursor(packet), self.start
        try:
            while name is not None:
                parse_state = self.states[name]
                for operation in parse_state.operations:
                    operation(state, cursor)
                key = 0
                for value, bits in parse_state.key:
                    key = key << bits | value(state)
                name = next(t.next_state for t in parse_state.transitions if key & t.mask == t.value)
        except PacketTooShort:
            state.values[self.error] = self.too_short
        state.payload = packet[cursor.at :]

    def deparse(self, state: State) -> bytes:
        """The packet as it leaves."""
        parts = [emit(header, state) for header in self.order if state.valid[header.number]]
        packet = b"".join((*parts, state.payload))
        return packet if state.truncate is None else packet[: state.truncate]


def extract(header: Header, state: State, cursor: Cursor) -> None:
    bits = header.bits
    whole = int.from_bytes(cursor.take(bits // 8), "big")
    for field in header.fields.values():
        bits -= field.bits
        state.values[field.place] = field.wrap(whole >> bits)
    state.valid[header.number] = True


def emit(header: Header, state: State) -> bytes:
    whole = 0
    for field in header.fields.values():
        whole = whole << field.bits | (state.values[field.place] & ((1 << field.bits) - 1))
    return whole.to_bytes(header.bits // 8, "big")
