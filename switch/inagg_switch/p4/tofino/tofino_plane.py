"""A Tofino switch as a `p4.plane.Plane`, over BF Runtime.

bf_switchd has been started with the program. **Never tried on a Tofino**: the tests speak with a
server that was written from the interface.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from inagg_proto.bfruntime.v1 import bfruntime_pb2 as pb
from inagg_wire.formats import CHILDREN_MAX

from ...binding import Binding
from ...driver import DriverError
from ...service.access import Access
from ..builds import Build
from ..entries import FLOOD_GROUP
from ..grpc_stream import GONE, WriteFailed, batches
from ..network import Network
from ..p4_driver import P4Driver
from ..plane import Cell, Count, Delete, Group, SlotState, Update
from ..program import TOFINO
from .bfruntime_client import Client
from .bfruntime_info import PORTS, PRE_GROUPS, PRE_NODES, BfrtTables
from .tofino_program import OUTCOME_CELLS, PASSES, tags

PROGRAM: Final = "inagg"
"""The name of the program on the switch, unless told otherwise."""
TABLES: Final = ("binding", PRE_GROUPS, PRE_NODES, "copies", "forward", "local", "to_switch", PORTS, "onward")
"""Tables that a control plane writes, in the order in which they are to be cleared: first of all nothing is accepted
any more."""


class TofinoPlane:
    """Implements `p4.plane.Plane`. Removes what an earlier control plane has left. Raises `DriverError`."""

    def __init__(
        self,
        target: str,
        *,
        passes: int = 1,
        program: str = PROGRAM,
        device: int = 0,
        access: Access | None = None,
    ) -> None:
        """``target``: host:port. ``passes``: the most of a job. ``program``: its name on the switch."""
        self._client = Client(target, program, device, access)
        try:
            self._tables = BfrtTables(*self._client.info)
            self.build = self._build(passes)
            self._forget()
        except BaseException:
            self._client.close()
            raise

    def _build(self, passes: int) -> Build:
        """The build that the switch runs, by the sizes of its tables."""
        lanes, slots = self._tables.lanes * passes, self._tables.table("tags").size
        self._pass_slots = slots // PASSES
        slots = slots if passes == 1 else self._pass_slots
        jobs = self._tables.table("outcomes").size // (CHILDREN_MAX * OUTCOME_CELLS)
        if not (lanes and slots and jobs):
            raise DriverError(f"the program {self._client.program} has no lanes: it is not p4/tofino/inagg.p4")
        here = Path("p4/tofino/inagg.p4"), Path("bf-rt.json")
        return Build(f"{self._client.program}-nat8-{lanes}", ("nat8",), lanes, slots, jobs, *here)

    def _forget(self) -> None:
        """Remove all entries, and the multicast groups that may be ours: bf_switchd keeps them when a control plane
        goes."""
        ours = range(FLOOD_GROUP, FLOOD_GROUP + 1 + self.build.jobs)
        for name in TABLES:
            found = self._client.read([self._tables.all_entries(name)])
            keys = [entity.table_entry for entity in found if entity.table_entry.key.fields]  # the default has none
            if name in (PRE_GROUPS, PRE_NODES):
                keys = [entry for entry in keys if group_of(entry, name) in ours]
            updates = [
                pb.Update(
                    type=pb.Update.DELETE,
                    entity=pb.Entity(table_entry=pb.TableEntry(table_id=entry.table_id, key=entry.key)),
                )
                for entry in keys
            ]
            for part in batches(updates):
                self._client.write(part)

    def write(self, updates: Sequence[Update]) -> None:
        for update in updates:
            gone_is_fine = isinstance(update, Delete)
            for part in batches(list(self._messages(update))):
                try:
                    self._client.write(part)
                except WriteFailed as failed:
                    if not gone_is_fine or any(code != GONE for _, code, _ in failed.failures):
                        raise

    def _messages(self, update: Update) -> Iterator[pb.Update]:
        """A group is more than one entity: its nodes come before it, and go after it."""
        what = update.what
        if isinstance(update, Delete):
            if isinstance(what, Group):
                entities = [self._tables.group(what), *self._tables.nodes(what)]
            else:
                entities = [self._tables.without_data(what)]
            yield from (pb.Update(type=pb.Update.DELETE, entity=entity) for entity in entities)
            return
        if isinstance(what, Group):
            entities = [*self._tables.nodes(what), self._tables.group(what)]
        else:
            entities = [self._tables.entry(what)]
        yield from (pb.Update(type=pb.Update.INSERT, entity=entity) for entity in entities)

    def clear(self, binding: Binding) -> None:
        """Clear the slots of a job for its epoch, in all its passes: see `tofino_program.tags`. With nobody missing and
        no op, a contribution to the generation before the first one is refused."""
        registers = []
        for index, tag in tags(binding, self._pass_slots):
            registers.append(self._tables.register("members", index, {"missing": 0, "op": 0}))
            registers.append(self._tables.register("tags", index, {"f1": tag}))
        for part in batches([pb.Update(type=pb.Update.MODIFY, entity=register) for register in registers]):
            self._client.write(part)

    def counts(self, cells: Sequence[Cell]) -> Mapping[Cell, Count]:
        answers = self._client.read([self._tables.counter(cell) for cell in cells])
        if len(answers) != len(cells):
            raise DriverError(f"{self._client.target} told {len(answers)} counters of {len(cells)}")
        return {cell: self._tables.count(cell, answer) for cell, answer in zip(cells, answers, strict=True)}

    def slots(self, first: int, count: int) -> list[SlotState] | None:
        """See `Plane.slots`. Not read: the registers hold who is missing, in an order of bits of their own."""
        return None

    @property
    def sentinels(self) -> tuple[int, ...]:
        return (self._client.sentinel,)

    def died(self) -> str | None:
        return self._client.died()

    def close(self) -> None:
        self._client.close()


def group_of(entry: pb.TableEntry, table: str) -> int:
    """The multicast group of an entry for a group or for a node."""
    number = int.from_bytes(entry.key.fields[0].exact.value, "big")
    return number >> 16 if table == PRE_NODES else number


def tofino_driver(
    network: Network,
    target: str,
    *,
    program: str = PROGRAM,
    device: int = 0,
    access: Access | None = None,
) -> P4Driver:
    """A Tofino that runs p4/tofino/inagg.p4, as a driver. Raises `DriverError`."""
    TOFINO.check_passes(network)
    passes = 1 + len(network.loopback)
    plane = TofinoPlane(target, passes=passes, program=program, device=device, access=access)
    try:
        return P4Driver(plane, plane.build, network, name="tofino", program=TOFINO, clear=plane.clear)
    except BaseException:
        plane.close()
        raise
