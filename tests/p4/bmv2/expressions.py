"""Expressions of a program's JSON as functions of the packet. Numbers have no width but that of where they go."""

from __future__ import annotations

import operator
from collections.abc import Callable

from .layout import Json, Layout, State

Value = Callable[[State], int]

BINARY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "usat_cast": lambda value, bits: min(max(value, 0), (1 << bits) - 1),  # what |-| and |+| become
}


def compile_value(layout: Layout, json: Json) -> Value:
    """What a type-value object of the JSON evaluates to."""
    match json["type"]:
        case "field":
            header, name = json["value"]
            if name == "$valid$":
                return _valid(layout, header)
            place = layout.field(header, name).place
            return lambda state: state.values[place]
        case "hexstr":
            constant = int(json["value"], 16)
            return lambda state: constant
        case "bool":
            truth = int(json["value"])
            return lambda state: truth
        case "local" | "runtime_data":
            number = json["value"]
            return lambda state: state.data[number]
        case "expression":
            inner = json["value"]
            return compile_value(layout, inner) if "type" in inner else _operation(layout, inner)
        case other:
            raise NotImplementedError(f"a value of type {other}")


def _valid(layout: Layout, header: str) -> Value:
    number = layout.headers[header].number
    return lambda state: state.valid[number]


def _operation(layout: Layout, json: Json) -> Value:
    name = json["op"]
    if name == "?":
        condition, yes, no = (compile_value(layout, json[part]) for part in ("cond", "left", "right"))
        return lambda state: yes(state) if condition(state) else no(state)
    right = compile_value(layout, json["right"]) if json["right"]["type"] != "header" else None
    if right is None:
        if name != "valid":
            raise NotImplementedError(f"{name} of a header")
        return _valid(layout, json["right"]["value"])
    if json["left"] is None:
        return _unary(name, right)
    left = compile_value(layout, json["left"])
    if name == "and":
        return lambda state: bool(left(state)) and bool(right(state))
    if name == "or":
        return lambda state: bool(left(state)) or bool(right(state))
    if name == "two_comp_mod":
        return lambda state: _two_complement(left(state), right(state))
    function = BINARY[name]
    return lambda state: function(left(state), right(state))


def _unary(name: str, of: Value) -> Value:
    match name:
        case "not":
            return lambda state: not of(state)
        case "~":
            return lambda state: ~of(state)
        case "-":
            return lambda state: -of(state)
        case "+":
            return of
        case "d2b":
            return lambda state: bool(of(state))
        case "b2d":
            return lambda state: int(of(state))
        case other:
            raise NotImplementedError(f"the operation {other}")


def _two_complement(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
