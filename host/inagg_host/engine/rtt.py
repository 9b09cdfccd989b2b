"""The retransmission timer of RFC 6298, with bounds for a network within a building."""

from __future__ import annotations

from dataclasses import dataclass

RTO_MIN_S = 0.002
"""RFC 6298 (2.4) says one second, for the Internet. Here a round trip is less than a millisecond, and what makes it
longer is mostly a rank that is not ready yet, or a scheduler. To send again for nothing costs a datagram or two."""
RTO_MAX_S = 0.25
"""(2.5) allows a bound of 60 s or more. A rank that waits for another sends a datagram so often."""
RTO_FIRST_S = 0.02
"""Before the first sample; (2.1) says one second."""
GRANULARITY_S = 1e-4


@dataclass(slots=True)
class RoundTrip:
    """Round-trip estimate and timeout. A round trip ends with the result, so it includes the slowest rank's delay."""

    smoothed_s: float = 0.0
    """SRTT; 0 before the first sample."""
    variation_s: float = 0.0
    """RTTVAR."""
    least_s: float = float("inf")
    """The shortest sample: the path without queues and without waiting for others."""
    samples: int = 0
    backoff: int = 0
    """How often the timer has expired since the last sample."""

    def sample(self, rtt_s: float) -> None:
        """Take the round trip of a datagram that was sent once (Karn's rule, section 3 of the RFC)."""
        rtt_s = max(rtt_s, 0.0)
        if not self.samples:  # (2.2)
            self.smoothed_s, self.variation_s = rtt_s, rtt_s / 2
        else:  # (2.3): alpha = 1/8, beta = 1/4, the variation first
            self.variation_s += (abs(self.smoothed_s - rtt_s) - self.variation_s) / 4
            self.smoothed_s += (rtt_s - self.smoothed_s) / 8
        self.least_s = min(self.least_s, rtt_s)
        self.samples += 1
        self.backoff = 0

    def expired(self) -> None:
        """The timer ran out: back off (5.5)."""
        self.backoff += 1

    @property
    def timeout_s(self) -> float:
        """RTO: how long after the last progress the timer runs out."""
        if not self.samples:
            rto_s = RTO_FIRST_S
        else:
            rto_s = max(RTO_MIN_S, self.smoothed_s + max(GRANULARITY_S, 4 * self.variation_s))
        return min(rto_s * 2.0 ** min(self.backoff, 16), RTO_MAX_S)
