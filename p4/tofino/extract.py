"""What the Tofino compiler made of the program: all that a packet meets, from parser to deparser.

From the assembler's input (.bfa): where fields are, parsers, deparsers, gateways, which table is next, what actions do.
From context.json: keys and entries of tables. The tests execute it, and compare what comes out with the reference.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final

from assembly import Containers, Line, Slice, inline, listed, number_range, pairs, part, read, split, stages

LANE: Final = re.compile(r"_\d+(?=[_.])")
WAYS: Final = ("ingress", "egress")
TOLD: Final = ("drop_ctl", "egress_unicast_port", "egress_multicast_group_0")
"""What the traffic manager is told."""
GATEWAY: Final = {
    *("name", "input_xbar", "row", "bus", "unit", "payload_row", "payload_unit", "payload", "format", "match", "xor"),
    "condition",
}
"""What the assembly says of a gateway beside its rows."""
REGISTERS: Final = {"byte0": 8, "byte1": 8, "half": 16, "ctr_zero": 1, "ctr_neg": 1}
"""What a parser compares with, and how many bits it has."""

Json = dict[str, Any]


def sources(folder: Path) -> dict[str, str]:
    """SHA-256 of each P4 source of the program, by its path below p4/. ``folder``: p4/."""
    files = [*folder.glob("tofino/*.p4"), *folder.glob("include/*.p4")]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


def text_of(at: Slice) -> str:
    """`W3` or `B5(2)` or `H2(0..8)`."""
    name, low, width = at
    if (low, width) == (0, {"B": 8, "H": 16, "W": 32}[name.lstrip("T")[0]]):
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


# --- parsers and deparsers ---


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


# --- tables ---


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
    return table | _match(of[table["name"]], _actions(line, stage, unique, fields), fields, entries)


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


def _actions(line: Line, stage: Line, unique: str, fields: Containers) -> dict[str, Json]:
    """What actions of a table do, in its own lines or in those of a table that belongs to it."""
    found: dict[str, Json] = {}
    hashes = _hashes(line, fields)
    indirect = (other for other in stage.below if other.key == f"ternary_indirect {unique}$tind")
    for table in (line, *indirect):
        actions = table.get("actions")
        for action in actions.below if actions is not None else ():
            name = action.key.partition("(")[0].split(".")[-1]
            found[name] = _action(action, hashes, fields)
    return found


def _hashes(line: Line, fields: Containers) -> dict[int, list[Line]]:
    """The lines of hash functions by unit of the hash distribution."""
    groups: dict[int, list[int]] = {}
    functions: dict[int, list[Line]] = {}
    crossbar = line.get("input_xbar")
    for part_of in crossbar.below if crossbar is not None else ():
        words = part_of.key.split()
        if words[:2] == ["hash", "group"]:
            groups[int(words[2])] = [int(number) for number in listed(part_of.text("table") or "")]
        elif words[0] == "hash":
            functions.setdefault(int(words[1]), []).extend(part_of.below)
    units = line.get("hash_dist")
    return {
        int(unit.key): [it for number in groups[int(inline(unit.value)["hash"])] for it in functions.get(number, [])]
        for unit in (units.below if units is not None else ())
    }


def _index(hashes: dict[int, list[Line]], fields: Containers) -> list[list[Any]]:
    """The index of a register or counter, as places by their first bit in it. It is fields, one after the other."""
    (lines,) = hashes.values()
    lowest = min(number_range(line.key)[0] for line in lines)
    found = []
    for line in lines:
        at = number_range(line.key)[0] - lowest
        for place in fields.find(line.value) or ():
            found.append([at, text_of(place)])
            at += place[2]
        if at != number_range(line.key)[1] - lowest + 1:
            raise ValueError(f"an index has {line.value}")
    return sorted(found)


CRC: Final = re.compile(
    r"slice\(stripe\(crc_rev\(0x82608edb, 0xffffffff, 0xffffffff, (\d+), (\{.*?\}), (\{.*?\})\)\), (\d+)\.\.(\d+)\)"
)
"""CRC-32 (IEEE 802.3), as zlib's. How many bits; fields and numbers by their lowest bit."""


