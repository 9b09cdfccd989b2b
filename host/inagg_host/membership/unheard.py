"""Whether a rank sends again and again what never arrives, or whose answers never do: a firewall that lets TCP pass and
not UDP. Sans-IO.

A rank that hears nothing may as well wait for another one: a switch answers a contribution when the sum is complete.
But it counts what comes of each rank, and what it answers again, and says so on the control connection, which works.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from inagg_link import Address
from inagg_link.addresses import join_address
from inagg_proto.v1 import control_pb2 as pb

AFTER_S: Final = 8.0
"""After so long without a datagram a rank that sends again asks the switch what it has counted,"""
LOOK_S: Final = 2.5
"""and again after so much longer."""
AGAIN_MOST_S: Final = 60.0
"""If all was well it asks later once more, after twice the time, up to this one."""
RESENT_LEAST: Final = 3
"""So many datagrams sent again between the two, or answered, tell something, if all were lost. There are some ten."""


class Seen(NamedTuple):
    """What a rank knows itself: datagrams since it joined."""

    sent: int
    resent: int
    """Of these, those that were sent again."""
    came: int
    waits: bool
    """Whether something was sent that has no result."""


class Counted(NamedTuple):
    """What the switch has counted of a rank: bytes that came of it, and results that it was sent again."""

    bytes_in: int
    answered: int


def counted_of(reply: pb.StatsResponse, rank: int) -> Counted | None:
    """What a switch has counted of a rank of the only job that it was asked for; None if it does not know: of ranks of
    a switch below that does not answer it counts nothing."""
    for job in reply.jobs:
        member = next((member for member in job.job.members if member.rank == rank), None)
        if member is not None and member.switch in {shard.switch for shard in reply.shards}:
            return next((Counted(own.bytes_in, own.resends) for own in job.workers if own.rank == rank), None)
    return None


class Unheard:
    """Looks at one rank, in order of time."""

    def __init__(self) -> None:
        self._since: tuple[float, Seen] | None = None  # when nothing had come for no time, and what was known then
        self._ask_at_s, self._again_s = 0.0, AFTER_S
        self._counted: Counted | None = None  # what the switch said first,
        self._after: Seen | None = None  # and what was known soon after
        self._told = False

    def asks(self, now: float, seen: Seen) -> bool:
        """Whether the switch is to be asked now what it has counted, for `judge`."""
        if self._since is None or not seen.waits or seen.came != self._since[1].came:
            self._told = self._told and self._since is not None and seen.came == self._since[1].came
            self._since, self._counted, self._after = (now, seen), None, None
            self._ask_at_s, self._again_s = now + AFTER_S, AFTER_S
            return False
        if self._counted is not None and self._after is None:
            self._after, self._ask_at_s = seen, now + LOOK_S
        return not self._told and seen.resent > self._since[1].resent and now >= self._ask_at_s

    def judge(self, now: float, seen: Seen, counted: Counted | None, where: str) -> str | None:
        """After `asks`, with the same ``seen``: ``counted``, None if the switch did not say. Some sentences, if
        datagrams for ``where`` or from there are lost; None if nobody knows, or others are waited for."""
        before, after = self._counted, self._after
        self._counted = self._after = None
        if counted is not None and before is None:
            self._counted = counted
            return None
        self._again_s = min(2 * self._again_s, AGAIN_MOST_S)
        self._ask_at_s = now + self._again_s
        if counted is None or before is None or after is None or self._since is None:
            return None
        if seen.resent - after.resent < RESENT_LEAST:
            return None
        if counted.bytes_in == before.bytes_in:
            lost = "of what it sends the switch counts nothing: does a firewall let UDP pass, from here to there?"
        elif counted.answered - before.answered >= RESENT_LEAST:
            lost = "what it sends is answered, and no answer comes: does a firewall let UDP pass, from there to here?"
        else:
            return None
        self._told = True
        since_s, begin = self._since
        ever = ", as it did before" if begin.came else " since this rank joined"
        done = done_text(seen.sent - begin.sent, seen.resent - begin.resent, seen.came - begin.came)
        return f"nothing comes from {where}{ever}, for {now - since_s:.0f} s. {done} And {lost}"


def done_text(sent: int, resent: int, came: int) -> str:
    """A sentence: what went to and fro meanwhile."""
    return f"Meanwhile this rank sent {sent} datagrams, {resent} of them again, and {came} came to it."


def where_text(addresses: list[Address]) -> str:
    """Where datagrams go to, for people."""
    return " and ".join(f"UDP {join_address(host, port)}" for host, port in addresses)
