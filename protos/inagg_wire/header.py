"""One datagram: bytes to a valid value or a named reason, and back.

This is the readable codec, one datagram at a time. `batch` has the fields of a buffer of equal datagrams.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from .errors import Reason, WireError
from .layout import (
    BARE,
    CARRIED,
    FIELDS,
    GENERATION_MAX,
    HEADER_BYTES,
    LANE_COUNT_MAX,
    LANE_MULTIPLE,
    MAGIC,
    OWNER_MAX,
    SLOT_COUNT_MAX,
    VERSION,
    Encoding,
    Kind,
    Op,
    payload_bytes,
)

STRUCT: Final = struct.Struct(">" + "".join({1: "B", 2: "H", 4: "I"}[f.size] for f in FIELDS))
assert STRUCT.size == HEADER_BYTES
_KINDS, _OPS, _ENCODINGS = (frozenset(map(int, e)) for e in (Kind, Op, Encoding))
_NOTICE_REASONS = frozenset(int(r) for r in Reason)


@dataclass(frozen=True, slots=True)
class Header:
    """A valid header, in the order of `layout.FIELDS` without magic and version. Raises `WireError`."""

    kind: Kind
    op: Op
    format: Encoding
    lanes: int
    job: int
    token: int
    slot: int
    generation: int
    reason: Reason | None = None
    """Reason why a contribution was refused; in an error notice only."""
    owner: int = 0
    """1 + the only rank to which the result goes; 0: it goes to all. 0 in an error notice."""

    def __post_init__(self) -> None:
        if self.reason is not None and (self.kind is not Kind.NOTICE or self.owner):
            raise WireError(Reason.BAD_OWNER, "a reason is for an error notice, which has no owner")
        check(*self._values())

    def _values(self) -> tuple[int, ...]:
        """Values of all `layout.FIELDS`, in their order."""
        owner = self.owner or self.reason or 0
        kind = MAGIC, VERSION, self.kind, self.op, self.format, self.lanes
        return *kind, self.job, owner, self.token, self.slot, self.generation

    @property
    def payload_bytes(self) -> int:
        """Bytes that must follow the header."""
        return payload_bytes(self.format, self.lanes)

    def pack(self) -> bytes:
        """The 24 bytes of the header."""
        return STRUCT.pack(*self._values())


def check(
    magic: int,
    version: int,
    kind: int,
    op: int,
    format_: int,
    lanes: int,
    job: int,
    owner: int,
    token: int,
    slot: int,
    generation: int,
) -> None:
    """Raise `WireError` for the first field, in the order of `Reason`, that no datagram may have."""
    if magic != MAGIC:
        raise WireError(Reason.BAD_MAGIC, f"magic {magic:#06x}, not {MAGIC:#06x}")
    if version != VERSION:
        raise WireError(Reason.BAD_VERSION, f"version {version}; this is version {VERSION}")
    if kind not in _KINDS:
        raise WireError(Reason.BAD_KIND, f"kind {kind}")
    if op not in _OPS:
        raise WireError(Reason.BAD_OP, f"op {op}")
    if format_ not in _ENCODINGS or Encoding(format_) not in CARRIED[Kind(kind), Op(op)]:
        raise WireError(Reason.BAD_FORMAT, f"format {format_} with kind {kind} and op {op}")
    if kind in BARE:
        if lanes != 0:
            raise WireError(Reason.BAD_LANES, f"{lanes} lanes with kind {kind}, which has none")
    elif not LANE_MULTIPLE <= lanes <= LANE_COUNT_MAX or lanes % LANE_MULTIPLE:
        raise WireError(Reason.BAD_LANES, f"{lanes} lanes, not a multiple of 8 up to {LANE_COUNT_MAX}")
    if kind == Kind.NOTICE:
        if owner not in _NOTICE_REASONS:
            raise WireError(Reason.BAD_OWNER, f"an error notice with reason {owner}")
    elif not int(kind == Kind.ACK) <= owner <= (0 if op == Op.MAX else OWNER_MAX):
        raise WireError(Reason.BAD_OWNER, f"owner {owner} with kind {kind} and op {op}")
    if not 0 < job <= 0xFFFF:
        raise WireError(Reason.BAD_JOB, f"job {job}, not 1 to 65535")
    if not 0 < token <= 0xFFFFFFFF:
        raise WireError(Reason.BAD_TOKEN, "token 0, or beyond 32 bits")
    if not 0 <= slot < SLOT_COUNT_MAX:
        raise WireError(Reason.BAD_SLOT, f"slot {slot}, not below {SLOT_COUNT_MAX}")
    if not 1 <= generation <= GENERATION_MAX:
        raise WireError(Reason.BAD_GENERATION, f"generation {generation}, not 1 to {GENERATION_MAX}")


@dataclass(frozen=True, slots=True)
class Datagram:
    """A valid header and exactly the payload that it announces. Raises `WireError`."""

    header: Header
    payload: bytes = b""

    def __post_init__(self) -> None:
        want, got = self.header.payload_bytes, len(self.payload)
        if got < want:
            raise WireError(Reason.TRUNCATED, f"{got} payload bytes of {want}")
        if got > want:
            raise WireError(Reason.TRAILING_BYTES, f"{got} payload bytes, {want} expected")

    def pack(self) -> bytes:
        """The UDP payload."""
        return self.header.pack() + self.payload


def parse(data: bytes | bytearray | memoryview) -> Datagram:
    """The datagram that the UDP payload ``data`` holds. Raises `WireError` with the first `Reason` that fits."""
    if len(data) < HEADER_BYTES:
        raise WireError(Reason.TOO_SHORT, f"{len(data)} bytes, a header has {HEADER_BYTES}")
    values = STRUCT.unpack_from(data)
    check(*values)
    _, _, kind, op, format_, lanes, job, owner, token, slot, generation = values
    reason, owner = (Reason(owner), 0) if kind == Kind.NOTICE else (None, owner)
    header = Header(Kind(kind), Op(op), Encoding(format_), lanes, job, token, slot, generation, reason, owner)
    return Datagram(header, bytes(data[HEADER_BYTES:]))
