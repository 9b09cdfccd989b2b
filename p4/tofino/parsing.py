"""Parsers and deparsers, as they stand in the assembler's input."""

from __future__ import annotations

import re
from typing import Any, Final

from assembly import Containers, Line, inline, listed, number_range, one, ternary

TOLD: Final = ("drop_ctl", "egress_unicast_port", "egress_multicast_group_0")
"""What the traffic manager is told."""
REGISTERS: Final = {"byte0": 8, "byte1": 8, "half": 16, "ctr_zero": 1, "ctr_neg": 1}
"""What a parser compares with, and how many bits it has."""

Json = dict[str, Any]


def parser(lines: Line, fields: Containers) -> Json:
    """States with their rows: what a row takes from the packet, and where it goes on."""
    states = lines.get("states")
    if states is None:
        raise ValueError("a parser has no states")
    start = lines.text("start")
    return {
        "start": start or "start",
        "or": listed(lines.text("bitwise_or") or ""),
        "states": {state.key.split()[0]: _state(state, fields) for state in states.below},
    }


def _state(lines: Line, fields: Containers) -> Json:
    match: list[str] = []
    rows = []
    for line in lines.below:
        if line.key == "match":
            match = listed(line.value)
        elif line.key != "option":
            rows.append(line)
    width = sum(REGISTERS[register] for register in match)
    found = [_row(row, width, fields) for row in rows]
    if any(row["mask"] == 0 for row in found[:-1]):
        # p4c before its pull request 5753 lost what parsers for Tofino 1 select on.
        raise ValueError(f"the state {lines.key} of a parser takes its first way always: the compiler is broken")
    return {"match": match, "rows": found}


def _row(lines: Line, width: int, fields: Containers) -> Json:
    mask, value = ternary(lines.key, width)
    row: Json = {"mask": mask, "value": value, "extracts": [], "constants": [], "checksums": [], "load": {}}
    row |= {"shift": 0, "next": "end", "counter": None}
    for line in lines.below:
        if re.fullmatch(r"\d+(\.\.\d+)?", line.key):
            row["extracts"].append([*number_range(line.key), one(fields, line.value)])
        elif line.key.startswith("checksum"):
            row["checksums"].append(_check(line, fields))
        elif line.key == "load":
            row["load"] = {register: number_range(text) for register, text in inline(line.value).items()}
        elif line.key == "shift":
            row["shift"] = int(line.value)
        elif line.key == "next":
            row["next"] = line.value
        elif line.key == "counter":
            imm = line.text("imm")
            row["counter"] = ["set", int(imm, 0)] if imm else [*line.value.split()[:1], int(line.value.split()[1], 0)]
        elif line.key in ("buf_req", "intr_md", "priority", "save"):
            pass
        elif fields.find(line.key) is not None:
            row["constants"].append([one(fields, line.key), int(line.value, 0)])
        else:
            raise ValueError(f"cannot read this line of a parser: {line.key}: {line.value}")
    return row


def _check(lines: Line, fields: Containers) -> Json:
    if lines.text("type") != "VERIFY":
        raise ValueError(f"a checksum of the parser that is {lines.text('type')}")
    to = lines.text("dest")
    ranges = [number_range(text) for text in listed(lines.text("mask") or "")]
    return {
        "bytes": sorted({byte for first, last in ranges for byte in range(first, last + 1)}),
        "start": lines.text("start") == "1",
        "end": lines.text("end") == "1",
        "to": None if to is None else one(fields, to),
    }


def deparser(lines: Line, fields: Containers) -> Json:
    """What is emitted in which order, if which bit is set; checksums; what the traffic manager is told."""
    dictionary: list[Any] = []
    partial: dict[str, list[Any]] = {}
    full: list[Any] = []
    told: dict[str, str] = {}
    for line in lines.below:
        if line.key == "dictionary":
            for emit in line.below:
                key = emit.key.split()
                source = int(key[1]) if key[0] == "full_checksum" else one(fields, emit.key)
                dictionary.append([source, one(fields, emit.value)])
        elif line.key.startswith("partial_checksum"):
            partial[line.key] = [_partial(item, fields) for item in line.below]
        elif line.key.startswith("full_checksum"):
            units = [item.value.partition(":")[0] for item in line.below]
            full.append([int(line.key.split()[1]), units])
        elif line.key in TOLD:
            value = line.value or line.below[0].value
            told[line.key] = one(fields, value.strip("{} ").partition(":")[0])
    checksums = {number: [part for unit in units for part in partial[unit]] for number, units in full}
    return {"dictionary": dictionary, "checksums": [checksums[n] for n in sorted(checksums)], "told": told}


def _partial(item: Line, fields: Containers) -> list[Any]:
    source, _, options = item.value.partition(":")
    return [one(fields, source), int(inline(options).get("swap", "0"), 0)]
