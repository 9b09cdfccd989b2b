"""A P4Runtime server over the interpreter: what `simple_switch_grpc` does for our driver, for machines without it.

Like PI's server it has no registers, and a write goes on after an update that fails.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import status_pb2
from tests.p4.bmv2.switch import Bmv2

from inagg_proto.p4runtime import SERVICE
from inagg_proto.p4runtime.v1 import p4runtime_pb2 as pb
from inagg_switch.p4.builds import Build
from inagg_switch.p4.grpc_stream import STATUS_DETAILS
from inagg_switch.p4.plane import Cell, Delete, Entry, Group, Insert, Masked, Replica

from .entry_keys import key_of
from .switch_server import SwitchServer

ALREADY_EXISTS, NOT_FOUND = 6, 5


class Refused(Exception):
    """An update that cannot be done."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class P4RuntimeServer(SwitchServer):
    """``switch`` is None until it has been given a program."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.switch: Bmv2 | None = None
        self.written: list[pb.WriteRequest] = []
        self.fail_next_insert: str | None = None
        """Refuse the next insertion with this text."""
        self.writes_go_on = threading.Event()
        """Until it is set, a write waits. It is, at first."""
        self.writes_go_on.set()
        self.reads_end_after: int | None = None
        """Break off the next read after so many entities."""
        self._info = pb.P4Info()
        self._items: set[tuple[Any, ...]] = set()
        self._lock = threading.Lock()
        self._elections: set[int] = set()
        """Numbers of the controllers that are connected; the largest is primary."""
        super().__init__(SERVICE, pb, Write=self._write, SetForwardingPipelineConfig=self._set_program)

    # --- calls ---

    def _stream(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        mine = next(requests).arbitration
        number = mine.election_id.low
        if number in self._elections:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Election id already exists")
        self._elections.add(number)
        context.add_callback(lambda: self._elections.discard(number))
        yield pb.StreamMessageResponse(
            arbitration=pb.MasterArbitrationUpdate(
                device_id=mine.device_id,
                election_id=pb.Uint128(low=max(self._elections)),
                status=pb.Status(code=0 if number == max(self._elections) else ALREADY_EXISTS),
            )
        )
        for _ in requests:  # until the controller hangs up
            pass

    def _set_program(self, request: Any, context: Any) -> Any:
        self._only_primary(request, context)
        if request.config.p4_device_config != self.build.program():
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not the program of this test")
        self._info = request.config.p4info
        self._items = set()
        self.switch = Bmv2(self.build)
        return pb.SetForwardingPipelineConfigResponse()

    def _write(self, request: Any, context: Any) -> Any:
        self._only_primary(request, context)
        with self._lock:
            self.written.append(request)
            self.writes_go_on.wait(30)
            results = [self._update(update) for update in request.updates]
        if any(error.canonical_code for error in results):
            details = []
            for error in results:
                packed = any_pb2.Any(type_url="type.googleapis.com/p4.v1.Error", value=error.SerializeToString())
                details.append(packed)
            status = status_pb2.Status(code=2, message="some updates failed", details=details)
            context.set_trailing_metadata(((STATUS_DETAILS, status.SerializeToString()),))
            context.abort(grpc.StatusCode.UNKNOWN, "some updates failed")
        return pb.WriteResponse()

    def _update(self, update: Any) -> Any:
        insert = update.type == pb.Update.INSERT
        try:
            what = self._item(update.entity)
            if insert and self.fail_next_insert is not None:
                text, self.fail_next_insert = self.fail_next_insert, None
                raise Refused(13, text)
            key = key_of(what)
            if insert and key in self._items:
                raise Refused(ALREADY_EXISTS, "it exists")
            if not insert and key not in self._items:
                raise Refused(NOT_FOUND, "there is none")
        except Refused as refused:
            return pb.Error(canonical_code=refused.code, message=str(refused))
        (self._items.add if insert else self._items.remove)(key)
        assert self.switch is not None
        self.switch.write([Insert(what) if insert else Delete(what)])
        return pb.Error()

    def _read(self, request: Any, context: Any) -> Iterator[Any]:
        assert self.switch is not None
        names = {counter.preamble.id: counter.preamble.name for counter in self._info.counters}
        end_after, self.reads_end_after = self.reads_end_after, None
        for place, entity in enumerate(request.entities):
            if place == end_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken off")
            entry = entity.counter_entry
            cell = Cell(names[entry.counter_id], entry.index.index)
            count = self.switch.counts([cell])[cell]
            data = pb.CounterData(packet_count=count.packets, byte_count=count.frame_bytes)
            found = pb.CounterEntry(counter_id=entry.counter_id, index=entry.index, data=data)
            yield pb.ReadResponse(entities=[pb.Entity(counter_entry=found)])

    def _only_primary(self, request: Any, context: Any) -> None:
        if request.election_id.low != max(self._elections, default=0):
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not the primary client")

    # --- messages back to data ---

    def _item(self, entity: Any) -> Entry | Group:
        if entity.WhichOneof("entity") == "packet_replication_engine_entry":
            group = entity.packet_replication_engine_entry.multicast_group_entry
            return Group(group.multicast_group_id, tuple(Replica(r.egress_port, r.instance) for r in group.replicas))
        entry = entity.table_entry
        table = next(t for t in self._info.tables if t.preamble.id == entry.table_id)
        action = next(a for a in self._info.actions if a.preamble.id == entry.action.action.action_id)
        if action.preamble.id not in [reference.id for reference in table.action_refs]:
            raise Refused(3, f"{table.preamble.name} cannot do {action.preamble.name}")
        fields = {field.id: field.name for field in table.match_fields}
        params = {param.id: param.name for param in action.params}
        return Entry(
            table.preamble.name,
            tuple((fields[m.field_id], _match(m)) for m in entry.match),
            action.preamble.name,
            tuple((params[p.param_id], int.from_bytes(p.value, "big")) for p in entry.action.action.params),
            entry.priority,
        )


def _match(field: Any) -> int | Masked:
    if field.WhichOneof("field_match_type") == "exact":
        return int.from_bytes(field.exact.value, "big")
    value, mask = (int.from_bytes(part, "big") for part in (field.ternary.value, field.ternary.mask))
    if mask == 0 or value & ~mask:
        raise Refused(3, "a ternary field without mask, or with bits outside it")
    return Masked(value, mask)
