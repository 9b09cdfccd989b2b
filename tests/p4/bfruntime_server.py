"""A BF Runtime server without a switch, written from the interface: tables that one can write, read, look into.

The tables are those of our program as its compiler describes them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from google.rpc import status_pb2
from tests.p4 import bf_rt

from inagg_proto.bfruntime import SERVICE
from inagg_proto.bfruntime.v1 import bfruntime_pb2 as pb
from inagg_switch.p4.grpc_stream import STATUS_DETAILS

from .switch_server import SwitchServer

ALREADY_EXISTS, NOT_FOUND = 6, 5


def _array(number: int, name: str, index: str, data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    key = {"id": 65556, "name": index, "match_type": "Exact", "type": {"type": "uint32"}}
    return {"id": number, "name": name, "key": [key], "data": [{"singleton": field} for field in data]}


PROGRAM = bf_rt.program()
FIXED = {
    "tables": [
        _array(
            20,
            "$pre.node",
            "$MULTICAST_NODE_ID",
            [
                {"id": i, "name": name, "type": {"type": "uint32"}}
                for i, name in enumerate(("$MULTICAST_RID", "$MULTICAST_LAG_ID", "$DEV_PORT"), 1)
            ],
        ),
        _array(
            21,
            "$pre.mgid",
            "$MGID",
            [
                {"id": 1, "name": "$MULTICAST_NODE_ID", "type": {"type": "uint32"}},
                {"id": 2, "name": "$MULTICAST_NODE_L1_XID_VALID", "type": {"type": "bool"}},
                {"id": 3, "name": "$MULTICAST_NODE_L1_XID", "type": {"type": "uint32"}},
            ],
        ),
    ]
}
NAMES: dict[int, str] = {table["id"]: table["name"] for table in (*PROGRAM["tables"], *FIXED["tables"])}
ARRAYS = {table["id"] for table in PROGRAM["tables"] if table["table_type"] == "Register"}
"""Tables whose entries are always there: written by MODIFY."""
TAGS = "pipe.Ingress.slot_tag.tags"
MEMBERS = "pipe.Ingress.slot_members.members"
BIND = next(
    spec["id"] for table in PROGRAM["tables"] for spec in table.get("action_specs", ()) if spec["name"].endswith("bind")
)
"""The action of entries that take a datagram."""


class BfRuntimeServer(SwitchServer):
    """``program``: its name on the switch; ``description``: its bf-rt.json."""

    def __init__(self, program: str = "inagg", description: dict[str, Any] = PROGRAM) -> None:
        self.program = program
        self.description = description
        self.tables: dict[str, dict[bytes, pb.TableEntry]] = {name: {} for name in NAMES.values()}
        self.log: list[tuple[int, str]] = []
        """What was written, in order: type of the update, table."""
        self.counts: dict[tuple[str, int], tuple[int, int]] = {}
        """(table, index) to packets and bytes."""
        self.fails_as_the_sde = True
        """Whether what fails is told in the status of the call, as bf_switchd does; else in the answer."""
        self.hang_up = threading.Event()
        self._clients: set[int] = set()
        super().__init__(
            SERVICE,
            pb,
            Write=self._write,
            SetForwardingPipelineConfig=self._bind,
            GetForwardingPipelineConfig=self._info,
        )

    def close(self) -> None:
        self.hang_up.set()
        super().close()

    def entries(self, table: str) -> list[pb.TableEntry]:
        """What a table holds, by the last part of its name."""
        return [entry for name, found in self.tables.items() if name.endswith(table) for entry in found.values()]

    def _stream(self, requests: Iterator[pb.StreamMessageRequest], context: Any) -> Iterator[pb.StreamMessageResponse]:
        first = next(requests)
        told = pb.StreamMessageResponse(subscribe=first.subscribe)
        if first.client_id in self._clients:
            told.subscribe.status.code = ALREADY_EXISTS
            told.subscribe.status.message = "the client id is in use"
            yield told
            return
        self._clients.add(first.client_id)
        context.add_callback(lambda: self._clients.discard(first.client_id))
        yield told
        while not self.hang_up.wait(0.05) and context.is_active():
            pass

    def _bind(self, request: pb.SetForwardingPipelineConfigRequest, context: Any) -> Any:
        if request.config[0].p4_name != self.program:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no program {request.config[0].p4_name}")
        return pb.SetForwardingPipelineConfigResponse()

    def _info(self, request: pb.GetForwardingPipelineConfigRequest, context: Any) -> Any:
        config = pb.ForwardingPipelineConfig(p4_name=self.program, bfruntime_info=json.dumps(self.description).encode())
        fixed = pb.NonP4Config(bfruntime_info=json.dumps(FIXED).encode())
        return pb.GetForwardingPipelineConfigResponse(config=[config], non_p4_config=fixed)

    def _write(self, request: pb.WriteRequest, context: Any) -> pb.WriteResponse:
        errors = [self._update(update) for update in request.updates]
        if any(errors) and self.fails_as_the_sde:
            status = status_pb2.Status(code=2, message="some updates failed")
            for error in errors:
                status.details.add().Pack(error or pb.Error())
            context.set_trailing_metadata(((STATUS_DETAILS, status.SerializeToString()),))
            context.abort(grpc.StatusCode.UNKNOWN, "some updates failed")
        return pb.WriteResponse(status=[error for error in errors if error])

    def _update(self, update: pb.Update) -> pb.Error | None:
        entry = update.entity.table_entry
        name = NAMES[entry.table_id]
        table, key = self.tables[name], entry.key.SerializeToString(deterministic=True)
        self.log.append((update.type, name))
        there = key in table or entry.table_id in ARRAYS
        if update.type == pb.Update.INSERT and there:
            return pb.Error(canonical_code=ALREADY_EXISTS, message=f"{name}: there is such an entry")
        if update.type != pb.Update.INSERT and not there:
            return pb.Error(canonical_code=NOT_FOUND, message=f"{name}: there is no such entry")
        if update.type == pb.Update.DELETE:
            del table[key]
        else:
            table[key] = entry
        return None

    def _read(self, request: pb.ReadRequest, context: Any) -> Iterator[pb.ReadResponse]:
        for entity in request.entities:
            entry = entity.table_entry
            if not entry.HasField("key"):
                for found in self.tables[NAMES[entry.table_id]].values():
                    yield pb.ReadResponse(entities=[pb.Entity(table_entry=found)])
                continue
            place = int.from_bytes(entry.key.fields[0].exact.value, "big")
            packets, frame_bytes = self.counts.get((NAMES[entry.table_id].rsplit(".", 1)[-1], place), (0, 0))
            told = pb.Entity()
            told.CopyFrom(entity)
            told.table_entry.data.fields.add(field_id=65553, stream=frame_bytes.to_bytes(8, "big"))
            told.table_entry.data.fields.add(field_id=65554, stream=packets.to_bytes(8, "big"))
            yield pb.ReadResponse(entities=[told])
