"""The worker's engine: tensors in, datagrams out, sums back into the caller's memory. Sans-IO.

The protocol is compiled (`receive.on_batch`, `send.next_batch`) and works on records (`state`). This puts operations
in, takes finished ones out, raises what went wrong, and begins new epochs. It knows no sockets, clocks or threads:
bytes and ``now`` come in, and batches to send, the next deadline and finished operations come out. Operations run in
the order in which they are submitted, which must be the same on all ranks; so must their sizes, types and format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_host.codec import Job
from inagg_host.codec.calls import Room
from inagg_host.codec.ordered import load_word, store_word
from inagg_host.codec.past_caches import STREAM_FROM, Recent
from inagg_link.base import MAX_BATCH_DATAGRAMS
from inagg_wire.scale import FloatType

from .draft import draft_ahead
from .epoch import Epoch
from .failure import why
from .headers import JOB_AT, SLOT_AT, TOKEN_AT
from .operation import Operation, Request, begin_max, begin_sum, check
from .receive import NOTHING_ELSE, on_batch
from .records import begin_epoch, make_records, start_shard
from .schedule import chunk_blocks, scales_per_block
from .send import deadline, exhausted, next_batch
from .shape import Integers, Shape, address_of, shape_of_maxima, shape_of_sums
from .state import LOADED_AT, OK, OLDEST_AT, OPERATION, OPERATIONS, RESULTS_MOST

Bytes = npt.NDArray[np.uint8]

SHAPES_MOST = 1024
"""Shapes of a job that are kept: a training has as many sizes as buckets, and some more."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Equal datagrams of ``size`` bytes for shard ``shard``. A view of the engine's memory, to be sent at once."""

    shard: int
    data: Bytes
    size: int


