"""What the stateful ALUs do: the register actions, as they stand in the assembler's input."""

from __future__ import annotations

import re
from typing import Any

from assembly import Containers, text_of

Json = dict[str, Any]


def registers(assembly: str, fields: Containers) -> dict[str, Json]:
    """`register_actions`, with places for fields."""
    found = register_actions(assembly)
    for register in found.values():
        register["inputs"] = [name and [text_of(place) for place in fields.field(name)] for name in register["inputs"]]
    return found


def register_actions(assembly: str) -> dict[str, Json]:
    """By register: its two words of input (as fields) and, by action, the instructions of its stateful ALU."""
    found: dict[str, Json] = {}
    for table in re.split(r"\n  (?=\S)", assembly):
        if not table.startswith("stateful "):
            continue
        name = re.search(r"p4: \{ name: ([^,]+),", table)
        inputs = re.search(r"exact group \d+: \{ (.*) \}", table)
        actions = re.search(r"\n    actions:\n((?:      .*(?:\n|$))*)", table)
        if name is None or inputs is None or actions is None:
            raise ValueError(f"cannot read this stateful table of the assembly: {table[:200]}")
        words: dict[int, str] = {}
        for bit, field, first in re.findall(r"(\d+): ([^,]+?)(?:\.(\d+)-\d+)?(?:,|$)", inputs[1]):
            word, offset = divmod(int(bit) - 64, 32)  # this bus brings the two words from its bit 64 on
            if words.setdefault(word, field) != field or offset != int(first or 0):
                raise ValueError(f"{name[1]}: not a whole field as a word: {inputs[0]}")
        instructions: dict[str, list[str]] = {}
        for line in actions[1].splitlines():
            if line.startswith("      - "):
                instructions[list(instructions)[-1]].append(line.removeprefix("      - "))
            else:
                instructions[line.strip().removesuffix(":")] = []
        found[name[1]] = {"inputs": [words.get(0), words.get(1)], "actions": instructions}
    return found
