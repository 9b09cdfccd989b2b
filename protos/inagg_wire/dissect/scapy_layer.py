"""A scapy layer for the header, derived from `layout.FIELDS`; the lanes follow as raw bytes.

    >>> from inagg_wire.dissect.scapy_layer import Inagg, bind
    >>> bind()                                # UDP port 47101 is inagg from now on; bind(port) for another
    >>> rdpcap("run.pcap")[0][Inagg].show()

Needs scapy (`pip install '.[capture]'`, in the clone). Never on a hot path.
"""

from __future__ import annotations

from typing import Any, Final

from scapy.fields import ByteEnumField, ByteField, Field, IntField, ShortField, XIntField, XShortField
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_layers, split_layers

from .. import header as wire
from ..errors import Reason, WireError
from ..layout import DATA_PORT, FIELDS, MAGIC, VERSION, Encoding, Kind, Op
from ..layout import Field as LayoutField
from ..payload import unpack
from . import ENUMERATIONS, IN_HEX

_DEFAULTS: Final = {
    "magic": MAGIC,
    "version": VERSION,
    "kind": Kind.CONTRIBUTION,
    "op": Op.SUM,
    "format": Encoding.NAT8,
    "generation": 1,
}


def _field(field: LayoutField) -> Field[Any, Any]:
    """The scapy field of one row of the table."""
    default = int(_DEFAULTS.get(field.name, 0))
    if field.name in ENUMERATIONS:
        names = {int(member): member.name.lower() for member in ENUMERATIONS[field.name]}
        return ByteEnumField(field.name, default, names)
    if field.name in IN_HEX:
        return {2: XShortField, 4: XIntField}[field.size](field.name, default)
    return {1: ByteField, 2: ShortField, 4: IntField}[field.size](field.name, default)


class Inagg(Packet):
    """One datagram. ``Inagg(job=7, token=1, lanes=8) / bytes(8)`` builds one; nothing is filled in or checked."""

    name = "inagg"
    fields_desc = [_field(field) for field in FIELDS]  # noqa: RUF012 (scapy's way to declare a layer)

    def wrong(self) -> Reason | None:
        """Reason why this datagram would be refused by whoever receives it; None if it is valid by itself."""
        try:
            wire.parse(bytes(self))
        except WireError as error:
            return error.reason
        return None

    def codes(self) -> list[int]:
        """The lanes, one unsigned code each. Raises `WireError` if the datagram is not valid."""
        datagram = wire.parse(bytes(self))
        return [int(code) for code in unpack(datagram.header.format, datagram.payload)]

    def hashret(self) -> bytes:
        """Bytes that a contribution has in common with its result."""
        return b"%d %d %d %d" % (self.job, self.token, self.slot, self.generation)

    def answers(self, other: Packet) -> int:
        """Whether this is the result, notice or acknowledgement of the contribution ``other`` (for scapy's `sr`)."""
        return int(
            isinstance(other, Inagg)
            and self.kind in (Kind.RESULT, Kind.NOTICE, Kind.ACK)
            and other.kind == Kind.CONTRIBUTION
            and self.op == other.op
            and self.hashret() == other.hashret()
        )

    def mysummary(self) -> str:
        """One line, as in the list of packets."""
        return self.sprintf("inagg %Inagg.kind% %Inagg.op% %Inagg.format% job %Inagg.job% ") + (
            f"slot {self.slot} generation {self.generation}, {self.lanes} lanes"
        )


def bind(port: int = DATA_PORT) -> None:
    """Let scapy dissect UDP datagrams from or to ``port`` as `Inagg`. More than one port may be bound."""
    bind_layers(UDP, Inagg, dport=port)
    bind_layers(UDP, Inagg, sport=port)


def unbind(port: int = DATA_PORT) -> None:
    """Undo `bind`."""
    split_layers(UDP, Inagg, dport=port)
    split_layers(UDP, Inagg, sport=port)