class Engine:
    """One rank of one job. Not thread-safe: one caller at a time. But operations may be submitted, and finished ones be
    taken out, while another thread is in the compiled functions, which works on from what it has."""

    def __init__(self, epoch: Epoch, keep_results: bool = False, batch_datagrams: int = MAX_BATCH_DATAGRAMS) -> None:
        """``keep_results``: so that `reconcile.salvage` is possible. ``batch_datagrams``: the most of an `Outgoing`,
        as small ones cost by the batch."""
        self.epoch = epoch
        self.scales = scales_per_block(epoch.format.scale_lanes(epoch.lanes))
        """How many scales, or bytes of maxima, a block carries."""
        self._window = sum(shard.lease.window for shard in epoch.shards)
        self.state = make_records(epoch, self.scales, self.chunk, keep_results, batch_datagrams)
        self._job = self.state.job[0]
        self._rooms: dict[FloatType, tuple[Room, Integers]] = {}
        self._shapes: dict[tuple[FloatType | None, int, int], Shape] = {}
        self._recent = Recent()
        self.operations: deque[Operation] = deque()
        """Unfinished, oldest first."""
        self._loaded = self._collected = 0  # how many of them have a record; how many there were before them
        self._awaited = 0  # of how many a device waits for the end
        self._job_at, self._records_at = address_of(self.state.job), address_of(self.state.operations)
        self._record_words = self.state.operations.view(np.int64).reshape(OPERATIONS, -1)
        self._next_block = int(
            min(record["snd_nxt"] * len(epoch.shards) + i for i, record in enumerate(self.state.shards))
        )  # of the next operation

    def limit(self, credit: int) -> None:
        """The switch has room for so many blocks of each shard. For any thread: it counts from the next batch on."""
        self.state.shards["credit"] = credit

    @property
    def rings(self) -> Bytes:
        """(shards, rows, stride), see `State.memory`."""
        shards, rows, stride = len(self.state.shards), int(self._job["rows"]), int(self._job["stride"])
        ring: Bytes = self.state.memory[: shards * rows * stride].reshape(shards, rows, stride)
        return ring

    # --- operations ---

    @property
    def chunk(self) -> int:
        """How many blocks of values have their scales sent together: of all operations."""
        return chunk_blocks(self.epoch.lanes, self.scales, self._window)

    @property
    def idle(self) -> bool:
        """Nothing is unfinished."""
        return not self.operations

    @property
    def awaited(self) -> bool:
        """Whether a device waits for something that is unfinished."""
        return self._awaited > 0

    @property
    def submitted(self) -> int:
        """How many there were."""
        return self._collected + len(self.operations)

    def submit(self, request: Request, now: float) -> Operation:
        """Begin what is asked for. Maxima take blocks of scales alone, one for so many bytes as it carries scales.
        Raises ValueError, and takes nothing, if arrays are empty or not alike."""
        out, first = request.out, self._next_block
        pieces = self.epoch.workers if request.scatters else 1
        check(request, pieces)
        shape = self._shape(request.float_type, out.size, pieces)
        if request.float_type is None:
            return self._enqueue(begin_max(request, shape, first, now))
        # Where results are kept, all ranks must have them, to pass on what others lack.
        alone = request.scatters and self.epoch.scatters and not self._job["keeps"]
        past = False
        if request.codec is None and out.size >= STREAM_FROM:
            past = self._recent.is_far(
                address_of(out), out.nbytes, 0 if out is request.values else request.values.nbytes
            )
        kernels = self._room(request.float_type)[0].kernels
        return self._enqueue(begin_sum(request, shape, kernels, first, now, pieces, alone, past))

    def _shape(self, float_type: FloatType | None, size: int, pieces: int) -> Shape:
        """Shape of operations which give this rank ``size`` sums, or maxima."""
        key = float_type, size, pieces
        shape = self._shapes.get(key)
        if shape is None:
            room, template = self._room(float_type or FloatType.FLOAT32)
            if float_type is None:
                shape = shape_of_maxima(room.job, template, size, self.scales)
            else:
                shape = shape_of_sums(room, template, size, pieces, self.scales, self._window)
            if len(self._shapes) == SHAPES_MOST:
                self._shapes.clear()
            self._shapes[key] = shape
        return shape

    def job(self, float_type: FloatType) -> Job:
        """The job, for values of a type."""
        e = self.epoch
        return Job(e.format, e.workers, e.rank, e.lanes, e.seed, float_type)

    def _room(self, float_type: FloatType) -> tuple[Room, Integers]:
        """Memory that the kernels need for a type, and the words of a record that says so."""
        if float_type not in self._rooms:
            st, job = self.state, self._job
            rows = len(st.shards) * int(job["rows"])
            room = Room(self.job(float_type), rows)
            template = np.zeros(1, OPERATION)
            record: Any = template[0]
            room.describe(record)
            record["ring"], record["rows"], record["stride"] = address_of(st.memory), rows, job["stride"]
            record["shards"], record["results"] = len(st.shards), RESULTS_MOST
            record["places"], record["numbers"] = address_of(st.places), address_of(st.blocks)
            self._rooms[float_type] = room, template.view(np.int64)
        return self._rooms[float_type]

    def _enqueue(self, operation: Operation) -> Operation:
        self.operations.append(operation)
        self._next_block += operation.shape.blocks
        self._awaited += operation.request.codec is not None
        self._load()
        return operation

    def _load(self) -> None:
        """Make records of operations, as far as there is room."""
        while self._loaded < min(len(self.operations), OPERATIONS):
            operation = self.operations[self._loaded]
            at = int(self._job["loaded"]) & (OPERATIONS - 1)
            words = self._record_words[at]
            operation.describe(words, self._records_at + at * words.nbytes)
            self._loaded += 1
            store_word(self._job_at + LOADED_AT, self._collected + self._loaded)  # compiled code may go on to it

    def finished(self) -> list[Operation]:
        """The operations that are finished, once: the oldest ones."""
        finished, oldest = [], load_word(self._job_at + OLDEST_AT)
        while self._collected != oldest:
            record = self.state.operations[self._collected & (OPERATIONS - 1)]
            operation = self.operations.popleft()
            operation.invalid_codes = int(record["invalid_codes"])
            if operation.request.float_type is None:
                operation.request.out[:] = operation.agreed
            self._collected += 1
            self._loaded -= 1
            self._awaited -= operation.request.codec is not None
            finished.append(operation)
        if finished:
            self._load()
        return finished

    def news(self) -> list[Operation]:
        """Take out operations as `finished`; if there are none, raise what went wrong, if something has. So that comes
        the next time: what is done is done, whatever comes after it."""
        finished = self.finished()
        if not finished:
            self.check()
        return finished

    # --- batches ---

    def on_batch(self, shard: int, data: Bytes, size: int, now: float) -> list[Operation]:
        """Take datagrams of ``size`` bytes from ``shard``; returns the operations that they finished.

        Datagrams that are not ours are counted and change nothing. Raises `Refused`, `RanksDisagree` or RuntimeError,
        as `news` does.
        """
        step, news = RESULTS_MOST * size, NOTHING_ELSE
        for start in range(0, data.size, step):
            news |= on_batch(self.state, shard, data[start : start + step], size, now)
        return [] if news == NOTHING_ELSE else self.news()

    def next_batch(self, now: float) -> list[Outgoing]:
        """Datagrams to send before this is called again, each for another shard. Raises as `on_batch`."""
        count = next_batch(self.state, now)
        if count < 0:
            self.check()
        memory = self.state.memory
        return [
            Outgoing(shard, memory[start : start + number * size], size)
            for start, number, size, shard in self.state.pieces[:count].tolist()
        ]

    def outgoing(self, now: float) -> Iterator[Outgoing]:
        """All that can be sent now. Each must be sent before the next is asked for."""
        while batch := self.next_batch(now):
            yield from batch

    def draft_ahead(self) -> bool:
        """Work ahead where there is nothing to send; False if there is nothing to work on either."""
        return bool(draft_ahead(self.state))

    @property
    def deadline(self) -> float | None:
        """Time to call `next_batch` though nothing has come; None while nothing is out."""
        when_s: float = deadline(self.state)
        return None if when_s == np.inf else when_s

    @property
    def round_trip_s(self) -> float | None:
        """The smoothed round-trip time (RFC 6298), the longest of the shards'; None: none has been measured."""
        longest_s = float(self.state.shards["srtt_s"].max())
        return longest_s or None

    def check(self) -> None:
        """Raise what went wrong, if something has: `Refused`, `RanksDisagree` or RuntimeError."""
        if self._job["error"] != OK:
            raise why(self._job, self.operations)

    # --- epochs ---

    @property
    def positions(self) -> list[int]:
        """The smallest block whose result this rank does not have, by shard."""
        positions: list[int] = self.state.shards["snd_una"].tolist()
        return positions

    @property
    def has_results(self) -> bool:
        """Whether this rank has the result of any block; of a later one, if the first was lost."""
        for s, rows in zip(self.state.shards, self.state.rows, strict=True):
            oldest = max(int(s["first"]), int(s["snd_max"]) - int(s["slots"]))
            sent = np.arange(oldest, int(s["snd_max"])) & (int(s["slots"]) - 1)
            if oldest > s["first"] or rows["taken"][sent].any():
                return True
        return False

    @property
    def exhausted(self) -> bool:
        """The generations have run out: a new epoch must begin before anything else can be sent."""
        return bool(exhausted(self.state))

    def resume(self, epoch: Epoch, now: float) -> None:
        """Continue in a new epoch: the same job, another token, and as many slots, perhaps elsewhere. From its blocks
        on, whose results someone still needs, this sends again what it has sent. Raises ValueError, and changes
        nothing, if it does not continue this one."""
        if len(epoch.shards) != len(self.epoch.shards):
            raise ValueError(f"the new epoch has {len(epoch.shards)} shards, and the job had {len(self.epoch.shards)}")
        for record, shard, before in zip(self.state.shards, epoch.shards, self.epoch.shards, strict=True):
            lease, block = shard.lease, shard.resume_block
            oldest = max(int(record["first"]), int(record["snd_max"]) - lease.slots)
            if lease.slots != before.lease.slots or not oldest <= block <= record["snd_una"]:
                raise ValueError(
                    f"the new epoch starts at block {block}, with {lease.slots} slots; this rank has blocks {oldest} "
                    f"to {record['snd_max'] - 1}, needs block {record['snd_una']}, and has {before.lease.slots} slots"
                )
        owned = self.state.rows["owner"].any() or any(operation.fields["scatters"] for operation in self.operations)
        if owned and not epoch.scatters:
            raise ValueError("the new epoch's switch cannot send results to one rank alone, as the one before did")
        self.epoch = epoch
        begin_epoch(self.state, epoch)
        for at, value, size in ((JOB_AT, epoch.job, 2), (TOKEN_AT, epoch.token, 4)):
            self.rings[:, :, at : at + size] = np.frombuffer(value.to_bytes(size, "big"), np.uint8)
        self.state.rows["lost"] = False
        for record, shard, ring in zip(self.state.shards, epoch.shards, self.rings, strict=True):
            slots = shard.lease.base + (np.arange(len(ring)) & (shard.lease.slots - 1))  # of the blocks of each row
            ring[:, SLOT_AT : SLOT_AT + 4] = slots.astype(">u4").view(np.uint8).reshape(-1, 4)
            start_shard(record, shard.lease, shard.resume_block)
            record["timer_s"] = now
