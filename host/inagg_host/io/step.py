"""The work of `loop`, in Python: for links that lend nothing to compiled loops, such as those that write captures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inagg_host.core import Engine, Operation, OutOfGenerations
from inagg_link.addresses import Address
from inagg_link.base import Batch, Link

from .phases import Phase, Stopwatch


class Steps:
    """Steps of ``engine`` over ``link``; ``watch`` is told of phases."""

    def __init__(self, engine: Engine, link: Link, watch: Stopwatch) -> None:
        self._engine, self._link, self._watch = engine, link, watch
        self.strangers = 0
        """Datagrams that came from somewhere else than a shard."""

    def step(self, shards: Sequence[Address], finished: Callable[[Operation], None]) -> bool:
        """Receive what has come, send what may be sent; whether something had come. ``shards``: their addresses.
        Raises what engine and link do, and `OutOfGenerations`."""
        begin, engine = self._watch.begin, self._engine
        begin(Phase.NETWORK)
        batches = self._link.receive(0.0)
        now_s = begin(Phase.DECODE)
        for batch in batches:
            if batch.peer not in shards:
                self.strangers += len(batch)
                continue
            for operation in engine.on_batch(shards.index(batch.peer), batch.data, batch.size, now_s):
                finished(operation)
        for out in engine.outgoing(begin(Phase.ENCODE)):
            begin(Phase.NETWORK)
            self._link.send(Batch(out.data, out.size, shards[out.shard]))
            begin(Phase.ENCODE)
        if engine.exhausted and not engine.idle:
            raise OutOfGenerations
        return bool(batches) or engine.draft_ahead()
