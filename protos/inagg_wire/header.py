"""One datagram: bytes to a valid value or a named reason, and back.

This is the readable codec, one datagram at a time. `batch` does the same to a buffer of equal datagrams.
"""

from __future__ import annotations

import struct
from dataclasses import asdict, astuple, dataclass
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
    """Why a contribution was refused; in an error notice only."""
    owner: int = 0
    """1 + the only rank to which the result goes; 0: it goes to all. 0 in an error notice."""

    def __post_init__(self) -> None:
        if self.reason is not None and (self.kind is not Kind.NOTICE or self.owner):
            raise WireError(Reason.BAD_OWNER, "a reason is for an error notice, which has no owner")
        owner = self.owner or self.reason or 0
        check(MAGIC, VERSION, self.kind, self.op, self.format, self.lanes, self.job, owner, *astuple(self)[5:8])

    @property
    def payload_bytes(self) -> int:
        """Bytes that must follow the header."""
        return payload_bytes(self.format, self.lanes)

    def pack(self) -> bytes:
        """The 24 bytes of the header."""
        values = asdict(self) | {"magic": MAGIC, "version": VERSION, "owner": self.owner or self.reason or 0}
        return STRUCT.pack(*(values[f.name] for f in FIELDS))


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

    def demand(ok: bool, why: Reason, detail: str) -> None:
        if not ok:
            raise WireError(why, detail)

    demand(magic == MAGIC, Reason.BAD_MAGIC, f"magic {magic:#06x}, not {MAGIC:#06x}")
    demand(version == VERSION, Reason.BAD_VERSION, f"version {version}; this is version {VERSION}")
    demand(kind in _KINDS, Reason.BAD_KIND, f"kind {kind}")
    demand(op in _OPS, Reason.BAD_OP, f"op {op}")
    carried = format_ in _ENCODINGS and Encoding(format_) in CARRIED[Kind(kind), Op(op)]
    demand(carried, Reason.BAD_FORMAT, f"format {format_} with kind {kind} and op {op}")
    if kind in BARE:
        demand(lanes == 0, Reason.BAD_LANES, f"{lanes} lanes with kind {kind}, which has none")
    else:
        sound = LANE_MULTIPLE <= lanes <= LANE_COUNT_MAX and lanes % LANE_MULTIPLE == 0
        demand(sound, Reason.BAD_LANES, f"{lanes} lanes, not a multiple of 8 up to {LANE_COUNT_MAX}")
    if kind == Kind.NOTICE:
        demand(owner in _NOTICE_REASONS, Reason.BAD_OWNER, f"an error notice with reason {owner}")
    else:
        most = 0 if op == Op.MAX else OWNER_MAX
        demand(int(kind == Kind.ACK) <= owner <= most, Reason.BAD_OWNER, f"owner {owner} with kind {kind} and op {op}")
    demand(0 < job <= 0xFFFF, Reason.BAD_JOB, f"job {job}, not 1 to 65535")
    demand(0 < token <= 0xFFFFFFFF, Reason.BAD_TOKEN, "token 0, or beyond 32 bits")
    demand(0 <= slot < SLOT_COUNT_MAX, Reason.BAD_SLOT, f"slot {slot}, not below {SLOT_COUNT_MAX}")
    sound = 1 <= generation <= GENERATION_MAX
    demand(sound, Reason.BAD_GENERATION, f"generation {generation}, not 1 to {GENERATION_MAX}")


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
    values = dict(zip((f.name for f in FIELDS), STRUCT.unpack_from(data), strict=True))
    format_ = values.pop("format")
    check(format_=format_, **values)
    del values["magic"], values["version"]
    kind, owner = Kind(values.pop("kind")), values.pop("owner")
    notice = kind is Kind.NOTICE
    return Datagram(
        Header(
            kind=kind,
            op=Op(values.pop("op")),
            format=Encoding(format_),
            reason=Reason(owner) if notice else None,
            owner=0 if notice else owner,
            **values,
        ),
        bytes(data[HEADER_BYTES:]),
    )
