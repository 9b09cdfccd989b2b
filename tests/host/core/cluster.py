"""Engines and aggregators side by side, moved by hand, one datagram at a time: tests in the protocol's verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_host.core import Engine, Epoch, Operation, ShardLease
from inagg_host.core.operation import Request
from inagg_host.core.state import OPERATIONS
from inagg_switch.aggregation.aggregator import Aggregator
from inagg_switch.binding import Binding
from inagg_wire import header as wire
from inagg_wire.formats import job_format
from inagg_wire.header import Header
from inagg_wire.scale import FloatType
from inagg_wire.slots import Lease

JOB, TOKEN, SEED = 7, 0xC0FFEE01, 77


@dataclass(frozen=True, slots=True)
class Datagram:
    """One datagram on its way. ``rank``: who sent it, or who is to get it; ``block``: the job's number."""

    rank: int
    shard: int
    block: int
    data: bytes

    @property
    def header(self) -> Header:
        return wire.parse(self.data).header

    def but(self, **fields: Any) -> Datagram:
        """The same with other header fields."""
        parsed = wire.parse(self.data)
        return replace(self, data=replace(parsed.header, **fields).pack() + parsed.payload)

    def patched(self, at: int, *values: int) -> Datagram:
        """The same with other bytes from ``at`` on."""
        return replace(self, data=self.data[:at] + bytes(values) + self.data[at + len(values) :])


