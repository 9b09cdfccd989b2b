"""Tables of one direction: matches, gateways, actions, registers and counters, stage by stage."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final

from tests.p4.entry_keys import key_of

from inagg_switch.p4.plane import Entry, Masked

from .containers import Containers, place

Json = dict[str, Any]
STAGES: Final = 12
WORD: Final = 0xFFFFFFFF
CONSTANT: Final = re.compile(r"(?:(\d+)w)?(0x[0-9a-f]+|\d+)")
COMPARED: Final[dict[str, Callable[[int], bool]]] = {
    "grt.u": lambda total: total > 0,
    "equ": lambda total: total & WORD == 0,
}
"""What a comparison of a register action says of the sum of its terms."""
PREDICATE_BIT: Final = 4
"""From which bit of its output a register action says which of its comparisons hold: one bit for each of four cases."""

Row = tuple[str, list[int]]
"""An action and its data."""


class Entries:
    """The entries of a table: constant ones, first come first, or a control plane's, the highest priority first."""

    def __init__(self, rows: Iterable[tuple[list[tuple[int, int]], str, list[int]]] = ()) -> None:
        self._exact: dict[tuple[int, ...], Row] = {}
        self._ternary: list[tuple[list[tuple[int, int]], Row]] = []
        self._written: dict[tuple[object, ...], tuple[int, list[tuple[int, int]], Row]] = {}
        self._found: dict[tuple[int, ...], Row | None] = {}
        for match, action, data in rows:
            if not self._ternary and all(mask == -1 for _, mask in match):
                self._exact[tuple(value for value, _ in match)] = (action, data)
            else:
                self._ternary.append(([(value & mask, mask) for value, mask in match], (action, data)))

    def find(self, key: tuple[int, ...]) -> Row | None:
        """What the first entry does that fits; None if none does."""
        if key in self._exact:
            return self._exact[key]
        if key not in self._found:
            self._found[key] = self._search(key)
        return self._found[key]

    def _search(self, key: tuple[int, ...]) -> Row | None:
        for match, does in self._ternary:
            if all(value & mask == wanted for value, (wanted, mask) in zip(key, match, strict=True)):
                return does
        return None

    def write(self, entry: Entry, match: list[tuple[int, int]], row: Row | None) -> None:
        """Insert an entry; delete it if ``row`` is None."""
        if row is None:
            del self._written[key_of(entry)]
        else:
            assert key_of(entry) not in self._written, f"{entry} is there"
            self._written[key_of(entry)] = entry.priority, match, row
        self._found.clear()
        in_order = sorted(self._written.values(), key=lambda written: -written[0])
        self._ternary = [([(value & mask, mask) for value, mask in match], does) for _, match, does in in_order]


class Registers:
    """What stays between packets: registers and counters."""

    def __init__(self, actions: Json) -> None:
        self._actions = actions
        self.words: dict[str, dict[int, list[int]]] = {name: {} for name in actions}
        """By register and index: the low and the high word."""
        self.counts: dict[str, dict[int, list[int]]] = {}
        """By counter and index: packets and bytes."""

    def count(self, name: str, index: int, size: int) -> None:
        cell = self.counts.setdefault(name, {}).setdefault(index, [0, 0])
        cell[0] += 1
        cell[1] += size

    def execute(self, register: str, action: str, index: int, containers: Containers) -> int:
        """A register action: two comparisons and two updates, all of what was there before."""
        made = self._actions[register]
        cell = self.words[register].setdefault(index, [0, 0])
        words = dict(zip(("lo", "hi"), cell, strict=True))
        for name, places in zip(("phv_lo", "phv_hi"), made["inputs"], strict=True):
            words[name] = containers.join(places or ())
        flags = {"cmplo": False, "cmphi": False}
        updated = dict(words)
        result = 0
        for instruction in made["actions"][action]:
            operation, *operands = re.split(r",? ", instruction)
            if operation in COMPARED:
                to, *terms = operands
                flags[f"cmp{to}"] = COMPARED[operation](sum(_term(term, words) for term in terms))
                continue
            holds = flags[operands.pop(0)] if operands[0] in flags else True
            if operation == "output":
                (source,) = operands
                outputs = {
                    "predicate": 1 << PREDICATE_BIT + flags["cmplo"] + 2 * flags["cmphi"],
                    "mem_lo": words["lo"],
                    "alu_lo": updated["lo"],
                }
                result = outputs[source] if holds else 0
            elif holds:
                to, *sources = operands
                updated[to] = compute(operation, [words[source] for source in sources], WORD)
        cell[:] = updated["lo"], updated["hi"]
        return result


def _term(term: str, words: dict[str, int]) -> int:
    """A word, or a number, or a word that is subtracted."""
    name = term.removeprefix("-")
    value = int(name, 0) if CONSTANT.fullmatch(name) else words[name]
    return -value if term.startswith("-") else value


