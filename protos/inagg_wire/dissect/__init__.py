"""Datagrams for people to look at: a scapy layer, and a dissector for Wireshark. Both derive from `layout`."""

from enum import IntEnum
from typing import Final

from ..layout import Encoding, Kind, Op

ENUMERATIONS: Final[dict[str, type[IntEnum]]] = {"kind": Kind, "op": Op, "format": Encoding}
"""Fields whose values have names."""
IN_HEX: Final = ("magic", "token")
"""Fields that are shown so."""