class Cluster:
    """A job with ``workers`` ranks; ``now`` is theirs and passes when it is changed."""

    def __init__(
        self,
        workers: int = 2,
        fmt: str = "nat8",
        lanes: int = 32,
        window: int = 8,
        shards: int = 1,
        first: int = 0,
        base: int = 0,
        scatters: bool = True,
    ) -> None:
        """``first``: the block of each shard at which the job begins; ``base``: its first slot; ``scatters``: the
        switch can send a result to one rank alone."""
        self.now = 10.0
        self.lease = Lease(base, 2 * window)
        self.lanes, self.format = lanes, job_format(fmt)
        self._addresses = [("10.0.0.1", 1000 + rank) for rank in range(workers)]
        self.switches = [self.new_switch() for _ in range(shards)]
        leases = self._leases([first] * shards)
        self.epoch = Epoch(1, JOB, TOKEN, self.format, workers, 0, lanes, SEED, leases, None, scatters)
        self.bind()
        self.engines = [Engine(replace(self.epoch, rank=rank)) for rank in range(workers)]
        self.finished: list[list[Operation]] = [[] for _ in range(workers)]

    def _leases(self, blocks: Sequence[int]) -> tuple[ShardLease, ...]:
        return tuple(ShardLease(("10.0.0.2", shard), self.lease, block) for shard, block in enumerate(blocks))

    # --- switches and epochs ---

    def new_switch(self) -> Aggregator:
        """One that knows no job."""
        slots = 1 << (self.lease.base + self.lease.slots - 1).bit_length()
        return Aggregator(slots, self.lanes, 2)

    def bind(self) -> None:
        """Bind the job in its epoch on all shards."""
        e = self.epoch
        for switch, shard in zip(self.switches, e.shards, strict=True):
            workers, block = tuple(self._addresses), shard.resume_block
            switch.bind(
                Binding(e.job, e.token, e.format, e.lanes, self.lease, e.seed, workers, block, scatters=e.scatters)
            )

    def new_epoch(self, forget: bool = True, job: int = JOB) -> None:
        """The switches restart (unless not to ``forget``), and all ranks join again, as the control plane has it."""
        starts = [min(of_shard) for of_shard in zip(*(engine.positions for engine in self.engines), strict=True)]
        e = self.epoch
        self.epoch = replace(e, number=e.number + 1, job=job, token=e.token + 1, shards=self._leases(starts))
        if forget:
            self.switches = [self.new_switch() for _ in self.switches]
        self.bind()
        for rank, engine in enumerate(self.engines):
            engine.resume(replace(self.epoch, rank=rank), self.now)

    # --- ranks ---

    def submit(
        self, rank: int, values: npt.ArrayLike, float_type: FloatType = FloatType.FLOAT32, divisor: int = 1
    ) -> npt.NDArray[Any]:
        """Have ``rank`` sum ``values``; where the sums go."""
        array = np.asarray(values, float_type.dtype).reshape(-1)
        out = np.zeros_like(array)
        self.engines[rank].submit(Request(array, out, float_type, divisor), self.now)
        return out

    def scatter(
        self, rank: int, values: npt.ArrayLike, float_type: FloatType = FloatType.FLOAT32, **options: Any
    ) -> npt.NDArray[Any]:
        """Have ``rank`` sum ``values``, a piece for each rank; where the sums of its own go."""
        array = np.asarray(values, float_type.dtype).reshape(-1)
        out = np.zeros(array.size // len(self.engines), array.dtype)
        self.engines[rank].submit(Request(array, out, float_type, scatters=True, **options), self.now)
        return out

    def submit_all(self, values: Sequence[npt.ArrayLike], **options: Any) -> list[npt.NDArray[Any]]:
        """Have each rank sum its values."""
        return [self.submit(rank, of_rank, **options) for rank, of_rank in enumerate(values)]

    def send(self, rank: int) -> list[Datagram]:
        """What ``rank`` sends now."""
        near = self.engines[rank].state.shards["snd_nxt"].tolist()
        return [
            self._datagram(rank, out.shard, piece.tobytes(), near[out.shard])
            for out in self.engines[rank].outgoing(self.now)
            for piece in out.data.reshape(-1, out.size)
        ]

    def aggregate(self, datagrams: Iterable[Datagram]) -> list[Datagram]:
        """The switches take them; what they answer, one datagram for each rank that it is for."""
        answers = []
        for datagram in datagrams:
            data = np.frombuffer(bytearray(datagram.data), np.uint8)
            source = self._addresses[datagram.rank]
            for sent in self.switches[datagram.shard].receive(data, data.size, source, self.now):
                for address in sent.to:
                    answer = sent.data.tobytes()
                    answers.append(replace(datagram, rank=self._addresses.index(address), data=answer))
        return answers

    def take(self, datagrams: Iterable[Datagram]) -> None:
        """The ranks take them."""
        for datagram in datagrams:
            data = np.frombuffer(bytearray(datagram.data), np.uint8)
            self.finished[datagram.rank] += self.engines[datagram.rank].on_batch(
                datagram.shard, data, data.size, self.now
            )

    def exchange(self, lose: Callable[[Datagram], bool] = lambda datagram: False) -> int:
        """All ranks send, the switches answer, the ranks take it; but for what is lost on either way. How many were
        sent."""
        sent = [datagram for rank in range(len(self.engines)) for datagram in self.send(rank)]
        answers = self.aggregate(datagram for datagram in sent if not lose(datagram))
        self.take(answer for answer in answers if not lose(answer))
        return len(sent)

    def run(self, step_s: float = 1e-4, most: int = 10_000) -> None:
        """Exchange until all is done, waiting for time-outs where nothing else is left."""
        for _ in range(most):
            sent = self.exchange()
            self.now += step_s
            if all(engine.idle and engine.deadline is None for engine in self.engines):
                return
            if not sent:
                self.now = max(self.now, min(e.deadline for e in self.engines if e.deadline is not None))
        raise AssertionError(f"not done: {[engine.positions for engine in self.engines]}")

    def _datagram(self, rank: int, shard: int, data: bytes, near: int) -> Datagram:
        header = wire.parse(data).header
        block = self.lease.block_at(header.slot, header.generation, near)
        return Datagram(rank, shard, block * len(self.switches) + shard, data)


def counts(engine: Engine, outcome: int, shard: int = 0) -> int:
    """How many datagrams became ``outcome``, one of `inagg_host.core.state.OUTCOMES`."""
    return int(engine.state.shards["counts"][shard, outcome])


def shard_of(engine: Engine, shard: int = 0) -> Any:
    """Its record."""
    return engine.state.shards[shard]


def left(engine: Engine) -> int:
    """How many blocks of the oldest operation have no result."""
    return int(engine.state.operations[int(engine.state.job["oldest"][0]) % OPERATIONS]["left"])


def blocks(datagrams: Iterable[Datagram]) -> list[int]:
    """Their numbers."""
    return [datagram.block for datagram in datagrams]