def compute(operation: str, operands: list[int], mask: int) -> int:
    """``mask``: of the bits of the result."""
    match operation, operands:
        case "set" | "alu_a", [value]:
            return value & mask
        case "add", [a, b]:
            return a + b & mask
        case "ssubu", [a, b]:
            return max(0, a - b)
        case "shl", [a, b]:
            return a << b & mask
        case "shru", [a, b]:
            return a >> b
        case "xor", [a, b]:
            return a ^ b
        case "and", [a, b]:
            return a & b
        case "nand", [a, b]:
            return ~(a & b) & mask
        case "maxu", [a, b]:
            return max(a, b)
    raise NotImplementedError(f"{operation} of {len(operands)} operands")


class Pipeline:
    """The tables of one direction, from the first one, each saying which one is next."""

    def __init__(self, program: Json, entries: dict[str, Entries], registers: Registers) -> None:
        self._registers = registers
        self._first: str = program["first"]
        self._tables: dict[str, Json] = {table["id"]: table for table in program["tables"]}
        self._entries = {
            name: entries[table["entries"]] if table.get("entries") else Entries()
            for name, table in self._tables.items()
        }
        self.by_name = {table["name"]: table for table in program["tables"] if table.get("name")}

    def write(self, entry: Entry, insert: bool) -> bool:
        """Insert or delete an entry; False if the table is none of this direction."""
        found = [table for name, table in self.by_name.items() if name.rsplit(".", 1)[-1] == entry.table]
        if not found:
            return False
        (table,) = found
        given = dict(entry.match)
        match = []
        for key in table["keys"]:
            value = given.pop(key[0], Masked(0, 0))
            match.append((value.value, value.mask) if isinstance(value, Masked) else (value, -1))
        assert not given, f"{entry.table} has no key {', '.join(given)}"
        params, names = dict(entry.params), table["actions"][entry.action]["parameters"]
        if len(names) == 1:  # which the control plane may call otherwise
            params = dict(zip(names, params.values(), strict=True))
        assert set(params) == set(names), f"{entry.action} has other parameters"
        row = (entry.action, [params[name] for name in names]) if insert else None
        self._entries[table["id"]].write(entry, match, row)
        return True

    def run(self, containers: Containers, size: int) -> None:
        """A packet of ``size`` bytes, as counters count it, through all stages."""
        name = self._first
        for stage in range(STAGES):
            before = Containers(containers)
            while name != "END" and self._tables[name]["stage"] == stage:
                name = self._apply(self._tables[name], before, containers, size)
        assert name == "END", f"{name} was left out"

    def _apply(self, table: Json, before: Containers, after: Containers, size: int) -> str:
        """Which table is next."""
        goes_to, runs, chosen = None, True, None
        if "gateway" in table:
            goes_to, chosen = self._through(table, before)
            # A row that names the next table keeps the match from counting. Of a table that matches nothing it is the
            # row that runs the action.
            runs = (goes_to is None) != table.get("hash_action", False)
        if "actions" not in table:
            assert goes_to is not None
            return str(goes_to)
        if chosen is not None:
            self._act(table, chosen, [], before, after, size)
            return str(goes_to)
        if not runs:
            return str(table["miss"] if goes_to is None else goes_to)
        found = None
        if table["keys"]:
            key = tuple(before.join(places) for _, *places in table["keys"])
            found = self._entries[table["id"]].find(key)
        action, data = table["default"] if found is None else found
        self._act(table, action, data, before, after, size)
        if goes_to is not None:
            return str(goes_to)
        if found is None:
            return str(table["actions"][action].get("next_miss", table["miss"]))
        hits = table["hit"]
        return str(hits[table["actions"][action].get("next", 0)] if len(hits) > 1 else hits[0])

    @staticmethod
    def _through(table: Json, before: Containers) -> tuple[str | None, str | None]:
        """Which table the gateway in front of this one names as the next, if any, and the action that it has done."""
        gateway = table["gateway"]
        value = before.sum(gateway["match"]) ^ before.sum(gateway["xor"])
        for mask, wanted, goes_to, action in gateway["rows"]:
            if value & mask == wanted:
                return goes_to, action
        raise AssertionError(f"no row of the gateway of {table['id']} fits")

    def _act(self, table: Json, name: str, data: list[int], before: Containers, after: Containers, size: int) -> None:
        action = table["actions"][name]
        local: dict[str, int] = dict(zip(action["parameters"], data, strict=True))
        result = 0
        for operation, what, *operands in action["does"]:
            if operation == "execute":
                instructions, index = operands
                result = self._registers.execute(what, instructions, before.sum(index), before)
            elif operation == "count":
                self._registers.count(what, before.sum(operands[0]), size)

        def value(kind: str, *of: Any) -> int:
            match kind:
                case "is":
                    return int(of[0])
                case "at":
                    return before.join(of)
                case "data":
                    return local[of[0]] >> int(of[1])
                case "register":
                    return result >> int(of[0])
                case "crc_32":
                    bits, parts = of
                    return zlib.crc32(before.sum(parts).to_bytes(bits // 8))
            raise NotImplementedError(kind)

        for operation, what, *operands in action["does"]:
            if operation not in ("execute", "count"):
                to = place(what)
                mask = (1 << to[2]) - 1
                after.write(to, compute(operation, [value(*operand) & mask for operand in operands], mask))
