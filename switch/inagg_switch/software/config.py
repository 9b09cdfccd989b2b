"""Configuration of a software switch, and messages of its shards: all that parent and shard both know.

Without Numba, which the parent does not need: importing it takes as long as all else that the parent does to start.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inagg_link.faults import Faults
from inagg_wire.formats import CHILDREN_MAX, FORMATS
from inagg_wire.layout import UDP_PAYLOAD_BYTES_1500

from ..binding import Address
from ..multicast_groups import AUTO

PARENTS_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a terminal (Ctrl-C) or a service manager sends to the whole group: only the parent acts on them, and
says when to stop."""


@dataclass(frozen=True, slots=True)
class SoftwareConfig:
    """Configuration of a software switch."""

    host: str = "127.0.0.1"
    """The literal address that data planes bind to and that workers send to."""
    port: int = 0
    """UDP port of the first shard; the others take the next ones. 0 takes free ports."""
    shards: int = 1
    slots: int = 65536
    """Slots per shard, a power of two."""
    datagram_bytes: int = UDP_PAYLOAD_BYTES_1500
    """Most UDP payload of a datagram."""
    offload: bool | None = None
    """UDP_SEGMENT and UDP_GRO: None where the kernel has them, False never."""
    multicast: str = AUTO
    """Send results for all ranks once, to a group: "auto" where all workers are on this machine and it works, "off", or
    a multicast prefix. Never with ``faults``, as what happens to one rank's copy would happen to all."""
    faults: Faults | None = None
    """Faults of datagrams in both directions, for experiments."""
    fault_seed: int = 0
    """Shard i draws its faults from this number plus i."""
    capture: Path | None = None
    """File for the datagrams of the first shard; the others add their number to the name."""
    capture_bytes: int = 1 << 30
    """Most bytes that each shard records."""
    record: Path | None = None
    """File for what the first shard takes in and gives out, faults done, for a replay; the others as above."""

    log_format: str = "human"
    log_level: str = "warning"
    """Format and level of what shards log, as `logs.configure` takes them."""

    starts: int = 1
    """Number of times that this shard was started; more than once if it had died."""

    @property
    def lanes(self) -> int:
        """Most lanes that any format can put into such datagrams."""
        return max(f.max_lanes(n, self.datagram_bytes) for f in FORMATS.values() for n in range(1, CHILDREN_MAX + 1))

    def capture_of(self, shard: int) -> Path | None:
        """File in which shard number ``shard`` records: ``run.pcap``, ``run.shard1.pcap``, ...; when it was started
        again, ``run.shard1.start2.pcap``, ..."""
        return _of_shard(self.capture, shard, self.starts)

    def record_of(self, shard: int) -> Path | None:
        """File of the recording, named as by `capture_of`."""
        return _of_shard(self.record, shard, self.starts)


def _of_shard(path: Path | None, shard: int, starts: int) -> Path | None:
    if path is None:
        return None
    which = (f".shard{shard}" if shard else "") + (f".start{starts}" if starts > 1 else "")
    return path.with_name(f"{path.stem}{which}{path.suffix}")


@dataclass(frozen=True, slots=True)
class Started:
    """Message of a shard that serves."""

    address: Address
    pid: int
    gso: bool
    """UDP_SEGMENT: it sends batches."""
    gro: bool
    """UDP_GRO: it receives batches."""
    receive_buffer_bytes: int
    """Receive buffer of the socket, as the kernel counts: twice what it was asked for."""
    send_buffer_bytes: int
    groups: str | None
    """The prefix of the groups that it multicasts results to; None: it sends them to each rank."""


@dataclass(frozen=True, slots=True)
class Compiling:
    """Message of a shard before it serves: it lives, and has compiled so many functions."""

    functions: int
