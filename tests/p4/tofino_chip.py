"""Executes what the Tofino compiler made of the program: p4/tofino/compiled.json, stage by stage.

Test equipment, for what datagrams to the data port meet. As on the chip, all tables of a stage read what the stage
before left, so values that share a place, or stand in the wrong stage, show. What it does not have: parser, deparser,
branches (who calls says which tables) and containers.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

COMPILED = Path(__file__).parents[2] / "p4" / "tofino" / "compiled.json"
STAGES = 12
WORD = 0xFFFFFFFF
CONSTANT = re.compile(r"(?:(\d+)w)?(0x[0-9a-f]+|\d+)")
CONTRIBUTION = re.compile(r"slot|outcome|decode|lane|rounding|code|noise|tbl_inagg")
"""The tables that a contribution meets that the binding took."""
REFUSAL = re.compile(r"check|verdict")
"""Those that find out why a datagram is not one."""
BYTES = {"meta.seed": 4, "hdr.inagg.slot": 4, "hdr.inagg.generation": 4}

COMPARED = {"grt.u": lambda total: total > 0, "equ": lambda total: total & WORD == 0}
"""What a comparison of a register action says of the sum of its terms."""

Fields = defaultdict[str, int]


class Chip:
    """The tables and registers of the program."""

    def __init__(self) -> None:
        compiled = json.loads(COMPILED.read_text())
        self._tables = compiled["tables"]
        self._actions: dict[str, Any] = compiled["registers"]
        self._entries = {kind: _Entries(rows) for kind, rows in compiled["entries"].items()}
        self.registers: dict[str, dict[int, list[int]]] = {name: {} for name in self._actions}
        """By name and slot: the low and the high word."""

    def run(self, direction: str, fields: Fields, tables: re.Pattern[str] = CONTRIBUTION) -> None:
        """A packet through these tables in all stages of one direction."""
        for stage in range(STAGES):
            before = Fields(int, fields)
            for table in self._tables:
                if table["direction"] == direction and table["stage"] == stage and tables.search(table["name"]):
                    self._apply(table, before, fields)

    def action(self, name: str, fields: Fields) -> str:
        """What a table would do."""
        (table,) = (table for table in self._tables if table["name"] == name)
        return self._look_up(table, fields)[0]

    def _apply(self, table: dict[str, Any], before: Fields, after: Fields) -> None:
        name, data = self._look_up(table, before)
        action = table["actions"][name]
        local = dict(zip(action["parameters"], data, strict=True))

        def value(operand: str) -> int:
            constant = CONSTANT.fullmatch(operand)
            if constant is not None:
                return int(constant[2], 0)
            return local[operand] if operand in local else before[operand]

        for operation, to, *operands in action["does"]:
            if operation == "register":
                register, instructions = operands
                local[register] = self._execute(register, instructions, before)
                if to is not None:
                    after[to] = local[register]
            elif operation == "crc_32":
                after[to] = zlib.crc32(b"".join(_bytes(operand, before) for operand in operands))
            else:
                after[to] = _compute(operation, [value(operand) for operand in operands])

    def _look_up(self, table: dict[str, Any], fields: Fields) -> tuple[str, list[int]]:
        found = None
        if table["entries"] is not None:
            found = self._entries[table["entries"]].find(tuple(fields[name] for name in table["keys"]))
        name, data = table["default"] if found is None else found
        return name, data

    def _execute(self, register: str, action: str, fields: Fields) -> int:
        """A register action: two comparisons and two updates, all of what was there before."""
        made = self._actions[register]
        cell = self.registers[register].setdefault(fields["hdr.inagg.slot"], [0, 0])
        words = dict(zip(("lo", "hi"), cell, strict=True))
        for name, field in zip(("phv_lo", "phv_hi"), made["inputs"], strict=True):
            words[name] = 0 if field is None else fields[field]
        flags = {"cmplo": False, "cmphi": False}
        updated = dict(words)
        for instruction in made["actions"][action]:
            operation, *operands = re.split(r",? ", instruction)
            if operation in ("grt.u", "equ"):
                to, *terms = operands
                flags[f"cmp{to}"] = COMPARED[operation](sum(_term(term, words) for term in terms))
                continue
            holds = flags[operands.pop(0)] if operands[0] in flags else True
            if operation == "output":
                (source,) = operands
                outputs = {
                    "predicate": 1 << flags["cmplo"] + 2 * flags["cmphi"],
                    "mem_lo": words["lo"],
                    "alu_lo": updated["lo"],
                }
                result = outputs[source] if holds else 0
            elif holds:
                to, *sources = operands
                updated[to] = _compute(operation, [words[source] for source in sources])
        cell[:] = updated["lo"], updated["hi"]
        return result


class _Entries:
    """The constant entries of a table, first come first."""

    def __init__(self, rows: list[Any]) -> None:
        self._exact: dict[tuple[int, ...], Any] = {}
        self._ternary: list[Any] = []
        for match, action, data in rows:
            if not self._ternary and all(mask == -1 for _, mask in match):
                self._exact[tuple(value for value, _ in match)] = (action, data)
            else:
                self._ternary.append(([(value & mask, mask) for value, mask in match], (action, data)))

    def find(self, key: tuple[int, ...]) -> Any:
        if key in self._exact:
            return self._exact[key]
        for match, does in self._ternary:
            if all(is_ & mask == value for is_, (value, mask) in zip(key, match, strict=True)):
                return does
        return None


def _term(term: str, words: dict[str, int]) -> int:
    """A word, or a number, or a word that is subtracted."""
    name = term.removeprefix("-")
    value = int(name, 0) if CONSTANT.fullmatch(name) else words[name]
    return -value if term.startswith("-") else value


def _compute(operation: str, operands: list[int]) -> int:
    match operation, operands:
        case "set" | "alu_a", [value]:
            return value
        case "add", [a, b]:
            return a + b & WORD
        case "ssubu", [a, b]:
            return max(0, a - b)
        case "shl", [a, b]:
            return a << b & WORD
        case "shru", [a, b]:
            return a >> b
        case "xor", [a, b]:
            return a ^ b
        case "and", [a, b]:
            return a & b
        case "nand", [a, b]:
            return ~(a & b) & WORD
        case "maxu", [a, b]:
            return max(a, b)
    raise NotImplementedError(f"{operation} of {len(operands)} operands")


def _bytes(operand: str, fields: Fields) -> bytes:
    constant = CONSTANT.fullmatch(operand)
    if constant is not None:
        return int(constant[2], 0).to_bytes(int(constant[1]) // 8)
    return fields[operand].to_bytes(BYTES[operand])
