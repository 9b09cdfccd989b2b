"""Links: batches of equal datagrams over UDP sockets, with seeded faults, captured for Wireshark.

Shared by switch and host. See `base` for the contract that all of them keep.
"""

from inagg_link.around import LinkAround
from inagg_link.base import (
    MAX_BATCH_BYTES,
    MAX_BATCH_DATAGRAMS,
    MAX_DATAGRAM_BYTES,
    Address,
    Batch,
    Counters,
    Link,
    canonical,
    datagrams_per_call,
    split,
)
from inagg_link.fault_link import FaultLink
from inagg_link.faults import Arrival, FaultCounters, FaultModel, Faults
from inagg_link.groups import Group, GroupLink
from inagg_link.pcap import NOTE, CaptureLink, append_note
from inagg_link.pcap_reading import CapturedDatagram, CaptureError, read_capture
from inagg_link.udp import UdpLink

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_BATCH_DATAGRAMS",
    "MAX_DATAGRAM_BYTES",
    "NOTE",
    "Address",
    "Arrival",
    "Batch",
    "CaptureError",
    "CaptureLink",
    "CapturedDatagram",
    "Counters",
    "FaultCounters",
    "FaultLink",
    "FaultModel",
    "Faults",
    "Group",
    "GroupLink",
    "Link",
    "LinkAround",
    "UdpLink",
    "append_note",
    "canonical",
    "datagrams_per_call",
    "read_capture",
    "split",
]
