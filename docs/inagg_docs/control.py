"""The reference of the control service, made of control.proto: calls, messages and enumerations with their comments."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from grpc_tools import protoc

PROTOS: Final = Path(__file__).resolve().parents[2] / "protos"
PROTO: Final = "inagg_proto/v1/control.proto"
Comments = dict[tuple[int, ...], str]
"""Path of a declaration in its file (`SourceCodeInfo.Location.path`) -> the comment above it."""

# Field numbers of descriptor.proto, of which such paths are made.
MESSAGES, ENUMS, SERVICES = 4, 5, 6
OF_MESSAGE_FIELD, OF_ENUM_VALUE, OF_SERVICE_METHOD, SYNTAX = 2, 2, 2, 12


class ProtocError(RuntimeError):
    """protoc found a fault in the definition; it has said on stderr which."""


def parsed() -> tuple[FileDescriptorProto, Comments]:
    """The definition of the service, by protoc. Raises `ProtocError`."""
    with tempfile.NamedTemporaryFile(suffix=".pb") as out:
        arguments = ["protoc", f"--proto_path={PROTOS}", "--include_source_info", f"--descriptor_set_out={out.name}"]
        if protoc.main([*arguments, PROTO]):
            raise ProtocError(PROTO)
        files = descriptor_pb2.FileDescriptorSet.FromString(Path(out.name).read_bytes())
    (file,) = files.file
    return file, {tuple(place.path): place.leading_comments for place in file.source_code_info.location}


def page() -> str:
    """The page, as Markdown."""
    file, comments = parsed()
    return "\n".join(_lines(file, comments))


def _lines(file: FileDescriptorProto, comments: Comments) -> Iterator[str]:
    known = {message.name for message in file.message_type} | {enum.name for enum in file.enum_type}
    places = [place for place in file.source_code_info.location if list(place.path) == [SYNTAX]]
    detached = [text for place in places for text in place.leading_detached_comments]
    yield "# Control service"
    yield ""
    yield f"What `{PROTO}` says (package `{file.package}`, gRPC); this page is made of it."
    for text in [*detached, comments.get((SYNTAX,), "")]:
        yield from ("", _paragraphs(text))
    for s, service in enumerate(file.service):
        yield from ("", f"## Calls of {service.name}")
        for m, method in enumerate(service.method):
            asks, answers = _reference(method.input_type, known), _reference(method.output_type, known)
            asks = f"stream of {asks}" if method.client_streaming else asks
            answers = f"stream of {answers}" if method.server_streaming else answers
            yield from ("", f"### {method.name}", "", f"{asks} → {answers}", "")
            yield _paragraphs(comments[SERVICES, s, OF_SERVICE_METHOD, m])
    yield from ("", "## Messages")
    for i, message in enumerate(file.message_type):
        yield from ("", f"### {message.name}", "", _paragraphs(comments.get((MESSAGES, i), "")), "")
        if message.field:
            yield from ("| field | number | type | meaning |", "|---|---|---|---|")
        for f, field in enumerate(message.field):
            meaning = _cell(comments.get((MESSAGES, i, OF_MESSAGE_FIELD, f), ""))
            yield f"| `{field.name}` | {field.number} | {_type(field, message, known)} | {meaning} |"
    yield from ("", "## Enumerations")
    for i, enum in enumerate(file.enum_type):
        yield from ("", f"### {enum.name}", "", _paragraphs(comments.get((ENUMS, i), "")), "")
        yield from ("| name | number | meaning |", "|---|---|---|")
        for v, value in enumerate(enum.value):
            yield f"| `{value.name}` | {value.number} | {_cell(comments.get((ENUMS, i, OF_ENUM_VALUE, v), ''))} |"
    yield ""


def _type(field: FieldDescriptorProto, message: DescriptorProto, known: set[str]) -> str:
    if field.type_name:
        name = _reference(field.type_name, known)
        for nested in message.nested_type:
            if nested.options.map_entry and field.type_name.endswith(f".{message.name}.{nested.name}"):
                key, value = (_type(part, nested, known) for part in nested.field)
                return f"map from {key} to {value}"
    else:
        name = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"list of {name}"
    if field.proto3_optional:
        return f"{name}, optional"
    return f"{name}, one of `{message.oneof_decl[field.oneof_index].name}`" if field.HasField("oneof_index") else name


def _reference(type_name: str, known: set[str]) -> str:
    name = type_name.rpartition(".")[2]
    return f"[{name}](#{name.lower()})" if name in known else f"`{name}`"


def _paragraphs(text: str) -> str:
    """A comment without the space that each of its lines begins with, and without rulers."""
    lines = [line.removeprefix(" ") for line in text.splitlines()]
    return "\n".join("" if re.match(r"-{20,}", line) else line for line in lines).strip()


def _cell(text: str) -> str:
    return " ".join(_paragraphs(text).split()).replace("|", "\\|")
