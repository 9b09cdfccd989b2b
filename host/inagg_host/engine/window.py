"""The send window of one shard: which blocks are out, their datagrams, what has come back, what to send again.

Blocks are numbered by the shard (block g of a job with k shards is block g div k of shard g mod k). Their datagrams
stand in a ring of as many rows as the lease has slots, 2P, or more: a rank that has the result of block b may still be
asked, after a restart of the switch, to send any of the 2P blocks before its next one again (see `inagg_wire.slots`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_wire.layout import GENERATION_MAX, Op
from inagg_wire.slots import Lease

from . import loops
from . import stream as streams
from .loops import FOREIGN, FRESH, JOB_AT, OUTCOMES, REORDER_BLOCKS, REPEATED, TOKEN_AT
from .memory import Memory
from .rtt import RoundTrip

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class Window:
    """One shard's window. Sans-IO; one caller at a time."""

    def __init__(self, lease: Lease, memory: Memory, shapes: Integers, first: int = 0) -> None:
        """``memory``: of this shard, as many rows as the lease has slots; the ring's are of the bytes of a SUM
        contribution, which no MAX one exceeds. ``shapes``: (op, 4), see `FORMAT`. ``first``: the block to begin
        with."""
        self.lease = lease
        self.rtt = RoundTrip()
        self.low = self.next = self.stored = first
        """Blocks below ``low`` have their results, those from ``next`` on have not been sent, all in this epoch. Those
        below ``stored`` stand in the ring: if ``next`` is less, they are to be sent again before any new one."""
        self.ring: Bytes = memory.ring
        self.counts: Integers = memory.counts
        self.resent = 0
        self.flight = 0
        """How many blocks are out, that is, sent and without a result, and how many may be (see `_adapt`)."""
        self.flight_most = lease.window
        self._first = first
        self._shapes = shapes
        self._sizes, self._op, self._done, self._taken = memory.sizes, memory.op, memory.done, memory.taken
        self._once, self._sent_s, self._after = memory.once, memory.sent_s, memory.after
        self._round_end = first  # a round trip is over when this block, or a later one, has its result
        self._shortest_s = np.inf  # of the blocks answered in this round trip
        self._answered = self._overtaken = 0  # blocks in this round trip
        self._highest = first - 1  # of the blocks with a result in this epoch
        self._places = np.zeros(streams.RESULTS_MOST, np.int64)
        self._blocks = np.zeros(streams.RESULTS_MOST, np.int64)
        self._progress_s = 0.0
        self._end = _end_of_round(lease, first)

    # --- sending ---

    @property
    def room(self) -> int:
        """How many new blocks may be sent now: block b only after the result of b - P, and none of the next round."""
        if self.next < self.stored:
            return 0
        return min(self.low + self.lease.window - self.next, self._end - self.next, self._flight_room)

    @property
    def _flight_room(self) -> int:
        return max(0, self.flight_most - self.flight)

    @property
    def exhausted(self) -> bool:
        """The generations have run out, and every block has its result: a new epoch must begin."""
        return self.next == self._end == self.low

    def contiguous(self, count: int) -> int:
        """How many of the next ``count`` blocks stand in the ring without a wrap."""
        return min(count, self.lease.slots - (self.next & (self.lease.slots - 1)))

    def rows(self, block: int, count: int) -> Bytes:
        """The ring's rows of ``count`` blocks from ``block`` on, which do not wrap: (count, stride)."""
        row = self.place(block)
        return self.ring[row : row + count]

    def place(self, block: int) -> int:
        """The row of the ring that has the datagram of ``block``."""
        return block & (len(self.ring) - 1)

    def push(self, count: int, op: Op, header: Bytes, size: int, now: float) -> Bytes:
        """Send the next ``count`` blocks, whose payloads are in their `rows`; the datagrams, of ``size`` bytes, back to
        back. ``header``: that of them all, but for slot and generation."""
        row, datagrams = self.next & (self.lease.slots - 1), self.rows(self.next, count)
        loops.push(  # rows do not wrap: all are of one generation
            datagrams, row, count, header, size, int(op), self.lease.base + row, self.lease.generation(self.next),
            self.next, now, self._sizes, self._op, self._done, self._taken, self._once, self._sent_s, self._after,
        )  # fmt: skip
        self._advance(count, now)
        self.stored = self.next
        return datagrams.reshape(-1) if size == self.ring.shape[1] else datagrams[:, :size].reshape(-1)

    def replay(self, limit: int, now: float) -> list[tuple[Bytes, int]]:
        """Send the next blocks that were sent in an earlier epoch already, up to ``limit``, by the same rules as new
        ones: pieces of equal datagrams, with their size. Empty when there is no room, or nothing left of them."""
        if self.next == self.stored:
            return []
        count = min(self.stored - self.next, self.low + self.lease.window - self.next, self._flight_room, limit)
        if count <= 0:
            return []
        blocks = self.next + np.arange(count)
        self._note_new(blocks & (self.lease.slots - 1), count, now)
        self.resent += count
        return self._pieces(blocks)

    def _note_new(self, rows: Any, count: int, now: float) -> None:
        """The next ``count`` blocks, in ``rows``, are sent for the first time in this epoch."""
        self._done[rows], self._once[rows], self._sent_s[rows] = False, True, now
        self._after[rows] = self.next + np.arange(count)
        self._advance(count, now)

    def _advance(self, count: int, now: float) -> None:
        """The window moves on by ``count`` blocks."""
        if self.next == self.low:
            self._progress_s = now  # nothing was out: the timer starts now (RFC 6298, 5.1)
        self.next += count
        self.flight += count

    # --- receiving ---

    def accept(
        self, data: Bytes, size: int, job: int, token: int, now: float
    ) -> tuple[Integers, Integers, int, int, int]:
        """Take received datagrams. Returns the places in ``data`` and the blocks of the fresh results, in order of
        arrival; the lowest and the highest of these blocks; and the place of the first datagram that tells of an error,
        or -1."""
        if data.size // size > len(self._places):
            self._places, self._blocks = (np.zeros(data.size // size, np.int64) for _ in range(2))
        fresh, answered, self.low, self._highest, timed_s, wrong, first, last = loops.accept(
            data, size, job, token, self.lease.base, self.lease.slots, self.low, self.next, self._highest, self._done,
            self._taken, self._op, self._sent_s, self._once, self._shapes, self.counts, self._places, self._blocks,
        )  # fmt: skip
        if answered:
            self.flight -= answered
            self._answered += answered
            if timed_s >= 0:
                self._shortest_s = min(self._shortest_s, now - timed_s)
            if self._highest >= self._round_end:
                self._end_round_trip()
            self._progress_s, self.rtt.backoff = now, 0  # (5.3)
        return self._places[:fresh], self._blocks[:fresh], first, last, wrong

    def _end_round_trip(self) -> None:
        """Its shortest round trip is the sample: the others may have waited for a rank whose datagrams were lost, and
        if every rank took such waits for the network's time, its own would grow, and so on. One sample per round trip
        is what RFC 6298 was made for (section 3)."""
        if self._shortest_s < np.inf:
            self.rtt.sample(self._shortest_s)
        self._adapt()
        self._round_end, self._shortest_s, self._answered, self._overtaken = self.next, np.inf, 0, 0

    def _adapt(self) -> None:
        """How many blocks may be out in the next round trip.

        The window P is what slots allow. As long as nothing is lost, it may all be out. When something is lost, the
        window stands still at the first lost block; so only three eighths of it are out, and the rest is room to go on
        meanwhile. (A half is better where processors are short, a quarter over a link: tests/host/sim/rates.py.)
        If so much is lost that the path must have overrun, half as many are out, and again, until it can hold them.
        """
        self.flight_most = loops.adapted(self.flight_most, self.lease.window, self._answered, self._overtaken)

    # --- in a compiled loop, see `stream` ---

    @property
    def usual(self) -> bool:
        """Whether a loop can go on from here: nothing is to be replayed, no timer ran out, there are generations."""
        return not self.exhausted and self.next == self.stored and not self.rtt.backoff

    def lend(self) -> tuple[int, ...]:
        """Its row of `Stream.w`, for a loop that changes it."""
        return (
            self.low, self.next, self.flight, self.flight_most, self._highest, self._round_end, self._answered,
            self._overtaken, self.resent, self._end, self.lease.base, 0, 0,
        )  # fmt: skip

    def lend_times(self) -> tuple[float, float, float]:
        """Likewise of `Stream.s`; the rest is for samples."""
        return self._shortest_s, self._progress_s, self.rtt.timeout_s

    def take_back(self, w: list[int], s: npt.NDArray[np.float64]) -> None:
        """What a loop has done, from its rows."""
        (
            self.low, self.next, self.flight, self.flight_most, self._highest, self._round_end, self._answered,
            self._overtaken, self.resent, *_, progressed, samples,
        ) = w  # fmt: skip
        self.stored = self.next
        self._shortest_s, self._progress_s = s[: streams.PROGRESS + 1].tolist()
        for sample_s in s[streams.SAMPLE : streams.SAMPLE + samples].tolist():
            self.rtt.sample(sample_s)
        if progressed:
            self.rtt.backoff = 0
            if self._highest >= self._round_end:
                self._end_round_trip()

    # --- sending again ---

    @property
    def deadline(self) -> float | None:
        """When to call `overdue`, on the clock of ``now``; None while nothing is out."""
        return None if self.low == self.next else self._progress_s + self.rtt.timeout_s

    def overtaken(self, limit: int) -> list[tuple[Bytes, int]]:
        """Datagrams to send again at once, since later ones were answered: pieces of equal size, with that size."""
        if self.low + REORDER_BLOCKS > self._highest:
            return []
        found = loops.lost(
            self.low, self._highest, REORDER_BLOCKS, self.lease.slots, self._done, self._after, self._blocks[:limit]
        )
        self._overtaken += found
        return self._again(self._blocks[:found].copy())

    def overdue(self, limit: int, now: float) -> list[tuple[Bytes, int]]:
        """Datagrams to send again because the timer ran out, ``limit`` at most.

        They are those that were overtaken, and so are lost again; the first that has no result; and, the first time,
        the last one, whose result would tell that the others are lost (a probe as in RFC 8985, section 7). For the
        others may wait for a slow rank.
        """
        if self.low == self.next or now < self._progress_s + self.rtt.timeout_s:
            return []
        self.rtt.expired()
        self._progress_s = now
        out = np.arange(self.low, self.next)
        out = out[~self._done[out & (self.lease.slots - 1)]]
        self._once[out & (self.lease.slots - 1)] = False  # their results come late, for whatever reason
        again = out <= self._highest - REORDER_BLOCKS
        again[0] = True
        again[-1] |= self.rtt.backoff == 1
        return self._again(out[again][:limit])

    def _again(self, blocks: Integers) -> list[tuple[Bytes, int]]:
        if not blocks.size:
            return []
        rows = blocks & (self.lease.slots - 1)
        self._once[rows], self._after[rows] = False, self.next - 1
        self.resent += rows.size
        return self._pieces(blocks)

    def _pieces(self, blocks: Integers) -> list[tuple[Bytes, int]]:
        """Copies of the datagrams of ``blocks``, in pieces of equal size, with that size."""
        sizes = self._sizes[blocks & (self.lease.slots - 1)]
        cuts = np.flatnonzero(np.diff(sizes)) + 1
        places = np.split(blocks & (len(self.ring) - 1), cuts)
        return [
            (self.ring[run, :size].reshape(-1), size)
            for run, size in zip(places, sizes[[0, *cuts]].tolist(), strict=True)
        ]

    # --- which blocks are finished, over all epochs ---

    def recent(self) -> tuple[int, Integers]:
        """The oldest block whose row is not used again, and the finished ones from there on."""
        oldest = max(self._first, self.stored - self.lease.slots)
        blocks = np.arange(oldest, self.stored)
        return oldest, blocks[self._taken[blocks & (self.lease.slots - 1)]]

    def is_taken(self, blocks: Integers) -> npt.NDArray[np.bool_]:
        """Which of ``blocks`` have given their results to the caller."""
        taken: npt.NDArray[np.bool_] = (blocks < self.stored) & self._taken[blocks & (self.lease.slots - 1)]
        return taken | (blocks < self.stored - self.lease.slots)

    def mark_taken(self, blocks: Integers) -> None:
        """The results of ``blocks`` have come another way."""
        self._taken[blocks & (self.lease.slots - 1)] = True

    # --- a new epoch ---

    def resume(self, lease: Lease, block: int, job: int, token: int, now: float) -> None:
        """Continue in a new epoch, from ``block`` on, whose results someone still needs: go back to it, and `replay`.

        The rules of the window hold for what is sent again, too. Sent all at once, a slot could be reused while a rank
        waits for its result: the proof in `inagg_wire.slots` needs that whoever sends b + P has the result of b.

        Raises ValueError if the ring cannot give the blocks, which no switch that follows the protocol asks for.
        """
        oldest = max(self._first, self.stored - self.lease.slots)
        if lease != self.lease or not oldest <= block <= self.low:
            raise ValueError(
                f"the new epoch starts at block {block}, with {lease.slots} slots from {lease.base}; this rank has "
                f"blocks {oldest} to {self.stored - 1}, needs block {self.low}, and has {self.lease.slots} slots from "
                f"{self.lease.base}"
            )
        _put(self.ring, JOB_AT, 2, np.full(len(self.ring), job))
        _put(self.ring, TOKEN_AT, 4, np.full(len(self.ring), token))
        self.low = self.next = self._round_end = block
        self.flight = 0
        self._end = _end_of_round(lease, block)
        self.rtt.backoff, self._highest, self._progress_s = 0, block - 1, now


def _end_of_round(lease: Lease, block: int) -> int:
    """The first block after ``block`` for which the generations start anew."""
    return (lease.round(block) + 1) * lease.slots * GENERATION_MAX


def _put(rows: Bytes, at: int, size: int, values: Integers) -> None:
    """Write big-endian ``values`` of ``size`` bytes into each row at offset ``at``."""
    rows[:, at : at + size] = values.astype(f">u{size}").view(np.uint8).reshape(-1, size)


__all__ = ["FOREIGN", "FRESH", "OUTCOMES", "REPEATED", "Bytes", "Integers", "Window"]
