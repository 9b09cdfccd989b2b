"""A rank that waits for too long, and what it can tell of the reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from operator import sub

from inagg_host.config import Config
from inagg_host.core import Operation
from inagg_host.io.tally import Traffic
from inagg_host.io.transport import Transport
from inagg_host.task import Task

from .reachability import RankCounts, UdpReachability, done_text, where_text
from .session import Session

log = logging.getLogger("inagg")


class Deadlines:
    """Deadlines of one rank, to be asked again and again, on one thread."""

    def __init__(
        self,
        config: Config,
        limit_s: Callable[[], float],
        session: Session,
        transport: Transport,
        tasks: Mapping[Operation, tuple[Task, Traffic]],
    ) -> None:
        """``limit_s``: how long sums may take now; ``tasks``: what is unfinished, in order, and the transport's
        `datagrams` when that was begun; it changes where the transport calls."""
        self._config, self._limit_s, self._session, self._transport = config, limit_s, session, transport
        self._tasks = tasks
        self._reachability = UdpReachability()

    def missed(self) -> str | None:
        """Why the sums of what has waited longest will not come any more, as far as is known; None if it may still
        wait. Warns if what this rank sends, or what it is answered, does not arrive; with the policy "fallback" nothing
        is to be waited for then."""
        if (said := self._listen()) is not None:
            if self._reachability.lost and self._config.policy == "fallback":
                return said
            log.warning("%s: %s", self._config.who, said)
        oldest, limit_s = next(iter(list(self._tasks)), None), self._limit_s()
        if oldest is None or time.monotonic() - oldest.submitted_s <= limit_s:
            return None
        return f"no result within {limit_s:g} s. {self._session.calls.why()}{self._done_for(oldest)}"

    def _done_for(self, operation: Operation) -> str:
        """A sentence: what went to and fro since an operation began. The switch does not see what never arrives."""
        with self._transport.lock:
            if operation not in self._tasks:
                return ""
            _, begun = self._tasks[operation]
        return f" {done_text(*map(sub, self._transport.datagrams(), begun))}"

    def _listen(self) -> str | None:
        """Some sentences if datagrams are lost, as far as is known, once."""
        transport, shards = self._transport, self._transport.engine.state.shards
        waiting = (shards["snd_una"] < shards["snd_nxt"]).tolist()
        seen = RankCounts(*transport.datagrams(), any(waiting))
        if not self._reachability.wants_counts(time.monotonic(), seen):
            return None
        # Sums that a shard has yet to give are named alone: it may be the only one that a firewall stands before.
        leases = [shard for shard, waits in zip(transport.engine.epoch.shards, waiting, strict=True) if waits]
        where = where_text([shard.address for shard in leases])
        counted = self._session.counted()
        if transport.datagrams()[-1] != seen.came:
            return None  # while the switch was asked
        return self._reachability.verdict(time.monotonic(), seen, counted, where)
