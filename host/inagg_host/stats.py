"""Counters of what a rank has done."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Counters:
    """Totals of one rank since it joined. Times are seconds of the transport's thread, bytes are UDP payload."""

    operations: int = 0
    """Tensors whose sums were had from the switch."""
    elements: int = 0
    failed: int = 0
    """Operations that ended with an error."""
    datagrams_out: int = 0
    datagrams_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    resent: int = 0
    """Datagrams sent again, included in ``datagrams_out``."""
    timeouts: int = 0
    """How often a retransmission timer ran out (RFC 6298): for what is lost, or for a rank that is late."""
    repeated: int = 0
    """Results received again, or for blocks that are done."""
    foreign: int = 0
    """Received datagrams that are not of this job and epoch, or not of the switch."""
    invalid_codes: int = 0
    """Received codes that name no level of their format, and count as zero."""
    epochs: int = 0
    """Epochs joined, the first included."""
    rtt_s: float = 0.0
    """Smoothed round-trip time, from a contribution to its result: it includes the wait for the slowest rank."""
    rtt_least_s: float = 0.0
    encode_s: float = 0.0
    """Finding scales and encoding."""
    decode_s: float = 0.0
    network_s: float = 0.0
    """Time in system calls that send and receive."""
    idle_s: float = 0.0
    """Waiting, with something unfinished, for the network or for other ranks."""
    inner: dict[str, int] = field(default_factory=dict)
    """Operations that went to the inner process group, by reason (PyTorch only)."""

    def __add__(self, other: Counters) -> Counters:
        """Counters of two jobs of one rank: the sums, the longer round trip, the shorter of the least ones."""
        mine, theirs = self.as_dict(), other.as_dict()
        both = {name: mine[name] + theirs[name] for name in mine if name != "inner"}
        both["rtt_s"] = max(self.rtt_s, other.rtt_s)
        both["rtt_least_s"] = min(filter(None, (self.rtt_least_s, other.rtt_least_s)), default=0.0)
        both["inner"] = {name: self.inner.get(name, 0) + other.inner.get(name, 0) for name in self.inner | other.inner}
        return Counters(**both)

    def __sub__(self, earlier: Counters) -> Counters:
        """Counters of what was done since ``earlier``; round trips are those of now."""
        mine, theirs = self.as_dict(), earlier.as_dict()
        since = {name: mine[name] - theirs[name] for name in mine if name not in ("inner", "rtt_s", "rtt_least_s")}
        inner = {name: count - earlier.inner.get(name, 0) for name, count in self.inner.items()}
        return Counters(**since, rtt_s=self.rtt_s, rtt_least_s=self.rtt_least_s, inner=inner)

    def as_dict(self) -> dict[str, Any]:
        """Counters by name, for JSON."""
        return asdict(self)

    def summary(self) -> str:
        """A few lines for a person."""
        lines = [
            f"{self.operations} tensors, {self.elements:,} elements summed in the network; {self.failed} failed",
            f"sent {self.bytes_out:,} bytes in {self.datagrams_out:,} datagrams ({self.resent:,} resent; "
            f"{self.timeouts:,} timeouts), "
            f"received {self.bytes_in:,} bytes in {self.datagrams_in:,}",
            f"round trip {self.rtt_s * 1e3:.2f} ms (least {self.rtt_least_s * 1e3:.2f} ms); {self.epochs} epoch(s)",
            f"time: encode {self.encode_s:.2f} s, decode {self.decode_s:.2f} s, sockets {self.network_s:.2f} s, "
            f"waiting {self.idle_s:.2f} s",
        ]
        if self.inner:
            went = ", ".join(f"{count} {reason}" for reason, count in sorted(self.inner.items()))
            lines.append(f"through the inner group: {went}")
        return "\n".join(lines)