def _crc(lines: list[Line], fields: Containers) -> list[Any]:
    """What a hash is of: how many bits, and places and numbers by their first bit, the last one the lowest."""
    bits, message = 0, {}
    for line in lines:
        found = CRC.fullmatch(line.value)
        if found is None:
            raise ValueError(f"a hash is {line.value}")
        bits = int(found[1])
        for at, text in inline(found[2]).items():
            bit = int(at)
            for place in fields.find(text) or ():
                message[bit] = text_of(place)
                bit += place[2]
        for at, text in inline(found[3]).items():
            message[number_range(at)[0]] = int(text, 0)
    return [bits, sorted(message.items())]


def _action(lines: Line, hashes: dict[int, list[Line]], fields: Containers) -> Json:
    """Instructions as operation, places that are written, and sources; each of one container."""
    made: Json = {"does": []}
    params: list[str] = []
    aliases: list[tuple[str, str]] = []
    for line in lines.below:
        text = line.value
        key, _, value = text.partition(":")
        if text.startswith("{"):
            aliases = pairs(text)
        elif key == "p4_param_order":
            params = list(inline(value))
        elif key == "next_table" and value.strip() != "0":
            made["next"] = int(value)
        elif key == "next_table_miss":
            made["next_miss"] = value.strip()
        elif not re.match(r"(hit_allowed|default_(only_)?action|handle|next_table|mod_cond_value|0$)", text):
            made["does"] += _instruction(text, _Sources(params, aliases, hashes, fields), hashes, fields)
    return made


class _Sources:
    """What operands of an action name, beside containers and fields."""

    def __init__(self, params: list[str], aliases: list[tuple[str, str]], hashes: Any, fields: Containers) -> None:
        self.params, self.aliases, self.hashes, self.fields = params, aliases, hashes, fields

    def of(self, text: str) -> list[Any]:
        """A source: `["at", place]`, `["is", number]`, `["data", parameter, first bit]`, ..."""
        if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", text):
            return ["is", int(text, 0)]
        name, _, bits_of = text.rpartition(".")
        if text in self.params:
            return ["data", text, 0]
        if re.fullmatch(r"\d+-\d+", bits_of) and name in self.params:
            return ["data", name, int(bits_of.partition("-")[0])]
        places = self.fields.find(text)
        if places is not None:
            return ["at", *(text_of(place) for place in places)]
        if text.startswith("$"):
            values = [value for name, value in self.aliases if name == text and re.fullmatch(r"\d+|0x[0-9a-f]+", value)]
            return ["is", int(values[0], 0)]
        if text.startswith("hash_dist("):
            units = {int(unit) for unit in split(text[10:-1])[:-1]}
            lines = [line for unit in units for line in self.hashes[unit]]
            return ["crc_32", *_crc(list({id(line): line for line in lines}.values()), self.fields)]
        if "$salu" in text:
            bits = re.search(r"\((\d+)\.\.\d+\)$", text)
            return ["register", int(bits[1]) if bits else 0]
        raise ValueError(f"cannot read the operand {text}")

    def parts(self, data: str, size: int) -> list[tuple[int, int, list[Any]]]:
        """What action data of a whole container are made of: first and last bit in the container, and a source."""
        bus = re.compile(r"(?:\$adf_\w+|immediate)\((\d+)\.\.\d+\)")
        slots = [bus.fullmatch(value) for name, value in self.aliases if name == data]
        base = next((int(slot[1]) % size for slot in slots if slot), None)
        if base is None:
            raise ValueError(f"where {data} is")
        found = []
        for name, value in self.aliases:
            at = re.fullmatch(re.escape(data) + r"\((\d+)(?:\.\.(\d+))?\)", value)
            if at is not None:
                # a number, or another name of a parameter
                source = name if name.startswith("$") else next(of for of, other in self.aliases if other == name)
                found.append((base + int(at[1]), base + int(at[2] or at[1]), self.of(source)))
        return found


