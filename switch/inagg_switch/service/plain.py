"""Messages as plain values, for JSON: integers as integers, states and causes by their lower-case names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """All fields of a message by name; one that can be absent and is, is None."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


# The descriptor of a field is of two unrelated types, of protobuf's C and Python parts, so it is Any here.


def _field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_value(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: Any, field: Any) -> Any:
    if isinstance(value, Message):
        return plain(value)
    if field.enum_type is not None:
        return enum_label(field.enum_type, value)
    return value


def enum_label(kind: Any, number: int) -> str:
    """``JOB_STATE_RUNNING`` as ``running``; ``kind``: the descriptor of the enumeration."""
    prefix: str = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return str(kind.values_by_number[number].name.removeprefix(prefix).lower())
