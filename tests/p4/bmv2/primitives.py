"""Actions of a program: their primitives as functions of the packet."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from .expressions import Value, compile_value
from .layout import Field, Json, Layout, State
from .tables import Action

DROP_PORT = 511
Primitive = Callable[[State], int | None]
"""Changes the packet. Returns the place of the primitive to go on with, None for the next one."""


class Compiler:
    """Turns the actions of a program into functions."""

    def __init__(self, layout: Layout, program: Json) -> None:
        self.layout = layout
        self.register_bits = {array["name"]: array["bitwidth"] for array in program["register_arrays"]}
        self.calculations = {c["name"]: c for c in program["calculations"]}
        self.length = layout.field("standard_metadata", "packet_length").place

    def action(self, json: Json) -> Action:
        primitives = [self._primitive(primitive) for primitive in json["primitives"]]
        parameters = tuple(parameter["name"] for parameter in json["runtime_data"])
        if not any(primitive["op"].startswith("_jump") for primitive in json["primitives"]):

            def straight(state: State) -> None:
                for primitive in primitives:
                    primitive(state)

            return Action(json["name"], parameters, straight)

        def jumping(state: State) -> None:
            at = 0
            while at < len(primitives):
                to = primitives[at](state)
                at = at + 1 if to is None else to

        return Action(json["name"], parameters, jumping)

    def _value(self, json: Json) -> Value:
        return compile_value(self.layout, json)

    def _field(self, json: Json) -> Field:
        assert json["type"] == "field", json
        return self.layout.field(*json["value"])

    def _primitive(self, json: Json) -> Primitive:
        build = getattr(self, "_" + json["op"].removeprefix("_"), None)
        if build is None:
            raise NotImplementedError(f"the primitive {json['op']}")
        primitive: Primitive = build(*json["parameters"])
        return primitive

    # --- one method for each primitive, named for it ---

    def _assign(self, to: Json, what: Json) -> Primitive:
        value = self._value(what)
        if to["value"][1] == "$valid$":
            number = self.layout.headers[to["value"][0]].number

            def assign_valid(state: State) -> None:
                state.valid[number] = bool(value(state))

            return assign_valid
        target = self._field(to)
        place, mask = target.place, (1 << target.bits) - 1
        if target.signed:

            def assign_signed(state: State) -> None:
                state.values[place] = target.wrap(value(state))

            return assign_signed

        def assign(state: State) -> None:
            state.values[place] = value(state) & mask

        return assign

    def _assign_header(self, to: Json, what: Json) -> Primitive:
        target, source = (self.layout.headers[side["value"]] for side in (to, what))

        def assign_header(state: State) -> None:
            state.valid[target.number] = state.valid[source.number]
            for name, f in target.fields.items():
                state.values[f.place] = state.values[source.fields[name].place]

        return assign_header

    def _assign_header_stack(self, to: Json, what: Json) -> Primitive:
        pairs = zip(self.layout.stacks[to["value"]], self.layout.stacks[what["value"]], strict=True)
        copies = [self._assign_header({"value": a}, {"value": b}) for a, b in pairs]

        def assign_stack(state: State) -> None:
            state.stacks[to["value"]] = state.stacks[what["value"]]
            for copy in copies:
                copy(state)

        return assign_stack

    def _add_header(self, header: Json) -> Primitive:
        return self._set_valid(header, True)

    def _remove_header(self, header: Json) -> Primitive:
        return self._set_valid(header, False)

    def _set_valid(self, header: Json, valid: bool) -> Primitive:
        number = self.layout.headers[header["value"]].number

        def set_valid(state: State) -> None:
            state.valid[number] = valid

        return set_valid

    def _jump(self, to: Json) -> Primitive:
        return self._value(to)

    def _jump_if_zero(self, condition: Json, to: Json) -> Primitive:
        value, place = self._value(condition), self._value(to)
        return lambda state: None if value(state) else place(state)

    def _no_op(self) -> Primitive:
        return lambda state: None

    def _exit(self) -> Primitive:
        def leave(state: State) -> None:
            state.exited = True

        return leave

    def _mark_to_drop(self, metadata: Json) -> Primitive:
        egress = self.layout.field(metadata["value"], "egress_spec").place
        group = self.layout.field(metadata["value"], "mcast_grp").place

        def drop(state: State) -> None:
            state.values[egress] = DROP_PORT
            state.values[group] = 0

        return drop

    def _truncate(self, size: Json) -> Primitive:
        value = self._value(size)

        def truncate(state: State) -> None:
            state.truncate = value(state)

        return truncate

    def _register_read(self, to: Json, register: Json, index: Json) -> Primitive:
        name, value, target = register["value"], self._value(index), self._field(to)

        def read(state: State) -> None:
            at, cells = value(state), state.memory.registers[name]
            # bmv2 leaves the target as it was if the index is beyond the array
            if at < len(cells):
                state.values[target.place] = target.wrap(cells[at])

        return read

    def _register_write(self, register: Json, index: Json, what: Json) -> Primitive:
        name, place, value = register["value"], self._value(index), self._value(what)
        mask = (1 << self.register_bits[name]) - 1

        def write(state: State) -> None:
            at, cells = place(state), state.memory.registers[name]
            if at < len(cells):
                cells[at] = value(state) & mask

        return write

    def _count(self, counter: Json, index: Json) -> Primitive:
        name, value, length = counter["value"], self._value(index), self.length

        def count(state: State) -> None:
            at, cells = value(state), state.memory.counters[name]
            if at < len(cells):
                cells[at][0] += 1
                cells[at][1] += state.values[length]

        return count

    def _modify_field_with_hash_based_offset(self, to: Json, base: Json, hashed: Json, size: Json) -> Primitive:
        target, offset, modulus = self._field(to), self._value(base), self._value(size)
        calculation = self.calculations[hashed["value"]]
        if calculation["algo"] != "crc32":
            raise NotImplementedError(f"the hash {calculation['algo']}")
        packed = self.packed(calculation)

        def hash_field(state: State) -> None:
            m = modulus(state)
            h = zlib.crc32(packed(state))
            state.values[target.place] = target.wrap(offset(state) + (h % m if m else 0))

        return hash_field

    def packed(self, calculation: Json) -> Callable[[State], bytes]:
        """The fields of a calculation, back to back, without its payload."""
        parts = []
        for part in calculation["input"]:
            if part["type"] == "payload":
                raise NotImplementedError("a calculation over the payload")
            bits = self._field(part).bits if part["type"] == "field" else part["bitwidth"]
            parts.append((self._value(part), bits))
        total = sum(bits for _, bits in parts)
        assert total % 8 == 0, calculation["name"]

        def pack(state: State) -> bytes:
            whole = 0
            for value, bits in parts:
                whole = whole << bits | (value(state) & ((1 << bits) - 1))
            return whole.to_bytes(total // 8, "big")

        return pack
