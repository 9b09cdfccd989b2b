"""What actions of a table do, instruction for instruction, as it stands in the assembler's input."""

from __future__ import annotations

import re
from typing import Any, Final

from assembly import Containers, Line, Slice, inline, listed, number_range, pairs, split, text_of

Json = dict[str, Any]


def actions(line: Line, stage: Line, unique: str, fields: Containers) -> dict[str, Json]:
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
