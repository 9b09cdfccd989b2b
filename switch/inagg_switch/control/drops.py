"""Datagrams that a switch refuses now, and their usual meaning: those of a job that hangs may arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from inagg_wire.errors import Reason

from ..text import count_text, seconds_text

WATCHED_S: Final = 10.0
"""Seconds to look back: several polls, and a few time-outs of a worker that sends again."""
REASONS_TOLD: Final = 3
USUAL: Final = frozenset((Reason.DUPLICATE.label, Reason.STALE.label))
"""Reasons of datagrams that repeat what was lost: no refusals."""

LATE_CUTTING: Final = (
    "a frame with several datagrams came uncut (segmentation offload that nobody did), as over a virtual link to bmv2: "
    "say `ip link set dev NAME gso_max_segs 1` and `ethtool -K NAME tx off tso off gso off gro off` on both ends of it"
)
ANOTHER_BUILD: Final = "its sender runs another version than this switch, or something else sends to this port"
AN_OLD_EPOCH: Final = (
    "its sender is of an epoch or a run that is over; if that process should not run any more, stop it"
)
MEANINGS: Final = {
    Reason.TRAILING_BYTES.label: LATE_CUTTING,
    Reason.TRUNCATED.label: "its sender or something on the way cuts datagrams off: compare the MTUs on the way",
    Reason.WRONG_TOKEN.label: AN_OLD_EPOCH,
    Reason.UNKNOWN_JOB.label: AN_OLD_EPOCH,
    Reason.UNKNOWN_SOURCE.label: (
        "it came from another address or UDP port than the rank joined with (INAGG_HOST says which address to use; "
        "addresses must not be translated on the way), or, at a P4 switch, through another port than --network says"
    ),
    Reason.WRONG_FORMAT.label: ANOTHER_BUILD,
    Reason.WRONG_LANES.label: ANOTHER_BUILD,
    Reason.WRONG_KIND.label: ANOTHER_BUILD,
    Reason.WRONG_OP.label: "ranks do not call the same operations in the same order",
    Reason.OUTSIDE_WINDOW.label: "a rank is ahead of what its window allows: " + ANOTHER_BUILD,
    Reason.SLOT_OUTSIDE_LEASE.label: ANOTHER_BUILD,
    "bad_lengths": LATE_CUTTING,
    "ip_checksum": "something on the way harms headers",
    "fragment": "a datagram is larger than the MTU of its link, and a P4 switch puts no fragments together",
    "not_ours": "they were for the switch itself, which answers ARP, pings and UDP over IPv4 to its data port alone",
}
"""The usual meaning of drops, by `inagg_wire.errors.Reason.label` or a P4 switch's name of the reason."""


class DropWatch:
    """The drops of the last `WATCHED_S` seconds, by reason."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, int]]] = deque()

    def observe(self, now: float, drops: Mapping[str, int]) -> None:
        """``drops``: since the switch started. A count that falls (a switch below has gone) begins anew."""
        if self._looks and any(drops.get(why, 0) < count for why, count in self._looks[-1][1].items()):
            self._looks.clear()
        self._looks.append((now, drops))
        while len(self._looks) > 2 and self._looks[1][0] <= now - WATCHED_S:
            self._looks.popleft()

    def grown(self) -> tuple[float, dict[str, int]]:
        """Seconds that were watched, and the drops in them, the most frequent first."""
        if len(self._looks) < 2:
            return 0.0, {}
        (begin, before), (end, now) = self._looks[0], self._looks[-1]
        grown = {why: count - before.get(why, 0) for why, count in now.items() if count > before.get(why, 0)}
        return end - begin, dict(sorted(grown.items(), key=lambda item: -item[1]))


def drop_sentences(watched_s: float, grown: Mapping[str, int]) -> Iterator[str]:
    """Sentences on refusals that grow. The counters are the switch's: of which job they were is not known."""
    refused = [(why, count) for why, count in grown.items() if why not in USUAL]
    for why, count in refused[:REASONS_TOLD]:
        meaning = MEANINGS.get(why, "see the reasons in protos/README.md")
        datagrams = count_text(count, "datagram")
        yield (
            f"In the last {seconds_text(watched_s)} the switch refused {datagrams} as {why} (of this job or another): "
            f"{meaning}."
        )
