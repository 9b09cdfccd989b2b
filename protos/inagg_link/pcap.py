"""Packet captures of any link, readable with Wireshark, tcpdump and scapy.

The file is a classic pcap file (draft-ietf-opsawg-pcap; all fields little-endian here) with nanosecond times
and link type LINKTYPE_RAW: every record is an IP packet. A UDP socket never sees the IP and UDP headers, so
they are synthesised, with correct checksums. Each datagram is a record of its own; those of a batch share one
time, when the batch was sent or received.
"""

from __future__ import annotations

import gzip
import ipaddress
import logging
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from inagg_link.addresses import Address
from inagg_link.around import LinkAround
from inagg_link.base import Batch, Link

MAGIC_NANOSECONDS = 0xA1B23C4D
LINKTYPE_RAW = 101
SNAP_BYTES = 262_144  # as tcpdump: more than any packet has
FILE_HEADER = "IHHiIII"  # magic, major, minor, zone, sigfigs, snaplen, linktype
RECORD_HEADER = "IIII"  # seconds, fraction, bytes captured, bytes on the wire
FILE_HEADER_BYTES = 24
RECORD_HEADER_BYTES = 16

IP_PROTOCOL_UDP = 17
TTL = 64
IPV4_HEADER_BYTES = 20
IPV6_HEADER_BYTES = 40
UDP_HEADER_BYTES = 8
NOTE: Address = ("0.0.0.0", 0)
"""Source and destination of what is no datagram but a note of whoever captures: see `CaptureLink.note`."""

log = logging.getLogger("inagg")


def internet_checksum(data: bytes) -> int:
    """RFC 1071: the ones' complement of the ones' complement sum of the big-endian 16-bit words of `data`."""
    words = np.frombuffer(data + b"\x00" * (len(data) % 2), ">u2")
    return 0xFFFF & ~_fold(int(words.sum(dtype=np.uint64)))


