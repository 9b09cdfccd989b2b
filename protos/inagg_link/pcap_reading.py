"""Reads packet captures: those of `pcap`, and others' of the same format."""

from __future__ import annotations

import gzip
import ipaddress
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from inagg_link.addresses import Address
from inagg_link.pcap import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    IP_PROTOCOL_UDP,
    IPV4_HEADER_BYTES,
    IPV6_HEADER_BYTES,
    LINKTYPE_RAW,
    MAGIC_NANOSECONDS,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    UDP_HEADER_BYTES,
)

GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952, section 2.3.1
MAGIC_MICROSECONDS = 0xA1B2C3D4
LINKTYPE_ETHERNET = 1
_ETHERTYPES = {b"\x08\x00": 4, b"\x86\xdd": 6}


class CaptureError(ValueError):
    """The file is not a capture that `read_capture` reads, or it ends within a record, or is damaged."""


@dataclass(frozen=True, slots=True)
class CapturedDatagram:
    """One UDP datagram of a capture; `time_ns` since 1970."""

    time_ns: int
    source: Address
    destination: Address
    payload: bytes


def read_capture(path: str | os.PathLike[str]) -> Iterator[CapturedDatagram]:
    """The UDP datagrams of a pcap file, in order, with their own bytes; packets of other protocols are passed
    over.

    Reads both byte orders, micro- and nanoseconds, LINKTYPE_RAW and LINKTYPE_ETHERNET (so those of bmv2 too).
    Checksums are not verified. CaptureError: not such a file, a record cut short, or a UDP packet that is a
    fragment or was not captured whole.
    """
    with open(path, "rb") as raw:
        compressed = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        try:
            yield from _read(cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if compressed else raw, path)
        except EOFError:
            raise CaptureError(f"{path}: ends within what is compressed") from None
        except (zlib.error, gzip.BadGzipFile) as error:
            raise CaptureError(f"{path}: what is compressed is damaged ({error})") from None


def _read(file: BinaryIO, path: str | os.PathLike[str]) -> Iterator[CapturedDatagram]:
    """The datagrams of an open file."""
    header = file.read(FILE_HEADER_BYTES)
    if len(header) < FILE_HEADER_BYTES:
        raise CaptureError(f"{path}: too short for a pcap file")
    for order in "<>":
        magic, _, _, _, _, _, link_type = struct.unpack(order + FILE_HEADER, header)
        if magic in (MAGIC_NANOSECONDS, MAGIC_MICROSECONDS):
            break
    else:
        raise CaptureError(f"{path}: not a pcap file (pcapng is another format: editcap -F pcap converts)")
    if link_type not in (LINKTYPE_RAW, LINKTYPE_ETHERNET):
        raise CaptureError(f"{path}: link type {link_type}; only RAW (101) and Ethernet (1) are read")
    unit_ns = 1 if magic == MAGIC_NANOSECONDS else 1000
    while record := file.read(RECORD_HEADER_BYTES):
        if len(record) < RECORD_HEADER_BYTES:
            raise CaptureError(f"{path}: ends within the header of a record")
        seconds, fraction, captured, _ = struct.unpack(order + RECORD_HEADER, record)
        frame = file.read(captured)
        if len(frame) < captured:
            raise CaptureError(f"{path}: ends within a record")
        found = _parse_frame(frame, link_type)
        if found is not None:
            yield CapturedDatagram(seconds * 10**9 + fraction * unit_ns, *found)


def _parse_frame(frame: bytes, link_type: int) -> tuple[Address, Address, bytes] | None:
    """Source, destination and payload of a frame; None if it is not UDP over IP."""
    if link_type == LINKTYPE_ETHERNET:
        version = _ETHERTYPES.get(frame[12:14])
        frame = frame[14:]
    else:
        version = frame[0] >> 4 if frame else None
    if version == 4 and len(frame) >= IPV4_HEADER_BYTES and frame[9] == IP_PROTOCOL_UDP:
        if int.from_bytes(frame[6:8]) & 0x3FFF:  # more fragments, or not the first
            raise CaptureError("a UDP packet in fragments; reassemble the capture first")
        hosts, start = (frame[12:16], frame[16:20]), (frame[0] & 0xF) * 4
    elif version == 6 and len(frame) >= IPV6_HEADER_BYTES and frame[6] == IP_PROTOCOL_UDP:
        hosts, start = (frame[8:24], frame[24:40]), IPV6_HEADER_BYTES
    else:
        return None
    udp = frame[start : start + UDP_HEADER_BYTES]
    if len(udp) < UDP_HEADER_BYTES:
        raise CaptureError("a UDP packet that was captured without its header")
    source_port, destination_port, udp_bytes, _ = struct.unpack("!HHHH", udp)
    payload = frame[start + UDP_HEADER_BYTES : start + udp_bytes]
    if udp_bytes < UDP_HEADER_BYTES or len(payload) < udp_bytes - UDP_HEADER_BYTES:
        raise CaptureError("a UDP packet that was not captured whole")
    source, destination = (str(ipaddress.ip_address(host)) for host in hosts)
    return (source, source_port), (destination, destination_port), payload
