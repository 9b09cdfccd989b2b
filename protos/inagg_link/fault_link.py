"""Seeded faults around any link: a `FaultModel` in front of each direction."""

from __future__ import annotations

import heapq
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from inagg_link.around import LinkAround
from inagg_link.base import Batch, Link, count_datagrams
from inagg_link.fault_model import Arrival, FaultModel
from inagg_link.faults import Faults
from inagg_link.port import FAULTY, MASK_AT, RECEIVING, SENDING, Port

Direction = Literal["send", "receive"]


class FaultLink(LinkAround):
    """A link with faults in one direction or both; each direction has a model of its own, seeded from `seed`.

    Batches that arrive later than they were sent are held here, and go on when this link is used again at or
    after their time: a `receive` waits no longer than until the next is due (`next_due_s`). What is still
    held when the link is closed is lost.

    `seed`: drawn if None; in any case an attribute, and in the repr. `clock`: seconds, monotonic.
    """

    def __init__(
        self,
        link: Link,
        faults: Faults,
        seed: int | None = None,
        *,
        directions: Sequence[Direction] = ("send", "receive"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if unknown := set(directions) - {"send", "receive"}:
            raise ValueError(f"directions are 'send' and 'receive', not {sorted(unknown)}")
        super().__init__(link)
        self.faults = faults
        self.seed = secrets.randbits(32) if seed is None else seed
        self.sending = self._model("send", directions, 0)
        self.receiving = self._model("receive", directions, 1)
        self._clock = clock
        self._lent = False
        # heaps of (time, number, batch): the number keeps the order of equal times and is never equal itself
        self._outbound: list[tuple[float, int, Batch]] = []
        self._inbound: list[tuple[float, int, Batch]] = []
        self._number = 0

    def _model(self, direction: Direction, directions: Sequence[Direction], index: int) -> FaultModel:
        faults = self.faults if direction in directions else Faults()
        seed = np.random.SeedSequence([self.seed, index]).generate_state(1, np.uint64)[0]
        return FaultModel(faults, int(seed))

    def __repr__(self) -> str:
        return f"FaultLink({self.link!r}, {self.faults}, seed={self.seed})"

    def port(self) -> Port | None:
        port, models = self.link.port(), (self.sending, self.receiving)
        if not self._lent:
            if port is None or port.words[FAULTY]:
                return None  # a port has the masks of one link, perhaps one below
            for direction, model in ((SENDING, self.sending), (RECEIVING, self.receiving)):
                model.lend(port.masks[direction], port.words[MASK_AT + direction : MASK_AT + direction + 1])
            port.words[FAULTY], self._lent = 1, True
        for model in models:
            model.draw_ahead()  # in any case: a loop that has the port already may be waiting for them
        if self._outbound or self._inbound or not all(model.losses_only for model in models):
            return None
        return port

    @property
    def next_due_s(self) -> float | None:
        due = [heap[0][0] for heap in (self._outbound, self._inbound) if heap]
        below = super().next_due_s
        return min(due if below is None else [*due, below], default=None)

    def close(self) -> None:
        self._outbound, self._inbound = [], []
        super().close()

    def send(self, batch: Batch) -> int:
        """Send as any link does; what a fault takes counts as accepted, since a network takes it only after the kernel
        has."""
        count = count_datagrams(batch.data, batch.size)
        now_s = self._clock()
        self._send_due(now_s)
        refused = 0
        for arrival in self.sending.apply(batch, now_s) if count else ():
            if arrival.time_s <= now_s:
                refused += len(arrival.batch) - self.link.send(arrival.batch)
            else:
                self._hold(self._outbound, arrival)
        return max(count - refused, 0)

    def receive(self, timeout_s: float) -> list[Batch]:
        now_s = self._clock()
        self._send_due(now_s)
        due_s = self.next_due_s
        if due_s is not None:
            timeout_s = min(timeout_s, max(due_s - now_s, 0.0))
        received = self.link.receive(timeout_s)
        now_s = self._clock()
        for batch in received:
            for arrival in self.receiving.apply(batch, now_s):
                self._hold(self._inbound, arrival)
        self._send_due(now_s)
        return self._take_due(self._inbound, now_s)

    def _hold(self, heap: list[tuple[float, int, Batch]], arrival: Arrival) -> None:
        heapq.heappush(heap, (arrival.time_s, self._number, arrival.batch))
        self._number += 1

    def _take_due(self, heap: list[tuple[float, int, Batch]], now_s: float) -> list[Batch]:
        due = []
        while heap and heap[0][0] <= now_s:
            due.append(heapq.heappop(heap)[2])
        return due

    def _send_due(self, now_s: float) -> None:
        for batch in self._take_due(self._outbound, now_s):
            self.link.send(batch)