def _fold(total: int) -> int:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def records(datagrams: NDArray[np.uint8], source: Address, destination: Address, time_ns: int) -> bytes:
    """The pcap records of `datagrams`, shape (k, size), with IPv4 or IPv6 and UDP headers as the addresses
    say.

    ValueError: an address is no literal, or the two are of different IP versions.
    """
    count, size = datagrams.shape
    ips = [ipaddress.ip_address(host.partition("%")[0]) for host in (source[0], destination[0])]
    if ips[0].version != ips[1].version:
        raise ValueError(f"no packet goes from {source[0]} to {destination[0]}")
    addresses = ips[0].packed + ips[1].packed
    udp_bytes = UDP_HEADER_BYTES + size
    if ips[0].version == 4:
        total = IPV4_HEADER_BYTES + udp_bytes
        # version and header length, service, length, identification, do not fragment, TTL, protocol, checksum
        ip = struct.pack("!BBHHHBBH", 0x45, 0, total, 0, 0x4000, TTL, IP_PROTOCOL_UDP, 0) + addresses
        ip = ip[:10] + struct.pack("!H", internet_checksum(ip)) + ip[12:]
    else:
        total = IPV6_HEADER_BYTES + udp_bytes
        ip = struct.pack("!IHBB", 6 << 28, udp_bytes, IP_PROTOCOL_UDP, TTL) + addresses
    ports = struct.pack("!HH", source[1], destination[1])
    record = struct.pack("<" + RECORD_HEADER, time_ns // 10**9, time_ns % 10**9, total, total)
    head = record + ip + ports + struct.pack("!HH", udp_bytes, 0)

    # The pseudo header (RFC 768; RFC 8200 section 8.1) has the UDP length twice: there and in the UDP header.
    constant = addresses + ports + struct.pack("!HHH", IP_PROTOCOL_UDP, udp_bytes, udp_bytes)
    padded = np.zeros((count, size + size % 2), np.uint8)
    padded[:, :size] = datagrams
    sums = padded.view(">u2").sum(axis=1, dtype=np.uint64) + np.uint64(0xFFFF ^ internet_checksum(constant))
    for _ in range(2):  # at most 2^15 words and a constant: the first carry is below 2^16, the second is 0 or 1
        sums = (sums & np.uint64(0xFFFF)) + (sums >> np.uint64(16))
    checksums = np.uint64(0xFFFF) - sums
    checksums[checksums == 0] = 0xFFFF  # RFC 768: 0 says that there is no checksum

    rows = np.empty((count, len(head) + size), np.uint8)
    rows[:, : len(head)] = np.frombuffer(head, np.uint8)
    rows[:, len(head) - 2 : len(head)] = checksums.astype(">u2").view(np.uint8).reshape(count, 2)
    rows[:, len(head) :] = datagrams
    return rows.tobytes()


def note_record(payload: bytes, time_ns: int) -> bytes:
    """The pcap record of a note: see `CaptureLink.note`."""
    return records(np.frombuffer(payload, np.uint8).reshape(1, -1), NOTE, NOTE, time_ns)


GZIP_LEVEL = 1  # more takes longer than it saves: codes of numbers are nearly random


def is_compressed(path: str | os.PathLike[str]) -> bool:
    """Whether a capture of that name is compressed."""
    return os.fspath(path).endswith(".gz")


def append_note(path: str | os.PathLike[str], payload: bytes, time_ns: int) -> None:
    """Add a note to the end of a capture that is closed. Raises OSError."""
    with open(path, "ab") as file:
        file.write(_stored(path, note_record(payload, time_ns)))


def _stored(path: str | os.PathLike[str], data: bytes) -> bytes:
    """``data`` for the end of a capture of that name."""
    # Compressed each on its own, as gzip's files may be joined: the file is whole after each, and takes more, also when
    # the process was killed, or the disk was full. It is 1 % larger so, of small datagrams one by one 10 %.
    return gzip.compress(data, GZIP_LEVEL) if is_compressed(path) else data


class CaptureLink(LinkAround):
    """Writes what passes through a link to `path`, and changes nothing. A name that ends with .gz has it compressed
    (Wireshark reads it so).

    A sent batch is recorded as far as the kernel accepted it. `max_bytes` bounds the file: what comes later
    is passed on but not recorded, and counted in `not_captured` (datagrams). So is what comes after the disk
    was full, or failed, which is logged once; the file ends with a whole record then. `clock_ns`: nanoseconds
    since 1970. The file is whole at any time, compressed or not. OSError: it does not open.
    """

    def __init__(
        self,
        link: Link,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 1 << 30,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(link)
        self.path = os.fspath(path)
        self.not_captured = 0
        self._left_bytes = max_bytes - FILE_HEADER_BYTES
        self._whole_bytes = 0
        self._failed = False
        self._clock_ns = clock_ns
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 (closed by close)
        try:
            self._append(struct.pack("<" + FILE_HEADER, MAGIC_NANOSECONDS, 2, 4, 0, 0, SNAP_BYTES, LINKTYPE_RAW))
        except BaseException:
            self._give_up()
            raise

    def __repr__(self) -> str:
        return f"CaptureLink({self.link!r}, {self.path!r})"

    def note(self, payload: bytes) -> None:
        """Write something of one's own among the datagrams, however full the file is: UDP from `NOTE` to `NOTE`.

        `payload` has 1..MAX_DATAGRAM_BYTES bytes.
        """
        self._write(note_record(payload, self._clock_ns()))

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            self._fail(error)
        finally:
            super().close()

    def _append(self, data: bytes) -> None:
        self._file.write(_stored(self.path, data))
        self._file.flush()  # so that others can read it, and none of it is known to be lost only later
        if self._file.seekable():
            self._whole_bytes = self._file.tell()

    def _write(self, data: bytes) -> bool:
        """Whether it is in the file."""
        if not self._failed:
            try:
                self._append(data)
            except OSError as error:
                self._fail(error)
        return not self._failed

    def _fail(self, error: OSError) -> None:
        self._failed = True
        self._give_up()
        with suppress(OSError):  # a pipe has no length
            os.truncate(self.path, self._whole_bytes)
        log.error("%s: %s; nothing more is recorded there", self.path, error.strerror)

    def _give_up(self) -> None:
        with suppress(OSError):  # it tries to write what is left
            self._file.close()

    def receive(self, timeout_s: float) -> list[Batch]:
        batches = self.link.receive(timeout_s)
        for batch in batches:
            self._record(batch.datagrams, batch.peer, self.address)
        return batches

    def send(self, batch: Batch) -> int:
        accepted = self.link.send(batch)
        self._record(batch.datagrams[:accepted], self.address, batch.peer)
        return accepted

    def _record(self, datagrams: NDArray[np.uint8], source: Address, destination: Address) -> None:
        count = len(datagrams)
        if count == 0:
            return
        data = records(datagrams, source, destination, self._clock_ns())
        room = min(max(self._left_bytes, 0) // (len(data) // count), count)
        kept = data[: room * (len(data) // count)]
        if kept and not self._write(kept):
            room = 0
        self._left_bytes = self._left_bytes - len(kept) if room == count else 0
        self.not_captured += count - room
