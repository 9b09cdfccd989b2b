"""Names of the program's tables to the numbers of BF Runtime, and entries to its messages.

`bf-rt.json`, which the compiler writes and the switch tells, describes tables with keys and data; counters, registers,
multicast groups and their nodes are tables as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from inagg_proto.bfruntime.v1 import bfruntime_pb2 as pb

from ...driver import DriverError
from ..plane import Cell, Count, Entry, Group, Masked

PRIORITY: Final = "$MATCH_PRIORITY"
LOWEST_PRIORITY: Final = 1 << 20
"""The smallest number wins here, the largest in `Entry`."""

PRE_GROUPS: Final = "$pre.mgid"
PRE_NODES: Final = "$pre.node"
"""A multicast group is a list of nodes, a node the copies of one instance."""

PORTS: Final = "$PORT_METADATA"
"""Table of what the parser is told of a port, by the port; a table without actions."""
PORTS_KEY: Final = "intrinsic.ingress_port"

ACCUMULATOR: Final = re.compile(r"\blane_\d+\.acc$")
"""The registers of one lane."""


class Table:
    """One table of bf-rt.json. Methods raise `DriverError` for names that it does not have."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self.name: Final[str] = described["name"]
        self.id: Final[int] = described["id"]
        self.size: Final[int] = described.get("size", 0)
        self.keys: Final = {field["name"]: field for field in described["key"]}
        self._actions = {spec["name"].rsplit(".", 1)[-1]: spec for spec in described.get("action_specs", ())}
        fields = [item.get("singleton", item) for item in described.get("data", ())]
        self._data = {field["name"].rsplit(".", 1)[-1]: field for field in fields}

    def key(self, values: Mapping[str, int | Masked]) -> pb.TableKey:
        """A key. Ternary fields that are left out are not compared."""
        unknown = values.keys() - self.keys.keys()
        if unknown:
            raise self._unknown("key", unknown)
        return pb.TableKey(fields=[self._key_field(field, values.get(name)) for name, field in self.keys.items()])

    def _key_field(self, field: Mapping[str, Any], value: int | Masked | None) -> pb.KeyField:
        size = _bytes(field["type"])
        if field["match_type"] == "Ternary":
            masked = (
                value if isinstance(value, Masked) else Masked(value or 0, 0 if value is None else (1 << 8 * size) - 1)
            )
            ternary = pb.KeyField.Ternary(
                value=masked.value.to_bytes(size, "big"), mask=masked.mask.to_bytes(size, "big")
            )
            return pb.KeyField(field_id=field["id"], ternary=ternary)
        if not isinstance(value, int):
            raise DriverError(f"{self.name} needs an exact {field['name']}")
        return pb.KeyField(field_id=field["id"], exact=pb.KeyField.Exact(value=value.to_bytes(size, "big")))

    def action(self, name: str, params: Iterable[tuple[str, int]]) -> pb.TableData:
        """An action with its data."""
        if name not in self._actions:
            raise self._unknown("action", {name})
        spec = self._actions[name]
        fields = {field["name"]: field for field in spec["data"]}
        data = dict(params)
        if data.keys() != fields.keys():
            raise self._unknown(f"data of {name}", data.keys() ^ fields.keys())
        return pb.TableData(
            action_id=spec["id"],
            fields=[_number_field(fields[parameter], value) for parameter, value in data.items()],
        )

    def data(self, values: Mapping[str, int | Sequence[int] | Sequence[bool]]) -> pb.TableData:
        """Data of a table without actions."""
        unknown = values.keys() - self._data.keys()
        if unknown:
            raise self._unknown("data", unknown)
        return pb.TableData(fields=[_data_field(self._data[name], value) for name, value in values.items()])

    def read(self, data: pb.TableData, name: str) -> int:
        """A number in what the switch has told: where it tells one of each pipe, their sum."""
        return sum(
            int.from_bytes(field.stream, "big") for field in data.fields if field.field_id == self._data[name]["id"]
        )

    def _unknown(self, what: str, names: Iterable[str]) -> DriverError:
        return DriverError(
            f"{self.name} on the switch has other {what} than this version knows ({', '.join(sorted(names))}): its "
            "program is of another version"
        )


