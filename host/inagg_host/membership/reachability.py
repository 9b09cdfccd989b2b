"""A check for datagrams that never arrive, or whose answers never do: a firewall lets TCP pass and not UDP. Sans-IO.

A rank that hears nothing may as well wait for another one: a switch answers a contribution when the sum is complete.
But it counts what comes of each rank, and what it answers again, and says so on the control connection, which works.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from inagg_link.addresses import Address, join_address
from inagg_proto.v1 import control_pb2 as pb

AFTER_S: Final = 8.0
"""Time without a datagram after which a rank that sends again asks the switch for its counts,"""
RECHECK_S: Final = 2.5
"""and again after so much longer."""
AGAIN_MOST_S: Final = 60.0
"""Longest time until it asks once more if all was well; it doubles each time."""
RESENT_LEAST: Final = 3
"""Datagrams sent again between the two, or answered, that tell something if all were lost. There are some ten."""


class RankCounts(NamedTuple):
    """Counts of a rank itself: datagrams since it joined."""

    sent: int
    resent: int
    """Datagrams that were sent again, included in ``sent``."""
    came: int
    waits: bool
    """Whether something was sent that has no result."""


class SwitchCounts(NamedTuple):
    """Counts that the switch has of a rank: bytes that came of it, and results that it was sent again."""

    bytes_in: int
    answered: int


def switch_counts(reply: pb.StatsResponse, rank: int) -> SwitchCounts | None:
    """Counts that a switch has of a rank of the only job that it was asked for; None if it has none: of ranks of a
    switch below that does not answer it counts nothing."""
    for job in reply.jobs:
        member = next((member for member in job.job.members if member.rank == rank), None)
        if member is not None and member.switch in {shard.switch for shard in reply.shards}:
            return next((SwitchCounts(own.bytes_in, own.resends) for own in job.workers if own.rank == rank), None)
    return None


class UdpReachability:
    """The check of one rank; calls come in order of time."""

    def __init__(self) -> None:
        self._since: tuple[float, RankCounts] | None = (
            None  # when nothing had come for no time, and what was known then
        )
        self._ask_at_s, self._again_s = 0.0, AFTER_S
        self._counted: SwitchCounts | None = None  # what the switch said first,
        self._after: RankCounts | None = None  # and what was known soon after
        self._warned = False
        self._passed_on = False  # what the switch said of itself

    @property
    def lost(self) -> bool:
        """Whether the last `verdict` was that all datagrams are lost, one way or the other, and none has come since."""
        return self._warned

    def wants_counts(self, now: float, seen: RankCounts) -> bool:
        """Whether the switch is to be asked now what it has counted, for `verdict`."""
        if self._since is None or not seen.waits or seen.came != self._since[1].came:
            self._warned = self._warned and self._since is not None and seen.came == self._since[1].came
            self._since, self._counted, self._after, self._passed_on = (now, seen), None, None, False
            self._ask_at_s, self._again_s = now + AFTER_S, AFTER_S
            return False
        if self._counted is not None and self._after is None:
            self._after, self._ask_at_s = seen, now + RECHECK_S
        return not self._warned and seen.resent > self._since[1].resent and now >= self._ask_at_s

    def verdict(self, now: float, seen: RankCounts, counted: SwitchCounts | str | None, where: str) -> str | None:
        """Some sentences, if datagrams for ``where`` or from there are lost; None if nobody knows, or others are waited
        for. After `wants_counts`, with the same ``seen``; ``counted``: None if the switch did not say,
        or a sentence on what keeps it from counting, which is told once."""
        before, after = self._counted, self._after
        self._counted = self._after = None
        if isinstance(counted, SwitchCounts) and before is None:
            self._counted = counted
            return None
        self._again_s = min(2 * self._again_s, AGAIN_MOST_S)
        self._ask_at_s = now + self._again_s
        if isinstance(counted, str) and not self._passed_on and self._since is not None:
            self._passed_on = True
            return f"{_silence_text(now, seen, self._since, where)} And {counted}"
        if not isinstance(counted, SwitchCounts) or before is None or after is None or self._since is None:
            return None
        if seen.resent - after.resent < RESENT_LEAST:
            return None
        if counted.bytes_in == before.bytes_in:
            lost = "of what it sends the switch counts nothing: does a firewall let UDP pass, from here to there?"
        elif counted.answered - before.answered >= RESENT_LEAST:
            lost = "what it sends is answered, and no answer comes: does a firewall let UDP pass, from there to here?"
        else:
            return None
        self._warned = True
        return f"{_silence_text(now, seen, self._since, where)} And {lost}"


def _silence_text(now: float, seen: RankCounts, since: tuple[float, RankCounts], where: str) -> str:
    since_s, begin = since
    ever = ", as it did before" if begin.came else " since this rank joined"
    done = done_text(seen.sent - begin.sent, seen.resent - begin.resent, seen.came - begin.came)
    return f"nothing comes from {where}{ever}, for {now - since_s:.0f} s. {done}"


def done_text(sent: int, resent: int, came: int) -> str:
    """A sentence: what went to and fro meanwhile."""
    return f"Meanwhile this rank sent {sent} datagrams, {resent} of them again, and {came} came to it."


def where_text(addresses: list[Address]) -> str:
    """The places that datagrams go to, for people."""
    return " and ".join(f"UDP {join_address(host, port)}" for host, port in addresses)
