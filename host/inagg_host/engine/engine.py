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
from inagg_wire.layout import HEADER_BYTES, Kind, Op, datagram_bytes
from inagg_wire.link import datagrams_per_call
from inagg_wire.scale import FloatType

from .epoch import Epoch, RanksDisagree, Refused, exceeds
from .kept import Kept
from .loops import SIZE
from .operation import MakeCodec, Operation
from .plan import SIGNATURE_LANES, Item, Phase, agrees, chunk_blocks, plan, signature
from .streaming import Streaming
from .window import Bytes, Integers, Window

CALLS_PER_BATCH = 4
"""Blocks that are encoded at a time, in system calls that send them: the more, the less each costs in Python; but what
is encoded together is sent only when all of it is, and should still be in the cache."""


NOT_SIGNED = np.zeros(0, np.uint8)


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
        scale_lanes = fmt.scale_lanes(lanes)
        self.chunk = chunk_blocks(scale_lanes)
        # Where the signature stands in a payload of scales; nowhere, if they have no room for it.
        self._signature = slice(scale_lanes - SIGNATURE_LANES, scale_lanes) if scale_lanes > SIGNATURE_LANES else None
        self.size = {op: datagram_bytes(fmt.encoding(op), fmt.lanes_for(op, lanes)) for op in Op}
        shapes = np.zeros((max(Op) + 1, 4), np.int64)
        for op in Op:
            encoding = fmt.result_encoding(op, n)
            op_lanes = fmt.lanes_for(op, lanes)
            shapes[op] = encoding, op_lanes, datagram_bytes(encoding, op_lanes), fmt.encoding(op)
        self._result_bytes = {op: int(shapes[op, SIZE]) for op in Op}
        self.windows = [Window(shard.lease, self.size[Op.SUM], shapes, shard.resume_block) for shard in epoch.shards]
        self.kept = [Kept(window, max(self._result_bytes.values())) for window in self.windows] if keep_results else []
        self._batch = CALLS_PER_BATCH * datagrams_per_call(max(self.size[Op.SUM], self._result_bytes[Op.SUM]))
        self.headers = self._make_headers()
        self.signed = self._signature is not None
        self._runs: dict[FloatType, kernels.Runs] = {}
        self.operations: deque[Operation] = deque()  # unfinished, oldest first
        self.sending = 0  # index in operations of the one that is being sent
        shards = len(self.windows)
        self._next_block = min(w.next * shards + i for i, w in enumerate(self.windows))  # of the next operation
        self.again: deque[Outgoing] = deque()
        self.streaming = Streaming(self)

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
        if values.size == 0 or values.size != out.size or not (out.flags.writeable or codec):
            raise ValueError("values and out must have the same number of elements, at least one, and out be writable")
        if contributed is not None and contributed.size != values.size:
            raise ValueError(f"room for {contributed.size} contributed values, where there are {values.size}")
        runs = self._runs_of(float_type)
        job = runs.job
        arrays = () if codec is not None else (values, out) if contributed is None else (values, out, contributed)
        for array in arrays:
            job.bits(array)
        items = plan(values.size, self.epoch.lanes, self.chunk, job.refined)
        count, blocks = job.blocks(values.size), items[-1].start + items[-1].count
        own, agreed, refinement = (np.zeros(count, np.uint8) for _ in range(3))
        operation = Operation(
            values,
            out,
            divisor,
            runs,
            items,
            self._next_block,
            now,
            blocks,
            np.zeros(count, np.uint64),
            own,
            agreed,
            refinement,
            np.zeros((len(Phase), -(-count // self.chunk)), np.bool_),
            contributed=contributed,
            codec=None if codec is None else codec(job, self.chunk),
        )
        return self._enqueue(operation)

    def submit_max(self, values: Bytes, out: Bytes, now: float) -> Operation:
        """The maximum over all ranks of each byte of ``values`` (uint8, 1-D) into ``out``.

        Takes blocks of scales alone, one for so many bytes as it carries scales. Raises as `submit`.
        """
        if values.size == 0 or values.size != out.size or not out.flags.writeable:
            raise ValueError("values and out must have the same number of bytes, at least one, and out be writable")
        chunks = range(0, values.size, self.chunk)
        items = tuple(
            Item(Phase.SCALE, i, 1, first, min(self.chunk, values.size - first)) for i, first in enumerate(chunks)
        )
        none = np.zeros(0, np.uint64)
        own, agreed, refinement = values.copy(), np.zeros_like(values), np.zeros(0, np.uint8)
        runs, block = self._runs_of(FloatType.FLOAT32), self._next_block
        ready = np.zeros((len(Phase), len(items)), np.bool_)
        operation = Operation(
            values, out, 1, runs, items, block, now, len(items), none, own, agreed, refinement, ready, maxima=True
        )
        return self._enqueue(operation)

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
            self._sent(operation, operation.sent)

    def _sent(self, operation: Operation, sent: int) -> None:
        """So many blocks of the item that is being sent have been."""
        operation.sent = sent
        if sent == operation.items[operation.at].count:
            operation.at, operation.sent = operation.at + 1, 0
            if operation.at == len(operation.items):
                self.sending += 1

    def _ready(self, operation: Operation, item: Item) -> bool:
        """Whether the scales that ``item`` needs are agreed on."""
        if item.phase is Phase.SCALE:
            return True
        needs = Phase.SCALE if item.phase is Phase.REFINE or not self.epoch.format.refined else Phase.REFINE
        return bool(operation.ready[needs, item.first // self.chunk])

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
            self._fill(operation, item, first + offset, mine, window)
            data = window.push(mine, op, self.headers[op], self.size[op], now)
            yield Outgoing(shard, data, self.size[op])
        operation.sent += max(count, 0)

    def _fill(self, operation: Operation, item: Item, number: int, count: int, window: Window) -> None:
        """Write the payloads of ``count`` blocks of ``item``, the next ones of ``window``, the first of which has this
        ``number`` in the job."""
        job, chunk = operation.job, slice(item.first, item.first + item.blocks)
        if item.phase is Phase.VALUES:
            first, step = number - (operation.first_block + item.start - item.first), len(self.windows)
            scales, refinement, row = operation.agreed, operation.refinement, window.next & (window.lease.slots - 1)
            if operation.codec is not None:
                bad = operation.codec.encode(scales, refinement, first, number, step, count, window.ring, row)
            else:
                bad = operation.runs.encode(
                    operation.values, scales, refinement, first, number, step, count, window.ring, row
                )
            if bad != kernels.ALL_GOOD:
                raise exceeds(first + bad * step)
            if operation.contributed is not None:
                every = np.arange(count)
                kernels.decode_own(
                    job, window.ring, row + every, operation.contributed, first + step * every, scales, refinement
                )
            return
        payload = window.rows(window.next, 1)[0, HEADER_BYTES:]
        payload[item.blocks :] = 0
        if item.phase is Phase.SCALE:
            if operation.codec is not None:
                operation.magnitudes[chunk] = operation.codec.largest(item.first, item.blocks)
            elif not operation.maxima:
                values = operation.values[item.first * job.lanes : (item.first + item.blocks) * job.lanes]
                operation.magnitudes[chunk] = kernels.largest(job, values)
            if not operation.maxima:
                operation.own[chunk] = kernels.scale_bytes(job, operation.magnitudes[chunk])
            payload[: item.blocks] = operation.own[chunk]
            if self._signature is not None:
                payload[self._signature] = self.signature_of(operation)
        else:
            sent = payload[: item.blocks]
            kernels.refine_bytes(job, operation.magnitudes[chunk], operation.agreed[chunk], sent)

    def signature_of(self, operation: Operation) -> Bytes:
        """What signs its scales; nothing, if they have no room for it."""
        if self._signature is None:
            return NOT_SIGNED
        float_type = None if operation.maxima else operation.job.float_type
        return signature(operation.values.size, float_type, operation.divisor)

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
                    self._take_item(operation, item, shard, data, size, places, blocks)
                    return
                numbers = blocks * shards + shard
                inside = (numbers >= start) & (numbers < start + item.count)
                if inside.any():
                    self._take_item(operation, item, shard, data, size, places[inside], blocks[inside])

    def _take_item(
        self,
        operation: Operation,
        item: Item,
        shard: int,
        data: Bytes,
        size: int,
        places: Integers,
        blocks: Integers,
    ) -> None:
        operation.left -= len(blocks)
        if item.phase is Phase.VALUES:
            offset = shard - (operation.first_block + item.start - item.first)
            if operation.codec is not None:
                operation.invalid_codes += operation.codec.decode(
                    data, size, places, blocks, len(self.windows), offset, operation.agreed, operation.refinement,
                    operation.divisor,
                )  # fmt: skip
                return
            operation.invalid_codes += operation.runs.decode(
                data, size, places, blocks, len(self.windows), offset, operation.out, operation.agreed,
                operation.refinement, operation.divisor,
            )  # fmt: skip
            return
        job, chunk = operation.job, slice(item.first, item.first + item.blocks)
        payload = data[places[0] * size + HEADER_BYTES : (places[0] + 1) * size]
        agreed = payload[: item.blocks]
        if item.phase is Phase.SCALE:
            if self._signature is not None and not agrees(payload[self._signature].tobytes()):
                kind = "uint8" if operation.maxima else job.float_type.name.lower()
                raise RanksDisagree(
                    f"another rank reduces something else than this one's {operation.values.size} elements of {kind} "
                    f"(divisor {operation.divisor}): all ranks must reduce tensors of "
                    "the same sizes and types in the same order"
                )
            if (agreed < operation.own[chunk]).any():
                raise RuntimeError("the switch returned a smaller scale than this rank sent; it does not take maxima")
            operation.agreed[chunk] = agreed
        else:
            operation.refinement[chunk] = agreed
        operation.ready[item.phase, item.first // self.chunk] = True

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

    # --- when the network has broken, see `salvage` ---

    def take_over(
        self, shard: int, datagrams: Bytes, rows: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]
    ) -> list[Operation]:
        """Use results of ``blocks`` (the shard's numbering) that another rank had, in ``rows`` of ``datagrams``."""
        self.windows[shard].mark_taken(blocks)
        self.take(shard, datagrams.reshape(-1), datagrams.shape[1], rows, blocks, int(blocks.min()), int(blocks.max()))
        return self.finished()

    def unfinished(self) -> list[tuple[Operation, npt.NDArray[np.bool_]]]:
        """The operations that are left, and which of their value blocks have no sums yet."""
        shards = len(self.windows)
        left = []
        for operation in self.operations:
            pending = np.ones(operation.agreed.size, np.bool_)
            for item in operation.items:
                if item.phase is Phase.VALUES:
                    numbers = operation.first_block + item.start + np.arange(item.count)
                    for shard, window in enumerate(self.windows):
                        mine = np.flatnonzero(numbers % shards == shard)
                        pending[item.first + mine] = ~window.is_taken(numbers[mine] // shards)
            left.append((operation, pending))
        return left

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
