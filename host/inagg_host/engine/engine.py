"""The worker's engine: tensors in, datagrams out, sums back into the caller's memory. Sans-IO.

It knows neither sockets, clocks nor threads: bytes and ``now`` come in, and batches to send, the next deadline and
finished operations come out. Operations run in the order in which they are submitted, which must be the same on all
ranks; so must their sizes, types and format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_host import kernels
from inagg_wire.batch import HEADER_DTYPE
from inagg_wire.errors import Reason
from inagg_wire.header import Header
from inagg_wire.layout import HEADER_BYTES, Encoding, Kind, Op, datagram_bytes
from inagg_wire.link import datagrams_per_call
from inagg_wire.scale import FloatType

from .epoch import Epoch, RanksDisagree, Refused
from .kept import Kept
from .loops import SIZE
from .memory import make_memory
from .operation import MakeCodec, Operation, begin_max, begin_sum
from .payloads import Payloads
from .plan import Item, Phase, chunk_blocks, drafted_blocks
from .streaming import Streaming
from .window import Bytes, Integers, Window

CALLS_PER_BATCH = 4
"""Blocks that are encoded at a time, in system calls that send them: the more, the less each costs in Python; but what
is encoded together is sent only when all of it is, and should still be in the cache."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Equal datagrams of ``size`` bytes for shard ``shard``. A view of the engine's memory, to be sent at once."""

    shard: int
    data: Bytes
    size: int