class BfrtTables:
    """The tables of a program and of the switch itself."""

    def __init__(self, program: bytes, fixed: bytes) -> None:
        """``program``: bf-rt.json; ``fixed``: the same of the tables that need no program. Raises `DriverError`."""
        try:
            tables = [Table(table) for text in (program, fixed) for table in json.loads(text)["tables"]]
        except (ValueError, KeyError) as error:
            raise DriverError(
                f"the switch describes its tables in a way that this version does not know: {error}"
            ) from None
        self._tables = {table.name: table for table in tables}
        self._short = {table.name.rsplit(".", 1)[-1]: table for table in tables}

    def table(self, name: str) -> Table:
        """A table by its whole name, or the last part of it. Raises `DriverError`."""
        found = self._tables.get(name) or self._short.get(name)
        if found is None:
            raise DriverError(
                f"the program on the switch has no table {name}: it is not p4/tofino/inagg.p4, or of another version"
            )
        return found

    @property
    def lanes(self) -> int:
        """Number of lanes that the program adds up: as many as it has accumulators for."""
        return sum(ACCUMULATOR.search(name) is not None for name in self._tables)

    def all_entries(self, name: str) -> pb.Entity:
        """The entity to read a whole table with."""
        return pb.Entity(table_entry=pb.TableEntry(table_id=self.table(name).id))

    def entry(self, entry: Entry) -> pb.Entity:
        """A table entry."""
        table = self.table(entry.table)
        data = table.action(entry.action, entry.params) if entry.action else table.data(dict(entry.params))
        return _entity(table, table.key(self._key(table, entry)), data)

    def without_data(self, entry: Entry) -> pb.Entity:
        """The entity that deletes an entry."""
        table = self.table(entry.table)
        return _entity(table, table.key(self._key(table, entry)))

    @staticmethod
    def _key(table: Table, entry: Entry) -> dict[str, int | Masked]:
        key = dict(entry.match)
        if PRIORITY in table.keys:
            key[PRIORITY] = LOWEST_PRIORITY - entry.priority
        return key

    def nodes(self, group: Group) -> list[pb.Entity]:
        """The nodes of a multicast group."""
        table = self.table(PRE_NODES)
        ports: dict[int, list[int]] = {}
        for replica in group.replicas:
            ports.setdefault(replica.instance, []).append(replica.port)
        return [
            _entity(
                table,
                table.key({"$MULTICAST_NODE_ID": node_id(group.number, instance)}),
                table.data({"$MULTICAST_RID": instance, "$MULTICAST_LAG_ID": [], "$DEV_PORT": of_instance}),
            )
            for instance, of_instance in ports.items()
        ]

    def group(self, group: Group) -> pb.Entity:
        """A multicast group, once its nodes are there."""
        table = self.table(PRE_GROUPS)
        ids = [
            node_id(group.number, instance)
            for instance in dict.fromkeys(replica.instance for replica in group.replicas)
        ]
        data: dict[str, Sequence[int] | Sequence[bool]] = {
            "$MULTICAST_NODE_ID": ids,
            "$MULTICAST_NODE_L1_XID_VALID": [False] * len(ids),
            "$MULTICAST_NODE_L1_XID": [0] * len(ids),
        }
        return _entity(table, table.key({"$MGID": group.number}), table.data(data))

    def counter(self, cell: Cell) -> pb.Entity:
        """A counter to read, from the device."""
        table = self.table(cell.counter)
        entity = _entity(table, table.key({"$COUNTER_INDEX": cell.offset}))
        entity.table_entry.table_flags.from_hw = True
        return entity

    def count(self, cell: Cell, entity: pb.Entity) -> Count:
        """The value of a counter that was read."""
        table = self.table(cell.counter)
        data = entity.table_entry.data
        return Count(table.read(data, "$COUNTER_SPEC_PKTS"), table.read(data, "$COUNTER_SPEC_BYTES"))

    def register(self, name: str, index: int, values: Mapping[str, int]) -> pb.Entity:
        """A register with values to write, by field (of a register that is one word: f1)."""
        table = self.table(name)
        return _entity(table, table.key({"$REGISTER_INDEX": index}), table.data(values))


def node_id(group: int, instance: int) -> int:
    """A number for the node of an instance: no instance is in two groups, but 0, which every flood has."""
    return group << 16 | instance


def _entity(table: Table, key: pb.TableKey, data: pb.TableData | None = None) -> pb.Entity:
    return pb.Entity(table_entry=pb.TableEntry(table_id=table.id, key=key, data=data))


def _bytes(kind: Mapping[str, Any]) -> int:
    widths = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64, "bool": 8}
    return (int(kind.get("width", widths.get(kind["type"], 32))) + 7) // 8


def _number_field(field: Mapping[str, Any], value: int) -> pb.DataField:
    return pb.DataField(field_id=field["id"], stream=value.to_bytes(_bytes(field["type"]), "big"))


def _data_field(field: Mapping[str, Any], value: int | Sequence[int] | Sequence[bool]) -> pb.DataField:
    if isinstance(value, int):
        return _number_field(field, value)
    if field["type"]["type"] == "bool":
        return pb.DataField(field_id=field["id"], bool_arr_val=pb.DataField.BoolArray(val=map(bool, value)))
    return pb.DataField(field_id=field["id"], int_arr_val=pb.DataField.IntArray(val=value))
