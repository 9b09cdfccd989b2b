"""Tables in the order of stages: gateways and actions from the assembler's input, keys and entries from
context.json."""

from __future__ import annotations

import re
from typing import Any, Final

from actions import actions
from assembly import Containers, Line, inline, listed, stages, ternary, text_of

LANE: Final = re.compile(r"_\d+(?=[_.])")
GATEWAY: Final = {
    *("name", "input_xbar", "row", "bus", "unit", "payload_row", "payload_unit", "payload", "format", "match", "xor"),
    "condition",
}
"""What the assembly says of a gateway beside its rows."""

Json = dict[str, Any]


def pipeline(root: Line, way: str, context: Json, fields: Containers, entries: dict[str, list[Any]]) -> Json:
    """The tables of a direction by stage and place in it; the first one is where a packet begins."""
    matches = [table for table in context["tables"] if table["table_type"] == "match" and table["direction"] == way]
    of = {table["name"]: table for table in matches}
    tables = []
    for number, stage in stages(root, way):
        for line in stage.below:
            if line.key.split()[0] in ("exact_match", "ternary_match", "hash_action", "gateway"):
                tables.append(_table(line, number, stage, of, fields, entries))
    tables.sort(key=lambda table: (table["stage"], table.pop("place")))
    return {"first": tables[0]["id"], "tables": tables}


def _table(line: Line, number: int, stage: Line, of: Json, fields: Containers, entries: dict[str, list[Any]]) -> Json:
    kind, unique, place = line.key.split()
    table: Json = {"id": unique, "place": int(place), "stage": number}
    gateway = line if kind == "gateway" else line.get("gateway")
    if gateway is not None:
        table["gateway"] = _gateway(gateway, fields)
    if kind == "gateway":
        return table
    p4 = line.get("p4")
    if p4 is None:
        raise ValueError(f"{unique} has no name")
    table["name"] = inline(p4.value)["name"]
    table["hash_action"] = kind == "hash_action"
    table["hit"] = listed(line.text("hit") or "")
    table["miss"] = line.text("miss") or line.text("next")
    return table | _match(of[table["name"]], actions(line, stage, unique, fields), fields, entries)


def _gateway(lines: Line, fields: Containers) -> Json:
    """What is compared, from the lowest bit on, and what is XORed to it; and row for row the mask, the value, which
    table is next if that does not depend on a match, and what is done."""
    if lines.get("range") is not None:
        raise ValueError(f"a gateway compares ranges: {lines.text('name')}")
    texts = {key: {int(bit): text for bit, text in inline(lines.text(key) or "{}").items()} for key in ("match", "xor")}
    lowest = min((bit for of in texts.values() for bit in of), default=0)
    placed: dict[str, list[list[Any]]] = {"match": [], "xor": []}
    width = 0
    for key, of in texts.items():
        for bit, text in sorted(of.items()):
            found = fields.find(text)
            if found is None:
                raise ValueError(f"a gateway reads {text}")
            at = bit - lowest
            for place in found:
                placed[key].append([at, text_of(place)])
                at += place[2]
            width = max(width, at)
    rows: list[list[Any]] = []
    for line in lines.below:
        if line.key in GATEWAY:
            continue
        mask, value = (0, 0) if line.key == "miss" else ternary(line.key, width)
        inhibits = line.text("next") or (None if line.value == "run_table" else line.value)
        rows.append([mask, value, inhibits or None, line.text("action")])
    if not rows or rows[-1][0] != 0:
        rows.append([0, 0, None, None])
    return {**placed, "rows": rows}


def _match(table: Json, does: dict[str, Json], fields: Containers, entries: dict[str, list[Any]]) -> Json:
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
    return {
        "keys": [_key(key, fields) for key in table["match_key_fields"]],
        "entries": kind if rows else None,
        "default": [default["name"].split(".")[-1], [int(p["default_value"], 0) for p in default["p4_parameters"]]],
        "actions": {
            (name := action["name"].split(".")[-1]): {
                "parameters": [parameter["name"] for parameter in action["p4_parameters"]],
                **does.get(name, {"does": []}),
            }
            for action in table["actions"]
        },
    }


def _key(key: Json, fields: Containers) -> list[Any]:
    """What the control plane calls it, and where it is, the lowest bits first."""
    name = key.get("global_name") or key["name"]
    return [key["name"], *(text_of(place) for place in fields.field(name, key["start_bit"], key["bit_width"]))]
