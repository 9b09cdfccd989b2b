"""Names of the P4 program to the numbers of P4Runtime, and entries to its messages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from google.protobuf import text_format

from inagg_proto.p4runtime.v1 import p4runtime_pb2 as pb

from ...driver import DriverError
from ..plane import Cell, Count, Entry, Group, Masked


def read_p4info(path: Path) -> pb.P4Info:
    """The P4Info in a text file. Raises `DriverError`."""
    try:
        return text_format.Parse(path.read_text(), pb.P4Info())
    except OSError as error:
        raise DriverError(f"cannot read {path}: {error.strerror}") from None
    except text_format.ParseError as error:
        raise DriverError(f"{path} is no P4Info that this version knows: {error}") from None


def number_bytes(value: int) -> bytes:
    """A number as P4Runtime writes it: most significant byte first, as short as it can be (section 8.4)."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


class P4Names:
    """The numbers of one program. Its methods raise `DriverError` for what the program does not have."""

    def __init__(self, info: pb.P4Info) -> None:
        self.info: Final = info
        self._tables = {table.preamble.alias: table for table in info.tables}
        self._fields = {
            (table.preamble.alias, field.name): field for table in info.tables for field in table.match_fields
        }
        self._actions = {action.preamble.alias: action for action in info.actions}
        self._params = {
            (action.preamble.alias, param.name): param.id for action in info.actions for param in action.params
        }
        self._counters = {counter.preamble.alias: counter.preamble.id for counter in info.counters}
        self._names = {number: name for name, number in self._counters.items()}

    def entity(self, what: Entry | Group) -> pb.Entity:
        """An entry or group as a message."""
        if isinstance(what, Group):
            return _group(what)
        try:
            action = pb.Action(
                action_id=self._actions[what.action].preamble.id,
                params=[
                    pb.Action.Param(param_id=self._params[what.action, name], value=number_bytes(value))
                    for name, value in what.params
                ],
            )
            match = [self._match(what.table, name, value) for name, value in what.match]
            table = self._tables[what.table].preamble.id
        except KeyError as error:
            raise DriverError(f"the program has no {_said(error)}: its P4Info is of another version") from None
        entry = pb.TableEntry(table_id=table, match=match, action=pb.TableAction(action=action), priority=what.priority)
        return pb.Entity(table_entry=entry)

    def _match(self, table: str, name: str, value: int | Masked) -> pb.FieldMatch:
        field = self._fields[table, name]
        if isinstance(value, Masked):
            ternary = pb.FieldMatch.Ternary(value=number_bytes(value.value), mask=number_bytes(value.mask))
            return pb.FieldMatch(field_id=field.id, ternary=ternary)
        return pb.FieldMatch(field_id=field.id, exact=pb.FieldMatch.Exact(value=number_bytes(value)))

    def counter(self, cell: Cell) -> pb.Entity:
        """The entity to read a counter with."""
        try:
            number = self._counters[cell.counter]
        except KeyError as error:
            raise DriverError(f"the program has no {_said(error)}: its P4Info is of another version") from None
        return pb.Entity(counter_entry=pb.CounterEntry(counter_id=number, index=pb.Index(index=cell.offset)))

    def count(self, entity: pb.Entity) -> tuple[Cell, Count]:
        """A counter that was read, and its count."""
        entry = entity.counter_entry
        cell = Cell(self._names.get(entry.counter_id, str(entry.counter_id)), entry.index.index)
        return cell, Count(entry.data.packet_count, entry.data.byte_count)


def _group(group: Group) -> pb.Entity:
    replicas = [pb.Replica(egress_port=replica.port, instance=replica.instance) for replica in group.replicas]
    entry = pb.MulticastGroupEntry(multicast_group_id=group.number, replicas=replicas)
    return pb.Entity(packet_replication_engine_entry=pb.PacketReplicationEngineEntry(multicast_group_entry=entry))


def _said(error: KeyError) -> str:
    what = error.args[0]
    return " ".join(what) if isinstance(what, tuple) else str(what)