class Engine:
    """One rank of one job. Not thread-safe: one caller at a time."""

    def __init__(self, epoch: Epoch, keep_results: bool = False) -> None:
        """``keep_results``: so that `salvage` is possible."""
        self.epoch = epoch
        fmt, lanes, n = epoch.format, epoch.lanes, epoch.workers
        self.payloads = Payloads(fmt, lanes, len(epoch.shards))
        self.size = {op: datagram_bytes(fmt.encoding(op), fmt.lanes_for(op, lanes)) for op in Op}
        shapes = np.zeros((max(Op) + 1, 4), np.int64)
        for op in Op:
            encoding = fmt.result_encoding(op, n)
            op_lanes = fmt.lanes_for(op, lanes)
            shapes[op] = encoding, op_lanes, datagram_bytes(encoding, op_lanes), fmt.encoding(op)
        self._result_bytes = {op: int(shapes[op, SIZE]) for op in Op}
        leases, rows = [shard.lease for shard in epoch.shards], max(shard.lease.slots for shard in epoch.shards)
        chunk = chunk_blocks(lanes, self.payloads.scale_lanes)
        drafted = drafted_blocks(chunk, len(leases)) if fmt.up is Encoding.NAT8 else 0
        memory = make_memory(len(leases), rows, drafted, self.size[Op.SUM])
        self.windows = [
            Window(shard.lease, memory.of(i, shard.lease.slots), shapes, shard.resume_block)
            for i, shard in enumerate(epoch.shards)
        ]
        kept = np.zeros((len(leases), rows, max(self._result_bytes.values())) if keep_results else (0, 0, 0), np.uint8)
        self.kept = [Kept(w, kept[i, : w.lease.slots]) for i, w in enumerate(self.windows)] if keep_results else []
        self._batch = CALLS_PER_BATCH * datagrams_per_call(max(self.size[Op.SUM], self._result_bytes[Op.SUM]))
        self.headers = self._make_headers()
        self._runs: dict[FloatType, kernels.Runs] = {}
        self.operations: deque[Operation] = deque()  # unfinished, oldest first
        self.sending = 0  # index in operations of the one that is being sent
        shards = len(self.windows)
        self._next_block = min(w.next * shards + i for i, w in enumerate(self.windows))  # of the next operation
        self.again: deque[Outgoing] = deque()
        self.streaming = Streaming(self, memory, kept, shapes)

    def _make_headers(self) -> Bytes:
        """Of contributions, by op; but for slot and generation."""
        e, headers = self.epoch, np.zeros((max(Op) + 1, HEADER_BYTES), np.uint8)
        for op in Op:
            header = Header(
                Kind.CONTRIBUTION, op, e.format.encoding(op), e.format.lanes_for(op, e.lanes), e.job, e.token,
                e.shards[0].lease.base, 1,
            )  # fmt: skip
            headers[op] = np.frombuffer(header.pack(), np.uint8)
        return headers

    # --- operations ---

    @property
    def idle(self) -> bool:
        """Nothing is unfinished."""
        return not self.operations

    def submit(
        self,
        values: npt.NDArray[Any],
        out: npt.NDArray[Any],
        float_type: FloatType,
        now: float,
        divisor: int = 1,
        contributed: npt.NDArray[Any] | None = None,
        codec: MakeCodec | None = None,
    ) -> Operation:
        """Sum ``values`` over all ranks into ``out``, and divide by ``divisor``.

        All are contiguous, 1-D, and must stay as they are until the end. ``contributed``, which must be memory of its
        own, gets what this rank adds to the sum: what the codes stand for that it sends. With ``codec``, ``values``
        and ``out`` only tell how many there are. Raises ValueError, and takes nothing, if they are empty or not alike.
        """
        runs, lanes = self._runs_of(float_type), self.payloads.scale_lanes
        return self._enqueue(begin_sum(values, out, runs, lanes, self._next_block, now, divisor, contributed, codec))

    def submit_max(self, values: Bytes, out: Bytes, now: float) -> Operation:
        """The maximum over all ranks of each byte of ``values`` (uint8, 1-D) into ``out``.

        Takes blocks of scales alone, one for so many bytes as it carries scales. Raises as `submit`.
        """
        runs, scales = self._runs_of(FloatType.FLOAT32), self.payloads.scales
        return self._enqueue(begin_max(values, out, runs, scales, self._next_block, now))

    def _runs_of(self, float_type: FloatType) -> kernels.Runs:
        if float_type not in self._runs:
            e = self.epoch
            self._runs[float_type] = kernels.Runs(kernels.Job(e.format, e.workers, e.rank, e.lanes, e.seed, float_type))
        return self._runs[float_type]

    def _enqueue(self, operation: Operation) -> Operation:
        self.operations.append(operation)
        self._next_block += operation.blocks
        return operation

    # --- sending ---

    def outgoing(self, now: float, values: bool = True) -> Iterator[Outgoing]:
        """What to send now; without ``values``, what comes before the next block of them. Each must be sent before the
        next is asked for."""
        while self.again:
            yield self.again.popleft()
        for i, window in enumerate(self.windows):
            for data, size in window.overdue(self._batch, now):
                yield Outgoing(i, data, size)
            while pieces := window.replay(self._batch, now):
                for data, size in pieces:
                    yield Outgoing(i, data, size)
        while self.sending < len(self.operations):
            operation = self.operations[self.sending]
            item = operation.items[operation.at]
            if not self._ready(operation, item) or not (values or item.phase is not Phase.VALUES):
                return
            batch = list(self._next_batch(operation, item, now))
            if not batch:
                return
            yield from batch
            self._go_on(operation)

    def _go_on(self, operation: Operation) -> None:
        """To what is to be sent next, if all blocks of the item that is being sent have been."""
        if operation.sent == operation.items[operation.at].count:
            operation.at, operation.sent = operation.at + 1, 0
            if operation.at == len(operation.items):
                self.sending += 1

    def _ready(self, operation: Operation, item: Item) -> bool:
        """Whether the scales that ``item`` needs are agreed on."""
        if item.phase is Phase.SCALE:
            return True
        needs = Phase.SCALE if item.phase is Phase.REFINE or not self.epoch.format.refined else Phase.REFINE
        return bool(operation.ready[needs, item.first // operation.chunk])

    def _next_batch(self, operation: Operation, item: Item, now: float) -> Iterator[Outgoing]:
        """Encode and send the next blocks of ``item``, as many as fit a batch and the windows of all shards."""
        shards = len(self.windows)
        first = operation.first_block + item.start + operation.sent  # the job's numbering
        count = min(item.count - operation.sent, self._batch * shards)
        for offset in range(min(count, shards)):  # the shard of block first + offset has every shards-th from there
            window = self.windows[(first + offset) % shards]
            mine = -(-(count - offset) // shards)
            room = window.contiguous(min(mine, window.room))
            if room < mine:
                count = min(count, room * shards + offset)
        op = Op.SUM if item.phase is Phase.VALUES else Op.MAX
        for offset in range(min(count, shards)):
            shard = (first + offset) % shards
            window = self.windows[shard]
            mine = -(-(count - offset) // shards)
            self.payloads.write(operation, item, first + offset, mine, window)
            data = window.push(mine, op, self.headers[op], self.size[op], now)
            yield Outgoing(shard, data, self.size[op])
        operation.sent += max(count, 0)

    # --- receiving ---

    def receive(self, shard: int, data: Bytes, size: int, now: float) -> list[Operation]:
        """Take datagrams of ``size`` bytes from ``shard``; returns the operations that they finished.

        Datagrams that are not ours are counted and change nothing. Raises `Refused` or `RanksDisagree`.
        """
        window = self.windows[shard]
        places, blocks, first, last, wrong = window.accept(data, size, self.epoch.job, self.epoch.token, now)
        if places.size:
            if self.kept:
                self.kept[shard].keep(data.reshape(-1, size), places, blocks)
            self.take(shard, data, size, places, blocks, first, last)
        self.resend(shard)
        if wrong >= 0:
            self.raise_for(shard, data[wrong * size : (wrong + 1) * size])
        return self.finished()

    def resend(self, shard: int) -> None:
        """Have the blocks sent again that later ones have overtaken."""
        self.again.extend(Outgoing(shard, *piece) for piece in self.windows[shard].overtaken(self._batch))

    def finished(self) -> list[Operation]:
        """The operations that are finished, once: the oldest ones."""
        finished = []
        while self.operations and self.operations[0].left == 0:
            finished.append(operation := self.operations.popleft())
            if operation.maxima:
                operation.out[:] = operation.agreed
            self.sending -= 1
        return finished

    def take(
        self, shard: int, data: Bytes, size: int, places: Integers, blocks: Integers, lowest: int, highest: int
    ) -> None:
        """Use the results of ``blocks`` (the shard's numbering, from ``lowest`` to ``highest``), which stand at
        ``places`` of ``data``, datagrams of ``size`` bytes."""
        shards = len(self.windows)
        first, last = lowest * shards + shard, highest * shards + shard  # the job's numbering
        for operation in self.operations:
            if last < operation.first_block:
                break
            if first >= operation.first_block + operation.blocks:
                continue
            for item in operation.items[operation.item_of(first) :]:
                start = operation.first_block + item.start
                if last < start:
                    break
                if start <= first and last < start + item.count:  # as almost always: all are of one item
                    self.payloads.read(operation, item, shard, data, size, places, blocks)
                    return
                numbers = blocks * shards + shard
                inside = (numbers >= start) & (numbers < start + item.count)
                if inside.any():
                    self.payloads.read(operation, item, shard, data, size, places[inside], blocks[inside])

    def raise_for(self, shard: int, datagram: Bytes) -> None:
        header, window = datagram[:HEADER_BYTES].view(HEADER_DTYPE)[0], self.windows[shard]
        if header["kind"] == Kind.NOTICE:
            reason = Reason(int(header["reason"]))
            if reason is not Reason.WRONG_OP:
                block = window.lease.block_at(int(header["slot"]), int(header["generation"]), window.low)
                raise Refused(reason, block * len(self.windows) + shard)
        raise RanksDisagree(
            "another rank sends scales where this one sends values, or the reverse: all ranks must reduce tensors of "
            "the same sizes and types in the same order"
        )

    @property
    def deadline(self) -> float | None:
        """When to call `outgoing` though nothing has come; None while nothing is out."""
        return min((d for window in self.windows if (d := window.deadline) is not None), default=None)

    # --- epochs ---

    @property
    def positions(self) -> list[int]:
        """By shard, the smallest block whose result this rank does not have."""
        return [window.low for window in self.windows]

    @property
    def exhausted(self) -> bool:
        """The generations have run out: a new epoch must begin before anything else can be sent."""
        return any(window.exhausted for window in self.windows)

    def resume(self, epoch: Epoch, now: float) -> None:
        """Go on in a new epoch: the same job, another token. Raises ValueError if it does not continue this one."""
        if len(epoch.shards) != len(self.windows):
            raise ValueError(f"the new epoch has {len(epoch.shards)} shards, and the job had {len(self.windows)}")
        self.epoch = epoch
        self.headers = self._make_headers()
        self.again.clear()
        for window, shard in zip(self.windows, epoch.shards, strict=True):
            window.resume(shard.lease, shard.resume_block, epoch.job, epoch.token, now)
