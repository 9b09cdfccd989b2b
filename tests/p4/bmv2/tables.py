"""Match-action tables: the program's own entries, and those of a control plane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from inagg_switch.p4.plane import Masked

from .expressions import compile_value
from .layout import Json, Layout, State


@dataclass(frozen=True)
class Action:
    """``run`` leaves a packet changed; it finds its data in `State.data`."""

    name: str
    parameters: tuple[str, ...]
    run: Callable[[State], None]


@dataclass(frozen=True)
class Row:
    """An entry: value and mask of each key, in order. Of those that fit, the first in the order of ``rank`` wins."""

    values: tuple[int, ...]
    masks: tuple[int, ...]
    rank: int
    action: Action
    data: tuple[int, ...]


@dataclass
class Table:
    """``next_tables``: what comes after, by action; `HIT` and `MISS` stand for all of them."""

    name: str
    fields: list[str]
    bits: list[int]
    exact: bool
    key: list[Callable[[State], int]]
    actions: dict[str, Action]
    default: tuple[Action, tuple[int, ...]]
    next_tables: dict[str, str | None]
    after: str | None
    rows: list[Row] = field(default_factory=list)
    by_value: dict[tuple[int, ...], Row] = field(default_factory=dict)

    def copy(self) -> Table:
        """One with entries of its own, so far the same."""
        return replace(self, rows=list(self.rows), by_value=dict(self.by_value))

    def add(self, row: Row) -> None:
        if self.exact:
            assert row.values not in self.by_value, f"two entries of {self.name} with one key"
            self.by_value[row.values] = row
        else:
            self.rows.append(row)
            self.rows.sort(key=lambda entry: entry.rank)

    def entry(
        self, match: tuple[tuple[str, int | Masked], ...], priority: int, action: str, data: dict[str, int]
    ) -> Row:
        """An entry of the control plane, whose larger priorities win."""
        given = dict(match)
        values, masks = [], []
        for name, bits in zip(self.fields, self.bits, strict=True):
            wanted = given.pop(name, Masked(0, 0))
            value, mask = wanted if isinstance(wanted, Masked) else (wanted, (1 << bits) - 1)
            assert value & mask == value < 1 << bits, f"{self.name}.{name}: {value:#x} under {mask:#x}"
            values.append(value)
            masks.append(mask)
        chosen = self.actions[action]
        assert not given, f"{self.name} has no {given}"
        assert set(data) == set(chosen.parameters)
        assert (priority > 0) != self.exact, "a priority where there is a choice, and nowhere else"
        return Row(tuple(values), tuple(masks), -priority, chosen, tuple(data[p] for p in chosen.parameters))

    def insert(self, row: Row) -> None:
        assert not any(self._same(row, other) for other in self.rows), f"two entries of {self.name} with one key"
        self.add(row)

    def delete(self, row: Row) -> None:
        if self.exact:
            self.by_value.pop(row.values, None)
        else:
            self.rows = [other for other in self.rows if not self._same(row, other)]

    @staticmethod
    def _same(a: Row, b: Row) -> bool:
        return (a.values, a.masks, a.rank) == (b.values, b.masks, b.rank)

    def apply(self, state: State) -> str | None:
        """Runs the action; the name of what comes next."""
        key = tuple([value(state) for value in self.key])
        row = self.by_value.get(key) if self.exact else self._first(key)
        action, data = (row.action, row.data) if row is not None else self.default
        state.data = data
        action.run(state)
        hit_or_miss = "__HIT__" if row is not None else "__MISS__"
        if hit_or_miss in self.next_tables:
            return self.next_tables[hit_or_miss]
        return self.next_tables.get(action.name, self.after)

    def _first(self, key: tuple[int, ...]) -> Row | None:
        # plain loops: this is where the time goes
        for row in self.rows:
            for k, mask, value in zip(key, row.masks, row.values):  # noqa: B905
                if k & mask != value:
                    break
            else:
                return row
        return None


def compile_table(layout: Layout, json: Json, actions: dict[int, Action]) -> Table:
    """A table of the JSON with the entries that it has there."""
    keys = json["key"]
    for key in keys:
        if key["match_type"] not in ("exact", "ternary", "lpm") or key.get("mask") is not None:
            raise NotImplementedError(f"a key of {json['name']}: {key}")
    default = json["default_entry"]
    mine = {action.name: action for action in (actions[number] for number in json["action_ids"])}
    table = Table(
        name=json["name"],
        fields=[key["name"] for key in keys],
        bits=[1 if key["target"][1] == "$valid$" else layout.field(*key["target"]).bits for key in keys],
        exact=all(key["match_type"] == "exact" for key in keys),
        key=[compile_value(layout, {"type": "field", "value": key["target"]}) for key in keys],
        actions=mine,
        default=(actions[default["action_id"]], tuple(int(v, 16) for v in default["action_data"])),
        next_tables=json["next_tables"],
        after=json["base_default_next"],
    )
    for entry in json.get("entries", ()):
        table.add(_constant(table, entry, actions))
    return table


def _constant(table: Table, json: Json, actions: dict[int, Action]) -> Row:
    """An entry of the program, whose smaller priorities win; of prefixes, longer ones."""
    values, masks, prefix = [], [], 0
    for key, bits in zip(json["match_key"], table.bits, strict=True):
        everything = (1 << bits) - 1
        if key["match_type"] == "lpm":
            prefix += key["prefix_length"]
            mask = everything ^ (everything >> key["prefix_length"])
        elif key["match_type"] == "ternary":
            mask = int(key["mask"], 16)
        else:
            mask = everything
        values.append(int(key["key"], 16) & mask)
        masks.append(mask)
    rank = -prefix if prefix or any(key["match_type"] == "lpm" for key in json["match_key"]) else json["priority"]
    call = json["action_entry"]
    data = tuple(int(value, 16) for value in call["action_data"])
    return Row(tuple(values), tuple(masks), rank, actions[call["action_id"]], data)
