"""What the compiler made of the Tofino program, as far as datagrams to the data port meet it.

From the compiler's context.json (tables, entries, actions, by stage) and the assembly (what register actions do). The
tests execute it stage by stage, and compare what comes out with the reference.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

PATH = re.compile(r"check\.|verdict\.|answer\.|slot_members|outcome\.|decode_|lane_|rounding_|code_|noise_")
"""The tables of the path, by name. And those that the compiler makes of assignments that compute:"""
COMPUTES = {"add", "xor", "ssubu", "ExecuteStatefulAluFromHashPrimitive"}
LANE = re.compile(r"_\d+(?=[_.])")

Json = dict[str, Any]


def sources(folder: Path) -> dict[str, str]:
    """SHA-256 of each P4 source of the program, by its path below p4/. ``folder``: p4/."""
    files = [*folder.glob("tofino/*.p4"), *folder.glob("include/*.p4")]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


def register_actions(assembly: str) -> dict[str, Json]:
    """By register: its two words of input (as fields) and, by action, the instructions of its stateful ALU."""
    found: dict[str, Json] = {}
    for part in re.split(r"\n  (?=\S)", assembly):
        if not part.startswith("stateful "):
            continue
        name = re.search(r"p4: \{ name: ([^,]+),", part)
        inputs = re.search(r"exact group \d+: \{ (.*) \}", part)
        actions = re.search(r"\n    actions:\n((?:      .*(?:\n|$))*)", part)
        if name is None or inputs is None or actions is None:
            raise ValueError(f"cannot read this stateful table of the assembly: {part[:200]}")
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


def _primitive(made: Json) -> list[Any]:
    """Operation, destination, sources."""
    if made["name"] == "ExecuteStatefulAluFromHashPrimitive":
        details = made["stateful_alu_details"]
        return ["register", details.get("output_dst"), made["dst"]["name"], details["name"]]
    if made["name"] == "SetFieldToHashIndexPrimitive":
        return [made["idx"]["algorithm"], made["dst"]["name"], *made["hash_inputs"]]
    operands = [made[key]["name"] for key in ("src1", "src2") if key in made]
    return [made.get("operation", made["name"]), made["dst"]["name"], *operands]


def _table(table: Json, entries: dict[str, list[Any]]) -> Json:
    match = table["match_attributes"]
    actions = {action["handle"]: action for action in table["actions"]}
    default = actions[table["default_action_handle"]]
    rows = [
        [
            [[int(key["value"], 0), int(key.get("mask", "-1"), 0)] for key in entry["match_key_fields_values"]],
            actions[entry["action_handle"]]["name"].split(".")[-1],
            [int(value["value"], 0) for value in entry["action_parameters_values"]],
        ]
        for entry in sorted(table.get("static_entries", []), key=lambda entry: int(entry["priority"]))
    ]
    kind = LANE.sub("", table["name"].split(".", 1)[-1])
    if rows and entries.setdefault(kind, rows) != rows:
        raise ValueError(f"{table['name']} has other entries than the other lanes")
    (stage,) = (stage["stage_number"] for stage in match["stage_tables"])
    return {
        "name": table["name"],
        "direction": table["direction"],
        "stage": stage,
        "keys": [key.get("global_name", key["name"]) for key in table["match_key_fields"]],
        "entries": kind if rows else None,
        "default": [default["name"].split(".")[-1], [int(p["default_value"], 0) for p in default["p4_parameters"]]],
        "actions": {
            action["name"].split(".")[-1]: {
                "parameters": [parameter["name"] for parameter in action["p4_parameters"]],
                "does": [_primitive(made) for made in action["primitives"]],
            }
            for action in table["actions"]
        },
    }


def _on_the_path(table: Json) -> bool:
    if table["table_type"] != "match":
        return False
    done = {made.get("operation", made["name"]) for action in table["actions"] for made in action["primitives"]}
    return PATH.search(table["name"]) is not None or (
        table["name"].startswith("tbl_") and not done.isdisjoint(COMPUTES)
    )


def extract(context: Json, assembly: str, compiler: str, folder: Path) -> Json:
    """The artefact, as it stands in compiled.json."""
    entries: dict[str, list[Any]] = {}
    tables = [_table(table, entries) for table in context["tables"] if _on_the_path(table)]
    return {
        "compiler": compiler,
        "sources": sources(folder),
        "registers": register_actions(assembly),
        "tables": sorted(tables, key=lambda table: (table["direction"] != "ingress", table["stage"], table["name"])),
        "entries": entries,
    }


def dump(artefact: Json) -> str:
    """As text, one table or entry a line."""

    def lines(items: list[str], opening: str, closing: str) -> str:
        return f"{opening}\n" + ",\n".join(items) + f"\n{closing}"

    parts = {key: json.dumps(artefact[key]) for key in ("compiler",)}
    for key in ("sources", "registers"):
        parts[key] = lines([f"{json.dumps(k)}: {json.dumps(v)}" for k, v in artefact[key].items()], "{", "}")
    parts["tables"] = lines([json.dumps(table) for table in artefact["tables"]], "[", "]")
    rows = {kind: lines([json.dumps(row) for row in table], "[", "]") for kind, table in artefact["entries"].items()}
    parts["entries"] = lines([f"{json.dumps(kind)}: {text}" for kind, text in rows.items()], "{", "}")
    return lines([f"{json.dumps(key)}: {text}" for key, text in parts.items()], "{", "}") + "\n"