def _instruction(text: str, sources: _Sources, hashes: dict[int, list[Line]], fields: Containers) -> list[list[Any]]:
    attached = re.fullmatch(r"\S+\$(salu|stats)\.([\w.]+)\((.*)\)", text)
    if attached is not None:
        kind, name, inside = attached.groups()
        *action, index = split(inside)
        at = [] if index == "0" else _index(hashes, fields) if index == "$hash_dist" else None
        if at is None:
            raise ValueError(f"the index of {text}")
        return [["execute", name, *action, at]] if kind == "salu" else [["count", name, at]]
    operation, _, rest = text.partition(" ")
    to, *operands = split(rest)
    written = fields.find(to)
    if written is None or len(written) != 1:
        raise ValueError(f"{text} writes no one container")
    (place,) = written
    name = place[0]
    if operation == "bitmasked-set":
        if operands[1] != name:
            raise ValueError(f"{text} has another background")
        made = sources.parts(operands[0], place[2])
        return [["set", text_of((name, first, last - first + 1)), it] for first, last, it in made]
    if operation == "deposit-field":
        return _deposit(place, *operands, sources, fields)
    return [[operation, text_of(place), *(sources.of(operand) for operand in operands)]]


def _deposit(to: Slice, source: str, background: str, sources: _Sources, fields: Containers) -> list[list[Any]]:
    """Bits of a source, which may be rotated, before the bits of another container."""
    name, low, width = to
    whole = fields.find(name)
    assert whole is not None
    size = whole[0][2]
    made: list[list[Any]] = []
    if background != name:
        for first, last in ((0, low), (low + width, size)):
            if last > first:
                made.append(
                    ["set", text_of((name, first, last - first)), ["at", text_of((background, first, last - first))]]
                )
    found = fields.find(source)
    if found is not None:
        (start,) = found
        bits = [(start[1] + n) % size for n in range(width)]
        turn = bits.index(0) if 0 in bits[1:] else width
        places = [text_of((start[0], bits[0], turn))] + ([text_of((start[0], 0, width - turn))] if turn < width else [])
        return [*made, ["set", text_of(to), ["at", *places]]]
    return [*made, ["set", text_of(to), sources.of(source)]]


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


# --- all of it ---


def extract(context: Json, assembly: str, compiler: str, folder: Path) -> Json:
    """The artefact, as it stands in compiled.json. Raises ValueError if something cannot be read, as nothing may be
    left out."""
    root = read(assembly)
    entries: dict[str, list[Any]] = {}
    places = {way: Containers(part(root, "phv", way)) for way in WAYS}
    made: Json = {
        "compiler": compiler,
        "sources": sources(folder),
        "registers": registers(assembly, places["ingress"]),
        "parsers": {way: parser(part(root, "parser", way), places[way]) for way in WAYS},
        "deparsers": {way: deparser(part(root, "deparser", way), places[way]) for way in WAYS},
        "pipelines": {way: pipeline(root, way, context, places[way], entries) for way in WAYS},
    }
    return made | {"entries": entries}


def registers(assembly: str, fields: Containers) -> dict[str, Json]:
    """`register_actions`, with places for fields."""
    found = register_actions(assembly)
    for register in found.values():
        register["inputs"] = [name and [text_of(place) for place in fields.field(name)] for name in register["inputs"]]
    return found


def dump(artefact: Json) -> str:
    """As text, a table, a state of a parser or an entry a line."""

    def text(value: Any, depth: int) -> str:
        if depth == 0 or not isinstance(value, dict | list) or not value:
            return json.dumps(value, separators=(",", ":"))
        if isinstance(value, dict):
            items = [f"{json.dumps(key)}: {text(inner, depth - 1)}" for key, inner in value.items()]
            return "{\n" + ",\n".join(items) + "\n}"
        return "[\n" + ",\n".join(text(inner, depth - 1) for inner in value) + "\n]"

    depths = {"compiler": 0, "sources": 1, "registers": 1, "parsers": 3, "deparsers": 2, "pipelines": 3, "entries": 2}
    parts = [f"{json.dumps(key)}: {text(artefact[key], depth)}" for key, depth in depths.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"
