"""A BF Runtime server without a switch, written from the interface: tables that one can write, read, look into."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc

from inagg_proto.bfruntime import SERVICE
from inagg_proto.bfruntime.v1 import bfruntime_pb2 as pb

ALREADY_EXISTS, NOT_FOUND = 6, 5

BINDING_KEYS = (
    *(("job", 16), ("ingress_port", 9), ("source", 32), ("source_port", 16), ("token", 32), ("op", 8)),
    *(("format", 8), ("lanes", 16), ("slot", 32)),
)
BIND = (("worker", 10), ("rank", 8), ("others", 32), ("op", 32), ("mode", 8), ("seed", 32), ("group", 16))


def _field(number: int, name: str, bits: int, match: str | None = None) -> dict[str, Any]:
    field = {"id": number, "name": name, "type": {"type": "bytes", "width": bits}}
    return field | ({"match_type": match} if match else {})


def _match_table(number: int, name: str, keys: Sequence[tuple[str, int]], match: str, actions: Any) -> dict[str, Any]:
    key = [_field(1 + i, key, bits, match) for i, (key, bits) in enumerate(keys)]
    if match == "Ternary":
        key.append({"id": 65537, "name": "$MATCH_PRIORITY", "match_type": "Exact", "type": {"type": "uint32"}})
    specs = [
        {"id": 100 * number + i, "name": f"Ingress.{action}", "data": [_field(1 + j, *p) for j, p in enumerate(params)]}
        for i, (action, params) in enumerate(actions, 1)
    ]
    return {"id": number, "name": f"pipe.{name}", "key": key, "action_specs": specs, "data": []}


def _array(number: int, name: str, index: str, data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    key = {"id": 65556, "name": index, "match_type": "Exact", "type": {"type": "uint32"}}
    return {"id": number, "name": name, "key": [key], "data": [{"singleton": field} for field in data]}


def _counter(number: int, name: str) -> dict[str, Any]:
    data = [{"id": 65553, "name": "$COUNTER_SPEC_BYTES"}, {"id": 65554, "name": "$COUNTER_SPEC_PKTS"}]
    return _array(
        number, f"pipe.Ingress.{name}", "$COUNTER_INDEX", [{**field, "type": {"type": "uint64"}} for field in data]
    )


PROGRAM = {
    "tables": [
        _match_table(
            1, "Ingress.local", (("address", 32), ("port", 16)), "Ternary", [("own", (("mac", 48), ("to", 8)))]
        ),
        _match_table(2, "Ingress.forward.forward", (("destination", 48),), "Exact", [("to_port", (("port", 9),))]),
        _match_table(
            3, "Ingress.binding.binding", BINDING_KEYS, "Ternary", [("bind", BIND), ("refuse", (("reason", 8),))]
        ),
        _match_table(
            4,
            "Egress.copies",
            (("copy", 16),),
            "Exact",
            [("readdress", (("mac", 48), ("address", 32), ("port", 16)))],
        ),
        _array(5, "pipe.Ingress.slot_tag.tags", "$REGISTER_INDEX", [_field(1, "Ingress.slot_tag.tags.f1", 32)]),
        _counter(6, "outcomes"),
        _counter(7, "refused"),
        _counter(8, "datagrams_in"),
    ]
}
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
NAMES = {table["id"]: table["name"] for table in (*PROGRAM["tables"], *FIXED["tables"])}
ARRAYS = {5}
"""Tables whose entries are always there: written by MODIFY."""


class BfRuntimeServer:
    """On a free port of loopback, from the constructor to `close`."""

    def __init__(self, program: str = "inagg") -> None:
        self.program = program
        self.tables: dict[str, dict[bytes, pb.TableEntry]] = {name: {} for name in NAMES.values()}
        self.log: list[tuple[int, str]] = []
        """What was written, in order: type of the update, table."""
        self.counts: dict[tuple[str, int], tuple[int, int]] = {}
        """(table, index) to packets and bytes."""
        self.hang_up = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _handlers(self) -> Any:
        def unary(method: Any, request: Any, response: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(method, request.FromString, response.SerializeToString)

        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Write": unary(self._write, pb.WriteRequest, pb.WriteResponse),
                "SetForwardingPipelineConfig": unary(
                    self._bind, pb.SetForwardingPipelineConfigRequest, pb.SetForwardingPipelineConfigResponse
                ),
                "GetForwardingPipelineConfig": unary(
                    self._info, pb.GetForwardingPipelineConfigRequest, pb.GetForwardingPipelineConfigResponse
                ),
                "Read": grpc.unary_stream_rpc_method_handler(
                    self._read, pb.ReadRequest.FromString, pb.ReadResponse.SerializeToString
                ),
                "StreamChannel": grpc.stream_stream_rpc_method_handler(
                    self._stream, pb.StreamMessageRequest.FromString, pb.StreamMessageResponse.SerializeToString
                ),
            },
        )

    def close(self) -> None:
        self.hang_up.set()
        self._server.stop(None).wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def entries(self, table: str) -> list[pb.TableEntry]:
        """What a table holds, by the last part of its name."""
        return [entry for name, found in self.tables.items() if name.endswith(table) for entry in found.values()]

    def _stream(self, requests: Iterator[pb.StreamMessageRequest], context: Any) -> Iterator[pb.StreamMessageResponse]:
        yield pb.StreamMessageResponse(subscribe=next(requests).subscribe)
        self.hang_up.wait()

    def _bind(self, request: pb.SetForwardingPipelineConfigRequest, context: Any) -> Any:
        if request.config[0].p4_name != self.program:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no program {request.config[0].p4_name}")
        return pb.SetForwardingPipelineConfigResponse()

    def _info(self, request: pb.GetForwardingPipelineConfigRequest, context: Any) -> Any:
        config = pb.ForwardingPipelineConfig(p4_name=self.program, bfruntime_info=json.dumps(PROGRAM).encode())
        fixed = pb.NonP4Config(bfruntime_info=json.dumps(FIXED).encode())
        return pb.GetForwardingPipelineConfigResponse(config=[config], non_p4_config=fixed)

    def _write(self, request: pb.WriteRequest, context: Any) -> pb.WriteResponse:
        return pb.WriteResponse(status=[error for update in request.updates if (error := self._update(update))])

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
            place = int.from_bytes(entry.key.fields[0].exact.value, "big")
            packets, frame_bytes = self.counts.get((NAMES[entry.table_id].rsplit(".", 1)[-1], place), (0, 0))
            told = pb.Entity()
            told.CopyFrom(entity)
            told.table_entry.data.fields.add(field_id=65553, stream=frame_bytes.to_bytes(8, "big"))
            told.table_entry.data.fields.add(field_id=65554, stream=packets.to_bytes(8, "big"))
            yield pb.ReadResponse(entities=[told])
