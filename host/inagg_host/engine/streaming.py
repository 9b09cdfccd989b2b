"""An engine's values in a compiled loop: what the loop needs, and what it has done. See `stream`."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from inagg_host.kernels import Job, Runs, calls
from inagg_wire.layout import Op
from inagg_wire.link import datagrams_per_call

from . import stream as streams
from .epoch import Epoch
from .memory import Memory
from .operation import Operation
from .plan import Phase
from .stream import Part, Stream
from .window import Bytes, Integers

if TYPE_CHECKING:
    from .engine import Engine


class Streaming:
    """Between `begin` and `end`, the engine is the loop's; then it goes on where the loop has stopped."""

    def __init__(self, engine: Engine, memory: Memory, kept: Bytes, shapes: Integers) -> None:
        """``memory`` and ``kept``: of all shards; ``shapes``: see `inagg_host.engine.window.Window`."""
        self._engine, self._memory, self._kept, self._shapes = engine, memory, kept, shapes
        shards = len(engine.windows)
        self._n, self._spent = np.zeros(streams.NUMBERS, np.int64), np.zeros(streams.IDLE + 1, np.float64)
        self._w = np.zeros((shards, streams.WINDOW), np.int64)
        self._s = np.zeros((shards, streams.TIMES), np.float64)
        self._pieces, self._peers = np.zeros((shards, streams.SHARD + 1), np.int64), np.zeros(shards, np.int64)
        self._places, self._blocks = (np.zeros(streams.RESULTS_MOST, np.int64) for _ in range(2))
        self._slots: int = memory.sizes.shape[1]
        self._alike = all(window.lease.slots == self._slots for window in engine.windows)
        self._told: tuple[Epoch, Job, Job] | None = None  # what `Stream.n` begins with, is of these
        self._sending = 0
        # By type: the arrays that a context has the addresses of, and the context.
        self._contexts: dict[Runs, tuple[tuple[npt.NDArray[Any], ...], Integers]] = {}

    @property
    def possible(self) -> bool:
        """Whether `begin` may give something."""
        e = self._engine
        if not (self._alike and e.operations) or e.again:
            return False
        first = e.operations[0]
        return first.codec is None and not first.maxima and all(window.usual for window in e.windows)

    def begin(self, data: Bytes) -> Stream | None:
        """What a loop needs to take and send the oldest operations' blocks; ``data``: where it receives batches. None:
        use `Engine.receive` and `Engine.outgoing`."""
        if not self.possible:
            return None
        e = self._engine
        taking, unsent = e.operations[0], len(e.operations) - e.sending
        source = e.operations[e.sending] if unsent else taking
        if source.maxima or source.codec is not None:
            return None
        self._sending = e.sending
        if (told := (e.epoch, taking.job, source.job)) != self._told:
            self._n[: streams.SENDS] = self._of_the_job(taking, source)
            self._told = told
        self._n[streams.SENDS :] = (
            unsent > 0, source.at, source.sent, unsent > 1, 0, taking.left, taking.invalid_codes, 0, 0, 0, 0,
            0 if source.contributed is None else calls.own_address(source.job), source.scaled, source.job.drafts,
        )  # fmt: skip
        for shard, window in enumerate(e.windows):
            self._w[shard] = window.lend()
            self._s[shard, : streams.SAMPLE] = window.lend_times()
        self._spent[:] = 0
        target = self._part(taking, taking.out, data)
        in_place = source is taking and source.values is source.out
        sent = target if in_place else self._part(source, source.values, data)
        return Stream(
            self._n, self._w, self._s, self._spent, self._memory, self._shapes, self._places, self._blocks, self._kept,
            self._pieces, self._peers, sent, target, e.headers, e.payloads.signature_of(source),
        )  # fmt: skip

    def _of_the_job(self, taking: Operation, source: Operation) -> list[int]:
        """What stays the same in `Stream.n` as long as epoch and types do."""
        e, needs = self._engine, Phase.REFINE if taking.job.refined else Phase.SCALE
        (encode, _, scale), (_, decode, _) = calls.addresses(source.job), calls.addresses(taking.job)
        return [
            e.epoch.job, e.epoch.token, self._slots, needs, e.payloads.signed,
            encode, decode, scale, e.size[Op.SUM], Op.SUM, e.size[Op.MAX], Op.MAX, datagrams_per_call(e.size[Op.SUM]),
        ]  # fmt: skip

    def _part(self, operation: Operation, values: npt.NDArray[Any], data: Bytes) -> Part:
        """What a loop needs of an operation, whose ``values`` it sends or takes. ``data``: where it receives."""
        o, context = operation, self._context(operation, data).copy()
        own, blocks = _at(o.own), o.own.size  # the first of three rows
        context[: calls.RING] = (
            _at(values), values.size, own + blocks, own + 2 * blocks, blocks, _at(o.magnitudes), own,
        )  # fmt: skip
        context[calls.DIVISOR], context[calls.SERIAL] = o.divisor, o.serial
        if o.contributed is not None:
            context[calls.CONTRIBUTED] = _at(o.contributed)
        return Part(o.table, o.ready, o.agreed, o.own, context)

    def _context(self, operation: Operation, data: Bytes) -> Integers:
        """What is the same in the contexts of all operations of a type."""
        runs, ring = operation.runs, self._memory.ring
        rows = ring.shape[0] * ring.shape[1]
        room = runs.room(streams.RESULTS_MOST, rows)
        pointed_to = data, *room[:-1], *room.drafts
        made = self._contexts.get(runs)
        if made is None or any(a is not b for a, b in zip(made[0], pointed_to, strict=True)):
            c = calls.context_of(runs.job)
            c[calls.RING], c[calls.ROWS], c[calls.STRIDE] = _at(ring), rows, ring.shape[2]
            c[calls.DATA], c[calls.DATA_BYTES], c[calls.PLACES] = _at(data), data.size, _at(self._places)
            c[calls.NUMBERS], c[calls.RESULTS] = _at(self._blocks), self._blocks.size
            c[calls.INDICES], c[calls.INDICES_WIDTH] = _at(room.indices), room.indices.shape[1]
            c[calls.WORDS], c[calls.CODES], c[calls.STEP] = _at(room.words), _at(room.codes), len(self._engine.windows)
            d = room.drafts
            c[calls.NOTES], c[calls.BELOW], c[calls.EXPECTED] = _at(d.notes), _at(d.below), _at(d.expected)
            c[calls.DRAFTS] = len(d.notes)
            made = self._contexts[runs] = pointed_to, np.array(c, np.int64)
        return made[1]

    def end(self, stream: Stream) -> None:
        """The loop has stopped. The same again has no effect, if the engine has done nothing since."""
        e, taking = self._engine, self._engine.operations[0]
        n = stream.n.tolist()
        taking.left, taking.invalid_codes = n[streams.LEFT], n[streams.INVALID]
        if self._sending < len(e.operations):
            sending = e.operations[self._sending]
            sending.at, sending.sent, sending.scaled = n[streams.ITEM], n[streams.SENT], n[streams.SCALED]
            e.sending = self._sending + (sending.at == len(sending.items))
        for window, numbers, seconds in zip(e.windows, stream.w.tolist(), stream.s, strict=True):
            window.take_back(numbers, seconds)

    def take_rest(self, stream: Stream, shard: int, data: Bytes, size: int) -> list[Operation]:
        """As `Engine.receive`, of what the loop has accepted and not taken of ``data``."""
        n, e = stream.n, self._engine
        places, blocks = (array[n[streams.TAKEN] : n[streams.FRESH]] for array in (stream.places, stream.blocks))
        if blocks.size:
            e.take(shard, data, size, places, blocks, int(blocks.min()), int(blocks.max()))
        e.resend(shard)
        wrong = int(n[streams.WRONG])
        if wrong >= 0:
            e.raise_for(shard, data[wrong * size : (wrong + 1) * size])
        return e.finished()


def _at(array: npt.NDArray[Any]) -> int:
    """Its address."""
    if array.size and array.flags.writeable:  # in a quarter of the time
        buffer: Any = array  # which type checkers do not know
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    address: int = array.__array_interface__["data"][0]
    return address
